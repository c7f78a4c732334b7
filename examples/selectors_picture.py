"""Plots which sequences each selector samples from one small stream, for docs/replay-mixtures.md.

The stream is a random walk of 300 states in the plane, oldest pale, newest dark. The recorded feature of a state is its
position. The current network's features have changed, more for positions further right. Sequences have 6 steps, and
every selector samples batches of 8 of them.

    python examples/selectors_picture.py                    writes docs/images/selectors.png
    python examples/selectors_picture.py picture.png
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from shoal.replay import (
    Attentive,
    Column,
    Elite,
    Fifo,
    Prioritized,
    Selector,
    ShardInfo,
    ShardReader,
    ShardWriter,
    Span,
    Uniform,
    create_shard,
    step_schema,
)
from shoal.types import EnvSpec

matplotlib.use("agg")
from matplotlib import pyplot as plt

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "selectors.png"
ROWS, STEPS, BATCH = 300, 6, 8
SPAN = Span(before=0, after=STEPS, crosses_episodes=True)
SURPRISE = np.array([-1.8, 1.2])
"""Position where errors, and so priorities, are large."""


def walk(rng: np.random.Generator) -> Any:
    """Returns [ROWS, 2] positions of a random walk."""
    place, pace, path = np.array([-2.0, -1.0]), np.zeros(2), []
    for _ in range(ROWS):
        pace = 0.85 * pace + rng.normal(0, 0.13, 2) - 0.015 * place
        place = place + pace
        path.append(place)
    return np.array(path, np.float32)


def change(places: Any) -> Any:
    """How much the network's feature of a position has changed since it was recorded."""
    return 2.0 / (1.0 + np.exp(-2.0 * np.asarray(places)[..., 0]))


def features(places: Any) -> Any:
    """The current network: [M, 2] positions to [M, 2] features. The recorded features are the positions themselves."""
    moved = np.array(places, np.float32)
    moved[:, 0] += change(places)
    return moved


def write(path: Any, folder: Path) -> ShardReader:
    """A shard with these states, as an actor would write it."""
    spec = EnvSpec("Walk-v0", (2,), "float32", frame_stack=1, num_actions=2, action_shape=())
    schema = step_schema(spec, (Column("feature", "float16", (2,)), Column("priority", "float32")))
    create_shard(folder / "shard_000", ShardInfo(schema, rows=2 * ROWS, lanes=1))
    writer = ShardWriter(folder / "shard_000")
    rows = {column.name: np.zeros((ROWS, 1, *column.shape), column.dtype) for column in schema.columns}
    rows["obs"][:, 0] = rows["feature"][:, 0] = path
    surprise = np.exp(-np.square(path - SURPRISE).sum(axis=1))
    rows["priority"][STEPS:, 0] = surprise[:-STEPS]  # the last row of a sequence holds its priority
    writer.append_chunk(rows)
    return ShardReader(folder / "shard_000")


def picked(selector: Selector, shard: ShardReader, batches: int) -> Counter[int]:
    """The starts of the sequences that a selector samples, with their counts."""
    rng, starts = np.random.default_rng(1), Counter[int]()
    selector.attach(shard, SPAN)
    for _ in range(batches):
        selector.refresh()
        assert selector.ready(BATCH)
        starts.update(selector.select(BATCH, rng).keys.logical.tolist())
    return starts


def main(file: str | Path = PICTURE) -> dict[str, Counter[int]]:
    """Plots all selectors; returns the sampled starts per panel."""
    path = walk(np.random.default_rng(12))
    constant: dict[str, Any] = {"candidates": 6.0, "anneal": 1e9}  # lambda stays constant
    panels: dict[str, tuple[Selector, int]] = {
        "uniform": (Uniform(), 12),
        "newest, fraction 0.2": (Uniform(newest=0.2), 12),
        "fifo, three batches": (Fifo(), 3),
        "prioritized, surprise at ×": (Prioritized(alpha=1.0), 12),
        "attentive, the actor is at ★": (Attentive(features, **constant), 12),
        **{f"elite, strategy {number}": (Elite(features, strategy=number, **constant), 12) for number in (1, 2, 3, 4)},
    }
    with tempfile.TemporaryDirectory() as folder:
        shard = write(path, Path(folder))
        found = {title: picked(selector, shard, batches) for title, (selector, batches) in panels.items()}
    draw(path, found, Path(file))
    return found


def draw(path: Any, found: dict[str, Counter[int]], file: Path) -> None:
    """One panel per selector."""
    figure, axes = plt.subplots(3, 3, figsize=(10, 9.4), sharex=True, sharey=True, layout="constrained")
    low, high = path.min(axis=0) - 0.4, path.max(axis=0) + 0.4
    x, y = np.meshgrid(np.linspace(low[0], high[0], 60), np.linspace(low[1], high[1], 60))
    for axis, (title, starts) in zip(axes.flat, found.items(), strict=True):
        if title.startswith("elite"):
            axis.contourf(x, y, change(np.stack([x, y], axis=-1)), levels=12, cmap="Oranges", alpha=0.45)
        axis.plot(*path.T, color="0.85", linewidth=0.8, zorder=1)
        axis.scatter(*path.T, c=np.arange(ROWS), cmap="Greys", vmin=-0.5 * ROWS, vmax=1.1 * ROWS, s=6, zorder=2)
        places = path[list(starts)]
        axis.scatter(*places.T, s=[24 * times for times in starts.values()], color="tab:blue", alpha=0.75, zorder=3)
        if "×" in title:
            axis.plot(*SURPRISE, "x", color="tab:red", markersize=11, markeredgewidth=2.5, zorder=4)
        if "★" in title:
            axis.plot(*path[-1], "*", color="tab:red", markersize=15, zorder=4)
        axis.set_title(title, fontsize=11)
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
    figure.savefig(file, dpi=80, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    main(*sys.argv[1:2])
