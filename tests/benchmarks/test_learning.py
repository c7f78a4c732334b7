"""`make bench-learning` without its runs: the order, the store that it goes on from, the figures, the page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MEASURED = {"source": {"commit": "abc", "sources": "def"}, "machine": {"cpu": "a CPU", "jobs": 2}}
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import _learning_plan  # type: ignore[import-not-found]

    return _learning_plan  # type: ignore[no-any-return]


@pytest.fixture
def report(plan: ModuleType) -> ModuleType:
    import _learning_report  # type: ignore[import-not-found]

    return _learning_report  # type: ignore[no-any-return]


def result(score: float, curve: list[list[float]] | None = None) -> dict[str, Any]:
    return {"score": score, "seconds": 10.0, "curve": curve or [], **MEASURED}


def test_first_seeds_come_first_and_the_slow_peers_last(plan: ModuleType) -> None:
    every = plan.units(plan.TASKS.values(), 2)
    slow = [unit.contender in ("sb3-sac", "sb3-td3") for unit in every]
    assert slow == sorted(slow) and sum(slow) == 2 * 2 * 4
    for part in (False, True):
        seeds = [unit.seed for unit, one in zip(every, slow, strict=True) if one == part]
        assert seeds == sorted(seeds)
    assert {unit.steps for unit in every if unit.env == "MountainCarContinuous-v0"} == {50_000}
    assert not any("zoo" in unit.contender for unit in every) and len(set(every)) == len(every)


def test_the_zoo_runs_when_asked_for(plan: ModuleType) -> None:
    task = plan.TASKS["CartPole-v1"]
    assert "sb3-dqn-zoo" in plan.contenders(task, zoo=True)
    assert plan.contenders(task, only=["sb3-ppo-zoo"]) == ["sb3-ppo-zoo"]
    assert plan.contenders(plan.TASKS["FrozenLake-v1"], only=["sb3-ppo-zoo"]) == []


def test_the_store_goes_on_with_what_is_missing(plan: ModuleType, tmp_path: Path) -> None:
    store = plan.Store(tmp_path / "store.jsonl")
    wanted = plan.units([plan.TASKS["CartPole-v1"]], 2, only=["apex-dqn", "sb3-dqn"])
    assert store.missing(wanted) == wanted
    store.add(wanted[0], result(1.0))
    store.add(wanted[1], {"error": "exit code 1"})
    with store.path.open("a") as file:
        file.write('{"contender": "apex-')  # a crash in the middle of a line
    assert store.missing(wanted) == wanted[1:], "a failed run is tried again"
    with store.path.open("a") as file:
        file.write("\n")
    store.add(wanted[1], result(2.0))
    store.add(wanted[1], {"error": "a later failure does not replace a result"})
    assert store.missing(wanted) == wanted[2:]
    assert store.read()[wanted[1]]["score"] == 2.0
    other = plan.units([plan.TASKS["CartPole-v1"]], 1, only=["apex-dqn"], steps=500)
    assert store.missing(other) == other, "another number of steps is another run"
    assert store.drop(["apex-dqn"], ["Acrobot-v1"]) == 0
    assert store.drop(["apex-dqn"], ["CartPole-v1"]) == 1
    assert wanted[0] in store.missing(wanted) and wanted[1] not in store.missing(wanted)


def test_a_new_store_begins_with_the_results_file(plan: ModuleType, tmp_path: Path) -> None:
    unit = plan.Unit("sac", "Pendulum-v1", 1, 100_000)
    kept = {"contender": "sac", "env": "Pendulum-v1", "seed": 1, "steps": 100_000, **result(-150.0)}
    (tmp_path / "learning.json").write_text(json.dumps({"units": [kept]}))
    store = plan.Store(tmp_path / "store.jsonl", tmp_path / "learning.json")
    assert store.read() == {unit: kept}


def fake(plan: ModuleType, scores: dict[str, list[float]], env: str = "CartPole-v1") -> dict[Any, dict[str, Any]]:
    steps = plan.TASKS[env].steps
    curve = [[10_000, 1.0, 30.0], [20_000, 2.0, 480.0]]
    return {
        plan.Unit(name, env, seed, steps): result(score, curve if score >= 480 else curve[:1])
        for name, some in scores.items()
        for seed, score in enumerate(some, start=1)
    }


def test_figures_of_an_environment(plan: ModuleType, report: ModuleType) -> None:
    scores = {"random": [22.0, 22.0], "sb3-dqn": [100.0, 140.0], "sb3-ppo": [400.0, 400.0]}
    scores |= {"apex-dqn": [9.0, 500.0, 500.0, 500.0, 500.0], "impala": [300.0, 300.0]}
    found = fake(plan, scores)
    found[plan.Unit("impact", "CartPole-v1", 1, 100_000)] = {"error": "exit code 1: boom"}
    lines = {line.contender: line for line in report.summarise(found, plan.TASKS["CartPole-v1"])}
    ours = lines["apex-dqn"]
    assert ours.iqm.value == pytest.approx(500) and ours.worst == 9 and ours.reached == 4
    assert (ours.goal_steps, ours.goal_seconds, ours.as_good, ours.beats_random) == (20_000, 2.0, True, False)
    assert lines["impala"].as_good is False and lines["impala"].beats_random is True
    assert math.isinf(lines["impala"].goal_steps) and math.isnan(lines["impala"].iqm.low)
    assert lines["sb3-ppo"].as_good is None and "impact" not in lines
    without = {unit: one for unit, one in found.items() if unit.contender != "sb3-dqn"}
    assert report.summarise(without, plan.TASKS["CartPole-v1"])[0].as_good is None, "the better of two needs both"
    assert report.failures(found, None) == ["impact CartPole-v1 seed 1: exit code 1: boom"]


def test_a_bar_is_judged_when_all_environments_are_measured(plan: ModuleType, report: ModuleType) -> None:
    scores = {"random": [1.0] * 5, "sb3-dqn": [2.0] * 5, "sb3-ppo": [3.0] * 5, "apex-dqn": [3.0] * 5}
    discrete = [task for task in plan.TASKS.values() if not task.continuous]
    lines = {task.env: report.summarise(fake(plan, scores, task.env), task) for task in discrete[:-1]}
    assert [row.holds for row in report.bars(lines) if row.bar] == [None, None]
    last = discrete[-1]
    lines[last.env] = report.summarise(fake(plan, scores | {"sb3-ppo": [3.0] * 4}, last.env), last)
    assert [row.holds for row in report.bars(lines) if row.bar] == [None, None], "a seed of a peer is missing"
    lines[last.env] = report.summarise(fake(plan, scores | {"apex-dqn": [1.0] * 5}, last.env), last)
    first, second = [row for row in report.bars(lines) if row.bar]
    assert first.holds is True and first.shoal == pytest.approx(5 / 6)
    assert second.holds is False, "not better than random on the last"
    peers = [row for row in report.bars(lines) if not row.bar]
    assert len(peers) == 6 and peers[0].peer == "sb3-ppo" and peers[0].best_peer == 3.0


def test_results_page_and_picture(plan: ModuleType, report: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(report, "FILE", tmp_path / "learning.json")
    monkeypatch.setattr("_harness.RESULTS", tmp_path)
    monkeypatch.setattr(report, "PAGE", tmp_path / "learning.md")
    monkeypatch.setattr(report, "IMAGE", tmp_path / "images" / "learning.png")
    first, last = report.MARKS
    (tmp_path / "learning.md").write_text(f"Before.\n\n{first}\nformer\n{last}\n\nAfter.\n")
    scores = {"random": [22.0] * 3, "sb3-dqn": [100.0] * 3, "sb3-ppo": [50.0] * 3, "apex-dqn": [500.0, 490.0, 480.0]}
    found = fake(plan, scores)
    found[plan.Unit("impala", "CartPole-v1", 1, 500)] = result(1.0)  # other steps: not in the results
    assert report.write(found)
    page = (tmp_path / "learning.md").read_text()
    assert page.startswith("Before.") and page.endswith("After.\n") and "former" not in page and "impala" not in page
    assert "| apex-dqn | 490 [480, 500] | 480 | 20,000 | 2 | 10 | yes | yes |" in page
    assert (tmp_path / "images" / "learning.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((tmp_path / "learning.json").read_text())
    assert content["rows"] and len(content["units"]) == 12
    assert report.write(found), "and again, over its own output"


def test_the_page_has_the_marks(report: ModuleType) -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert all(text.count(mark) == 1 for mark in report.MARKS)
