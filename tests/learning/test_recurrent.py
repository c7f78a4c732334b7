"""R2D2 remembers, with an LSTM and with a GRU; an algorithm without memory does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal

pytestmark = pytest.mark.learning
SHORT = {"env.kwargs.length": 4, "evaluation.episodes": 40, "evaluation.every_steps": 2_000}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_short_t_maze(tmp_path: Path, cell: str) -> None:
    run = shoal.train(
        "shoal/TMaze-v0", algo="r2d2", runtime="inline", steps=40_000, stop_return=0.95, quiet=True, out=tmp_path,
        settings={**SHORT, "algorithm.cell": cell},
    )  # fmt: skip
    assert run.summary is not None and run.summary.status == "solved", run.summary
    env, policy_state = run.make_env(), None
    obs, _ = env.reset(seed=1)
    ended, total, first = False, 0.0, True
    while not ended:  # `predict` carries the state
        action, policy_state = run.predict(obs, state=policy_state, episode_start=first)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, ended, first = total + float(reward), terminated or truncated, False
    assert total == 1.0


def test_without_memory_there_is_no_way(tmp_path: Path) -> None:
    run = shoal.train(
        "shoal/TMaze-v0", algo="apex-dqn", runtime="inline", steps=10_000, stop_return=0.95, quiet=True, out=tmp_path,
        settings=SHORT,
    )  # fmt: skip
    assert run.summary is not None and run.summary.status != "solved"
    assert abs(sum(run.evaluate(200).returns) / 200) < 0.4
