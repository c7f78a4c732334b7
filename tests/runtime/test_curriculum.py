"""The curriculum of real runs: it is fed, shown, saved and resumed."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import stairs

from shoal.config.checks import check_environment
from shoal.errors import ConfigError
from shoal.loops.plan import make_plan
from shoal.loops.reports import ActorReport
from shoal.loops.settings import RunSettings
from shoal.metrics_file import read_metrics
from shoal.ops import epsilon_ladder
from shoal.runtime.curriculum import CURRICULUM_FILE, CurriculumRecord
from shoal.runtime.execution import execute
from shoal.runtime.run_folder import RunFolder, Summary
from shoal.types import Episode

ROOT = Path(__file__).parents[2]
ALL = ["height=1,width=1", "height=2,width=1", "height=1,width=2", "height=2,width=2"]


def run(settings: RunSettings, folder: Path | RunFolder) -> tuple[RunFolder, Summary]:
    resume = isinstance(folder, RunFolder)
    made = folder if isinstance(folder, RunFolder) else RunFolder.create(folder, "Stairs", "apex-dqn", datetime.now())
    return made, execute(check_environment(settings), made, resume=resume)


def unlocked(folder: RunFolder) -> list[dict[str, int]]:
    levels: list[dict[str, int]] = json.loads((folder.path / CURRICULUM_FILE).read_text())["levels"]
    return levels


def report(index: int, lane: int, success: float = 1.0, **level: float) -> ActorReport:
    told = {"is_success": success, **{f"level.{name}": value for name, value in level.items()}}
    return ActorReport(index, 1, 1.0, 0.0, (Episode(lane, 1.0, 1, told),), 1)


def test_only_lanes_that_explore_little_count(tmp_path: Path) -> None:
    plan = make_plan(stairs(curriculum={"window": 2, "lanes": 0.4}))  # of 8 lanes the last 3
    notes: list[str] = []
    record = CurriculumRecord(plan, tmp_path / "file.json", notes.append)
    ladder = epsilon_ladder(8, 0.4, 7.0)
    epsilon = {(index, lane): ladder[index::2][lane] for index in range(2) for lane in range(4)}  # as policies have it
    *others, _, first, second = sorted(epsilon, key=lambda place: -epsilon[place])
    for index, lane in others:
        for _ in range(5):
            record.take(report(index, lane, height=1, width=1))
    assert len(record.levels) == 1 and record.record() == {"curriculum/levels": 1}
    record.take(report(*first, height=1, width=1))
    record.take(report(*second, height=1, width=1))
    assert notes == [f"curriculum: {ALL[0]} passes with 1.00 and unlocks {one}" for one in ALL[1:3]]
    record.take(report(1, 3, success=0.0, height=2, width=1))
    assert record.record() == {"curriculum/levels": 3, f"curriculum/{ALL[0]}": 1.0, f"curriculum/{ALL[1]}": 0.0}


def test_a_level_that_had_passed_and_fails_is_said_once(tmp_path: Path) -> None:
    plan = make_plan(stairs(actors=1, env={"lanes": 1}, curriculum={"window": 10, "success": 0.8}))
    notes: list[str] = []

    def play(record: CurriculumRecord, success: float, episodes: int) -> list[str]:
        notes.clear()
        for _ in range(episodes):
            record.take(report(0, 0, success, height=1, width=1, wind=len(notes)))  # which it does not set
        return notes

    record = CurriculumRecord(plan, tmp_path / "file.json", notes.append)
    assert play(record, 0.0, 10) == []  # it has not passed yet
    assert len(play(record, 1.0, 10)) == 2 and all(f"{ALL[0]} passes" in note for note in notes)
    assert play(record, 0.0, 6) == []  # 0.4 of them succeed: a level may have bad luck
    record.record()
    record = CurriculumRecord(plan, tmp_path / "file.json", notes.append)  # as in a resumed run
    (said,) = play(record, 0.0, 4)
    assert said.startswith(f"curriculum: {ALL[0]} had passed, and 0.30 of its newest") and "learning_rate" in said
    assert play(record, 1.0, 10) == play(record, 0.0, 10) == []


@pytest.mark.parametrize(("lanes", "share", "counted"), [(10, 0.7, 7), (10, 0.1, 1), (10, 0.99, 9), (3, 1.0, 3)])
def test_how_many_lanes_count(lanes: int, share: float, counted: int, tmp_path: Path) -> None:
    plan = make_plan(stairs(actors=1, env={"lanes": lanes}, curriculum={"window": 1, "lanes": share, "success": 1.0}))
    unlocks = 0
    for lane in range(lanes):
        record = CurriculumRecord(plan, tmp_path / f"{lane}.json", lambda text: None)
        record.take(report(0, lane, height=1, width=1))
        unlocks += len(record.levels) > 1
    assert unlocks == counted


def test_one_lane_is_enough(tmp_path: Path) -> None:
    plan = make_plan(stairs(actors=1, env={"lanes": 1}, curriculum={"window": 1, "lanes": 0.01}))
    record = CurriculumRecord(plan, tmp_path / "file.json", print)
    record.take(report(0, 0, height=1, width=1))
    assert len(record.levels) == 3


@pytest.mark.parametrize("content", ["{", "[]", '{"levels": [{}], "recent": ["1"]}'])
def test_a_damaged_file_is_said_and_the_run_goes_on(tmp_path: Path, content: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(content)
    notes: list[str] = []
    record = CurriculumRecord(make_plan(stairs()), file, notes.append)
    assert len(record.levels) == 1 and len(notes) == 1 and "levels start over" in notes[0]
    (aside,) = tmp_path.glob("file.json.*")
    assert aside.read_text() == content and aside.name in notes[0]


def test_a_disk_that_is_full_does_not_end_the_run(tmp_path: Path) -> None:
    notes: list[str] = []
    record = CurriculumRecord(make_plan(stairs()), tmp_path / "missing" / "file.json", notes.append)
    record.record()
    assert record.record()["curriculum/levels"] == 1 and len(notes) == 1 and "not saved" in notes[0]


def test_levels_unlock_inline_and_after_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep: dict[str, Any] = {"replay": {"keep": True}}
    folder, _ = run(stairs(stop={"steps": 600}, curriculum={"limit": {"height": 2, "width": 1}}, **keep), tmp_path)
    assert unlocked(folder) == [{"height": 1, "width": 1}, {"height": 2, "width": 1}]
    _, summary = run(stairs(stop={"steps": 100_000, "curriculum": True}, **keep), folder)
    assert summary.status == "finished" and 600 < summary.env_steps < 10_000
    assert len(unlocked(folder)) == 4
    shown = capsys.readouterr().out
    assert "height=1,width=1 passes with 1.00 and unlocks height=2,width=1" in shown
    last = read_metrics(folder.metrics_jsonl)[-1]
    assert last["curriculum/levels"] == 4 and last["curriculum/height=2,width=2"] == 1.0
    assert last["rollout/success_rate"] == 1.0 and 1.0 <= last["rollout/level.height"] <= 2.0
    assert last["rollout/steps_up"] == last["rollout/ep_len_mean"]
    evaluated = [row for row in read_metrics(folder.metrics_jsonl) if "eval/mean_reward" in row][-1]
    assert evaluated["eval/success_rate"] == 1.0 and evaluated["eval/steps_up"] == 1.0  # those of env.kwargs


def test_what_fails_stays_locked_and_one_seed_gives_one_result(tmp_path: Path) -> None:
    limit = {"height": 3, "width": 1}
    settings = stairs(env={"kwargs": {"too_high": 2}}, stop={"steps": 800}, curriculum={"limit": limit})
    folders = [run(settings, tmp_path / name)[0] for name in "ab"]
    assert unlocked(folders[0]) == [{"height": 1, "width": 1}, {"height": 2, "width": 1}]
    assert (folders[0].path / CURRICULUM_FILE).read_text() == (folders[1].path / CURRICULUM_FILE).read_text()


def test_an_environment_that_does_not_say_how_it_ended(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is_success"):
        run(stairs(env={"kwargs": {"silent": True}}), tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (stairs(env={"id": "tests.fakes:TestCorridor-v0"}), "TestCorridor-v0 has no levels.*metadata"),
        (
            stairs(curriculum={key: {"depth": 2} for key in ("start", "grow", "limit")}),
            "no depth; it has height, width",
        ),
        (
            stairs(curriculum={"limit": {"height": 2, "width": 12}}),
            "level .*width=12 does not fit.*higher than the sky",
        ),
        (
            stairs(env={"kwargs": {"widest": 1}}, curriculum={"limit": {"height": 2, "width": 2}}),
            "level height=1,width=2 does not fit.*too wide",
        ),
    ],
)
def test_refused_before_anything_starts(settings: RunSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_environment(settings)


@pytest.mark.slow
def test_levels_unlock_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))  # for Ray's workers
    ends = {"steps": None, "seconds": 90.0, "curriculum": True}
    settings = stairs(runtime="ray", report_seconds=0.5, stop=ends, evaluation={"every_steps": 100_000})
    folder, summary = run(settings, tmp_path)
    assert summary.status == "finished" and summary.error is None and len(unlocked(folder)) == 4
    assert read_metrics(folder.metrics_jsonl)[-1]["curriculum/height=2,width=2"] >= 0.9
