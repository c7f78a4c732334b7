"""More actors on the way: what the plan, the replay and `actors.json` become."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes import corridor, prepared

from shoal.config.load import load_target
from shoal.errors import NoSpace
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import prepare, prepare_more
from shoal.loops.run_paths import RunPaths
from shoal.replay import LedgerWord, shard_files
from shoal.runtime import supervisor as supervision
from shoal.runtime.growth import ACTORS_FILE, grow, grown, most_actors
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.progress import Progress
from shoal.runtime.ray_hosts import with_settings, without_settings
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.supervisor import Supervisor


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(corridor(actors=3, replay={"capacity": 1000}), RunPaths(tmp_path / "replay", tmp_path))


def test_new_actors_have_shards_like_the_others(plan: Plan) -> None:
    for actors in (4, 7, 64):
        more = plan.with_actors(actors)
        assert more.rows_per_shard == plan.rows_per_shard
        assert more.settings.replay.capacity >= plan.settings.replay.capacity * actors / 3
        assert more.with_actors(3).rows_per_shard == plan.rows_per_shard


@pytest.mark.parametrize(("content", "actors"), [
    ('{"actors": 5}', 5), ('{"actors": 2}', 3), ('{"actors": 100000}', 3), ('{"actors": "5"}', 3), ("[]", 3), ("{", 3),
])  # fmt: skip
def test_only_a_larger_number_is_believed(plan: Plan, tmp_path: Path, content: str, actors: int) -> None:
    (tmp_path / ACTORS_FILE).write_text(content)
    assert grown(plan, RunFolder(tmp_path)).settings.actors == actors


def test_shards_of_new_actors_are_made_and_nothing_counts_as_lost(plan: Plan) -> None:
    plan.paths.replay.mkdir()
    prepare(plan, 5, "run")
    more = plan.with_actors(5)
    prepare_more(more, "run", 3)
    assert prepare(more, 7, "run") == []
    described = [json.loads((shard / "schema.json").read_text()) for shard in more.shards]
    assert len({one["rows"] for one in described}) == 1


def test_without_room_no_shard_is_left(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan.paths.replay.mkdir()
    prepare(plan, 5, "run")
    more, made, real = plan.with_actors(6), [], shard_files.reserve_file

    def full_later(path: Path, nbytes: int) -> None:
        made.append(path)
        if "shard_004" in str(path):
            raise NoSpace("the disk is full")
        real(path, nbytes)

    monkeypatch.setattr(shard_files, "reserve_file", full_later)
    with pytest.raises(NoSpace):
        prepare_more(more, "run", 3)
    assert made and sorted(path.name for path in plan.paths.replay.glob("shard_*")) == [
        f"shard_{actor:03d}" for actor in range(3)
    ]


@pytest.mark.parametrize(("limit", "trained", "left"), [(None, 70.0, None), (100.0, 70.0, 30.0), (60.0, 70.0, 1.0)])
def test_a_run_goes_on_with_the_seconds_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None, trained: float, left: float | None
) -> None:
    stop: dict[str, Any] = {"steps": 1_000_000, "seconds": limit}
    plan, ledger = prepared(tmp_path, corridor(runtime="ray", stop=stop))
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(supervision, "time", clock)
    with MetricsLog(tmp_path, []) as log:
        supervisor = Supervisor(plan, ledger, log, Progress(quiet=True), 0)
        ledger.add(LedgerWord.BASE_STEPS, 100)
        supervisor.tick()
        clock.now += trained  # also while its roles end, after the last look at the limit
        supervisor.actors_next = plan.settings.actors + 2
        more = grow(plan, supervisor, RunFolder(tmp_path), [])
    assert more.settings.stop.seconds == left and more.settings.stop.steps == 1_000_000
    there = with_settings(*without_settings(more))  # as other nodes read it: 0 seconds would be refused
    assert there.settings.actors == plan.settings.actors + 2 == grown(plan, RunFolder(tmp_path)).settings.actors


def test_actors_that_several_learners_could_not_share_are_left_out() -> None:
    words = ("algo=impala", "actors=2", "batch_size=16")
    alone, shared = (make_plan(load_target("CartPole-v1", (*words, f"learners={one}"))) for one in (1, 2))
    assert [most_actors(alone, room) for room in (0, 1, 2)] == [2, 3, 4]
    assert [most_actors(shared, room) for room in (0, 1, 2, 3)] == [2, 2, 4, 4]
