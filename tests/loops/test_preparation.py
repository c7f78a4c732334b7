"""What is damaged in a replay is set aside, and no count is lost or invented."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.damages import BOARD, LEDGER, SHARD, Damage, as_folder, name_of, remove, words
from tests.fakes import corridor

from shoal.config.load import settings_for
from shoal.loops import assembly
from shoal.loops.counts import Counts
from shoal.loops.gradient_board import GradientBoard
from shoal.loops.plan import make_plan
from shoal.loops.preparation import needed_bytes, prepare
from shoal.loops.run_paths import RunPaths
from shoal.loops.weights import WeightBoard
from shoal.replay import Header, LedgerWord, ShardWriter
from shoal.replay.storage import folder_bytes

SETTINGS = corridor(replay={"samples_per_insert": None})
PLAN, ROLES = make_plan(SETTINGS), 4


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counts]:
    """A replay that two actors and a learner worked on, and what it counts."""
    places = RunPaths(tmp_path_factory.mktemp("used") / "replay", tmp_path_factory.mktemp("checkpoints"))
    places.replay.mkdir()
    plan = PLAN.at(places)
    assert prepare(plan, ROLES, "run") == []
    actors = [assembly.build_actor(plan, index) for index in range(2)]
    learner = assembly.build_learner(plan)
    for actor in actors:
        actor.run(steps=60)
        actor.end()
    assert learner.run(updates=5).updates == 5
    learner.close()
    ledger = assembly.open_ledger(plan)
    ledger.beat()
    return places.replay, Counts(ledger.env_steps, ledger.episodes, ledger.updates)


@pytest.fixture
def places(used: tuple[Path, Counts], tmp_path: Path) -> RunPaths:
    """A copy of it."""
    shutil.copytree(used[0], tmp_path / "replay")
    return RunPaths(tmp_path / "replay", tmp_path / "checkpoints")


def counted(places: RunPaths) -> Counts:
    ledger = assembly.open_ledger(PLAN.at(places))
    return Counts(ledger.env_steps, ledger.episodes, ledger.updates)


def test_what_is_whole_is_left_alone(used: tuple[Path, Counts], places: RunPaths) -> None:
    assert prepare(PLAN.at(places), ROLES, "run", pytest.fail) == []
    assert counted(places) == used[1] and used[1].steps > 300 and used[1].episodes > 10 and used[1].updates == 5
    assert not list(places.replay.glob("*.unusable-*"))


@pytest.mark.parametrize(("name", "damage"), SHARD + LEDGER + BOARD, ids=name_of)
def test_damage_is_set_aside_and_said_and_costs_no_count(
    used: tuple[Path, Counts], places: RunPaths, name: str, damage: Damage
) -> None:
    before = {file: file.stat().st_size for file in places.replay.iterdir()}
    damage(places.replay / name)
    notes = prepare(PLAN.at(places), ROLES, "run", lambda: used[1])
    assert len(notes) == 1 and Path(name).parts[0].removesuffix(".bin").removesuffix(".words") in notes[0]
    assert counted(places) == used[1]
    missing = damage is remove and "/" not in name and name != "weights.words"
    assert bool(list(places.replay.glob("*.unusable-*"))) or missing
    assert set(before) <= set(places.replay.iterdir())
    # What is there now works.
    for path in PLAN.at(places).shards:
        ShardWriter(path).close()
    out = np.empty(places.board.stat().st_size // 8, np.float32)
    assert WeightBoard(places.board, len(out)).read(out) >= 1 and np.isfinite(out).all()
    assert prepare(PLAN.at(places), ROLES, "run", pytest.fail) == [], "it is healed for good"


def test_steps_of_a_lost_shard_stay_counted_without_any_other_document(
    used: tuple[Path, Counts], places: RunPaths
) -> None:
    remove(places.shard(0))
    prepare(PLAN.at(places), ROLES, "run")
    assert counted(places) == used[1]
    words(HEAD=2**63 + 5, CLAIM=2**63 + 5)(places.shard(1) / "header.bin")
    prepare(PLAN.at(places), ROLES, "run")
    ledger = assembly.open_ledger(PLAN.at(places))
    assert counted(places) == used[1] and ledger.inserts == 0


def test_a_shard_and_the_ledger_at_once(used: tuple[Path, Counts], places: RunPaths) -> None:
    remove(places.shard(0))
    words(STOP=9)(places.ledger)
    prepare(PLAN.at(places), ROLES, "run", lambda: used[1])
    assert counted(places) == used[1]
    assert assembly.open_ledger(PLAN.at(places))[LedgerWord.SAMPLES] == 5 * SETTINGS.rows_per_batch


def test_a_folder_where_a_role_notes_its_process_is_no_obstacle(places: RunPaths) -> None:
    as_folder(places.processes)
    prepare(PLAN.at(places), ROLES, "run")
    assert places.processes.is_file()


@pytest.mark.parametrize("served", [False, True])
def test_all_that_is_made_is_counted_and_has_its_memory(tmp_path: Path, served: bool) -> None:
    settings = corridor(actors=3, runtime="ray", actor={"inference": "served"}) if served else SETTINGS
    places = RunPaths(tmp_path / "replay", tmp_path / "checkpoints")
    places.replay.mkdir()
    plan = make_plan(settings, places)
    prepare(plan, ROLES, "run")
    files = [file for file in places.replay.rglob("*") if file.is_file()]
    assert [file.name for file in files if file.stat().st_blocks * 512 < file.stat().st_size] == []
    needed = needed_bytes(plan, ROLES)
    assert folder_bytes(places.replay) <= needed <= folder_bytes(places.replay) + 64 * 1024
    assert bool(list(places.replay.glob("mailbox_*.bin"))) == served


def test_headers_are_checked_while_a_writer_is_at_work(places: RunPaths) -> None:
    writer = ShardWriter(places.shard(0))
    writer.claim_row()  # and not published
    assert writer.header[Header.CLAIM] == writer.head + 1
    assert prepare(PLAN.at(places), ROLES, "run", pytest.fail) == []


def test_gradients_that_wait_are_kept_and_damaged_ones_set_aside(tmp_path: Path) -> None:
    settings = settings_for("tests.fakes:TestCorridor-v0", "a3c", ["actors=2", "hidden=[4]"])
    places = RunPaths(tmp_path / "replay", tmp_path / "checkpoints")
    places.replay.mkdir()
    plan = make_plan(settings, places)
    assert prepare(plan, ROLES, "run") == []
    assert folder_bytes(places.replay) <= needed_bytes(plan, ROLES) <= folder_bytes(places.replay) + 64 * 1024
    boards = [GradientBoard(places.gradients(index)) for index in range(2)]
    for board in boards:
        board.push(np.ones(board.size, np.float32), 1, 1)
    assert prepare(plan, ROLES, "run") == []
    words(w3=5)(places.gradients(1).with_suffix(".words"))
    (note,) = prepare(plan, ROLES, "run")
    assert "is damaged" in note and "set aside" in note
    counts = [GradientBoard(places.gradients(index)).counts for index in range(2)]
    assert counts == [(1, 0, 0, 1), (0, 0, 0, 0)]
    other = make_plan(settings_for("tests.fakes:TestCorridor-v0", "a3c", ["actors=2", "hidden=[5]"]), places)
    assert any("gradients of another network" in one for one in prepare(other, ROLES, "run"))
