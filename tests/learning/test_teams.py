"""Agents learn together, and what one of them knows reaches another one only if they talk."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal

pytestmark = pytest.mark.learning
SETTINGS = {
    "env.lanes": 8,
    "evaluation.episodes": 50,
    "evaluation.every_steps": 100_000,
    "algorithm.cell_size": 32,
    "algorithm.head_size": 16,
    "algorithm.hidden": [32],
    "replay.min_size": 1000,
}


@pytest.mark.parametrize("communication", ["neighbours", "none"])
def test_what_one_knows_reaches_another(tmp_path: Path, communication: str) -> None:
    """Each of two agents has to name what only the other one sees: 8 of 8 points, or 2 by guessing among four."""
    run = shoal.train(
        "tests.teams:Whisper",
        algo="comm-dqn",
        steps=20_000,
        runtime="inline",
        quiet=True,
        out=tmp_path,
        settings=SETTINGS | {"algorithm.communication": communication},
    )
    reached = run.evaluate(100, seed=7).mean
    assert reached > 6 if communication == "neighbours" else reached < 4
