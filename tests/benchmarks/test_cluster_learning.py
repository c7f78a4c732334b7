"""`make bench-cluster ARGS="--only learning"`: the order, the store that it goes on from, the verdict, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import psutil
import pytest

import shoal

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RUN = {"seconds": 1.0, "curve": [[1, 10.0]]}


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import _cluster_learning  # type: ignore[import-not-found]

    return _cluster_learning  # type: ignore[no-any-return]


def results(learning: ModuleType, three: list[int | None], one: list[int | None], task: str = "pendulum_td3") -> Any:
    def runs(nodes: int, steps: list[int | None]) -> dict[Any, dict[str, Any]]:
        return {
            learning.Trial(task, seed, nodes): {"steps": value, "env_steps": value or 100_000, **RUN}
            for seed, value in enumerate(steps, start=1)
        }

    return runs(3, three) | runs(1, one)


def test_every_task_has_a_seed_before_any_has_the_next_and_both_sides_alternate(learning: ModuleType) -> None:
    every = learning.trials(learning.TASKS, 3)
    assert len(set(every)) == len(every) == 13 * 3 * 2
    quick = [trial.task in learning.QUICK for trial in every]
    assert quick == sorted(quick) and sum(quick) == 2 * 3 * 2, "those with a better measurement come last"
    main = every[: 11 * 3 * 2]
    assert [trial.seed for trial in main] == sorted(trial.seed for trial in main)
    pairs = list(zip(main[::2], main[1::2], strict=True))
    assert all((a.task, a.seed) == (b.task, b.seed) for a, b in pairs)
    assert [a.nodes for a, _ in pairs] == [3] * 11 + [1] * 11 + [3] * 11
    assert len({trial.task for trial in every[:22]}) == 11


def test_a_paced_environment_is_slow_until_the_file_exists(learning: ModuleType, tmp_path: Path) -> None:
    from _paced_env import SECONDS, Paced  # type: ignore[import-not-found]

    env = Paced(gymnasium.make("CartPole-v1"), until=str(tmp_path / "go"))
    env.reset(seed=0)
    began = time.perf_counter()
    env.step(0)
    assert time.perf_counter() - began >= SECONDS
    (tmp_path / "go").touch()
    env.step(0)
    (tmp_path / "go").unlink()  # it does not look again
    began = time.perf_counter()
    env.step(0)
    assert time.perf_counter() - began < SECONDS


def test_the_store_goes_on_with_what_is_missing(learning: ModuleType, tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"
    solved, missed, failed, cut = wanted = learning.trials(["cartpole_ppo", "pendulum_sac"], 1)
    assert learning.stored(store) == {} and learning.not_there(wanted, {}) == wanted
    found = {solved: {"steps": 5}, missed: {"steps": None}, failed: {"error": "exit code 1"}}
    lines = [json.dumps({**vars(trial), **one}) for trial, one in found.items()]
    store.write_text("\n".join([*lines, json.dumps(vars(cut))[:30]]))  # a crash in the middle of a line
    assert learning.not_there(wanted, learning.stored(store)) == [failed, cut]
    with store.open("a") as file:
        file.write("\n" + json.dumps({**vars(failed), "steps": 7}) + "\n")
    assert learning.stored(store)[failed]["steps"] == 7
    assert learning.not_there(wanted, learning.stored(store)) == [cut]


def test_the_bar_wants_every_seed_and_a_median_within_the_spread(learning: ModuleType) -> None:
    def verdict(three: list[int | None], one: list[int | None]) -> Any:
        return learning.judged(results(learning, three, one))[0].holds

    one: list[int | None] = [10_000, 20_000, 30_000, 40_000, 50_000]
    assert verdict([1_000, 2_000, 50_000, 90_000, 90_000], one) is True
    assert verdict([1_000, 2_000, 50_001, 90_000, 90_000], one) is False, "the median is above all of one node"
    assert verdict([1_000, 2_000, 3_000, 4_000, None], one) is False, "one does not solve it"
    assert verdict([1_000] * 4, one) is None and verdict([1_000] * 5, one[:4]) is None
    assert verdict([1_000, None], one) is False, "more seeds cannot mend that"


def test_a_ratio_comes_with_its_uncertainty(learning: ModuleType) -> None:
    one: list[int | None] = [10_000, 20_000, 30_000, 40_000, 50_000]
    twice = [2 * (steps or 0) for steps in one]
    apart, both = learning.judged(results(learning, twice, one))
    assert apart.ratio == both.shoal == pytest.approx(2)
    assert apart.others["ratio 95 % from"] < 2 < apart.others["to"] and apart.others["p (exact rank test)"] > 0.05
    assert apart.others["at the first look"] == 5
    assert apart.shoal == 60_000 and apart.best_peer == 30_000
    same = results(learning, one, one, "pendulum_sac") | results(learning, twice, one)
    assert learning.judged(same)[-1].shoal == pytest.approx(2**0.5), "tasks count alike"
    missed = learning.judged(results(learning, [None] * 5, one))[0]
    assert missed.others["p (exact rank test)"] == pytest.approx(2 / 252), "a miss is later than every step"
    failed = results(learning, twice, one) | {learning.Trial("pendulum_td3", 1, 3): {"error": "exit code 1"}}
    assert learning.judged(failed)[0].holds is None


def test_a_result_is_the_step_of_the_weights_that_reached_the_goal(learning: ModuleType, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"algo": "apex-dqn", "runtime": "inline", "out": tmp_path, "quiet": True}
    asked["settings"] = {"evaluation.episodes": 1, "evaluation.every_steps": 200, "replay.min_size": 100}
    solved = shoal.train("CartPole-v1", steps=5_000, stop_return=8, **asked)
    found = learning.outcome(solved.path, 1)
    assert 0 < found["steps"] <= found["env_steps"] < 5_000 and found["curve"][-1][0] == found["steps"]
    missed = shoal.train("CartPole-v1", steps=600, stop_return=600, **asked)
    found = learning.outcome(missed.path, 1)
    assert found["steps"] is found["seconds"] is None and found["env_steps"] >= 600 and found["curve"]
    with pytest.raises((ValueError, OSError)):
        learning.outcome(missed.path, 3)


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "cluster.py"), "--only", "learning", "--store", str(tmp_path / "store")]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": "/tmp"}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=env) as bench:
        family: set[psutil.Process] = set()
        deadline = time.monotonic() + 120
        while not any("ray::Host" in " ".join(_words(one)) for one in family):
            assert time.monotonic() < deadline and bench.poll() is None
            family = set(psutil.Process(bench.pid).children(recursive=True))
            time.sleep(0.2)
        bench.send_signal(signal.SIGINT)
        assert "nothing is left running" in bench.communicate(timeout=90)[1]
    assert bench.returncode == 130
    gone, alive = psutil.wait_procs(family, 20)
    assert gone and not alive
    assert not (tmp_path / "store").exists(), "an interrupted run is no result"


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
