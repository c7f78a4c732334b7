"""Run folders with the curves a test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

EVAL = "eval/mean_reward"


def write_run(
    path: Path,
    values: Sequence[float | None],
    *,
    every: int = 10,
    name: str = EVAL,
    foreign: float | None = None,
    seed: int = 0,
    status: str | None = "finished",
    env: str = "CartPole-v1",
    tail: str = "",
) -> Path:
    """A run with a reading every so many steps, from step 0; a step takes half a second."""
    path.mkdir(parents=True)
    lines = []
    for number, value in enumerate(values):
        row: dict[str, float | None] = {"step": number * every, "wall": number * every / 2, name: value}
        if foreign is not None:
            row |= {"share/foreign_fraction": foreign, "share/peer/fraction": foreign / 2}
        lines.append(json.dumps(row) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines) + tail)
    (path / "run.json").write_text(json.dumps({"seed": seed}))
    (path / "config.yaml").write_text(f"env: {{id: {env}}}\n")
    if status is not None:
        (path / "summary.json").write_text(json.dumps({"status": status}))
    return path


def write_group(path: Path, launches: Sequence[Sequence[Sequence[float | None]]], foreign: float | None = None) -> Path:
    """`path/launch_0/run_0`, and so on."""
    for number, launch in enumerate(launches):
        for index, values in enumerate(launch):
            write_run(path / f"launch_{number}" / f"run_{index}", values, foreign=foreign, seed=index)
    return path
