"""R2D2: a task that needs memory, beside an algorithm without one, and prioritized draws of sequences:
`make bench-recurrent`.

The first part trains with nothing set, inline with one thread: the same environment, steps and seeds for both. The
second compares samples of 64 sequences (40 steps of burn-in, 80 to learn from, starting every 40 steps, a stored state)
with public buffers. Those have no overlapping sequences, so each stores a sequence as one item, as their users do: that
holds every step three times, and a draw is one copy.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from _harness import Row, compared, interleave, report, say

import shoal
from shoal.replay import (
    Column,
    Prioritized,
    Replay,
    RowPriorities,
    SequenceView,
    ShardInfo,
    ShardReader,
    ShardWriter,
    create_shard,
    step_schema,
)
from shoal.types import EnvSpec

PACKAGES = ("cpprb", "gymnasium", "numba", "numpy", "tianshou", "torch")
STEPS, EPISODES = 40_000, 100
SOLVED = 0.9
"""The environment's own threshold. Training stops at 0.95 over 50 episodes."""
ROWS, LANES, BATCH = 1_000_000, 8, 64
LENGTH, BURN_IN, PERIOD, STATE = 80, 40, 40, 129
ALPHA, BETA = 0.9, 0.6
OBS = (4,)
Call = Callable[[], Any]


def trained(algo: str, seed: int, steps: int) -> tuple[float, int]:
    """The mean return of greedy episodes with the best weights, and the steps it took."""
    scenario = {"evaluation.episodes": 50, "evaluation.every_steps": 2_000, "env.kwargs.length": 10}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = shoal.train(
            "shoal/TMaze-v0", algo=algo, seed=seed, steps=steps, stop_return=0.95, runtime="inline", quiet=True,
            out=folder, settings=scenario,
        )  # fmt: skip
        assert run.summary is not None
        score = statistics.fmean(run.evaluate(EPISODES).returns)
        took = run.summary.env_steps
        say(f"  {algo}, seed {seed}: {score:.2f} after {took:,} steps, {time.perf_counter() - began:.0f} s")
        return score, took


def memory(quick: bool) -> list[Row]:
    """The worst seed of r2d2 counts, and the best one of apex-dqn."""
    seeds, steps = (1, 5_000) if quick else (5, STEPS)
    ours, theirs = ([trained(algo, seed, steps) for seed in range(1, seeds + 1)] for algo in ("r2d2", "apex-dqn"))
    worst, best = min(score for score, _ in ours), max(score for score, _ in theirs)
    what = f"T-maze of 10 cells, return of 1 at most: r2d2, worst of {seeds} seeds; apex-dqn, best of {seeds}"
    others = {f"r2d2, seed {seed}": score for seed, (score, _) in enumerate(ours, 1)}
    others |= {f"apex-dqn, seed {seed}": score for seed, (score, _) in enumerate(theirs, 1)}
    bar = f"r2d2 >= {SOLVED}, apex-dqn < 0.5"
    slowest = max(steps for _, steps in ours)
    return [
        Row(what, worst, best, "apex-dqn", None, bar, worst >= SOLVED and best < 0.5, others),
        Row(f"T-maze of 10 cells: steps of r2d2 until solved, slowest of {seeds} seeds", slowest),
    ]


class Shoal:
    """One full shard of eight lanes."""

    def __init__(self, rows: int, folder: Path) -> None:
        columns = (Column("state", "float16", (STATE,)), Column("priority", "float32"))
        self._schema = step_schema(EnvSpec("bench", OBS, "float32", 1, 6, ()), columns)
        create_shard(folder / "shard", ShardInfo(self._schema, rows // LANES, LANES))
        writer, rng, count = ShardWriter(folder / "shard"), np.random.default_rng(0), 500
        shape = (count, LANES)
        chunk: dict[str, Any] = {one.name: np.zeros((*shape, *one.shape), one.dtype) for one in self._schema.columns}
        chunk["obs"][:] = rng.random((*shape, *OBS))
        chunk["priority"][:] = rng.random(shape)
        chunk["terminated"][::200], chunk["boundary"][1::200] = True, 1
        while writer.head < rows // LANES + count:
            writer.append_chunk(chunk)
        self._reader = ShardReader(folder / "shard")

    def cycle(self, n: int) -> Call:
        view = SequenceView(
            self._schema, LENGTH, BURN_IN, at_start=("state",), period=PERIOD, priorities=RowPriorities(5, 0.9)
        )
        replay = Replay([self._reader], Prioritized(ALPHA), view, n, ring=1)
        priorities = np.random.default_rng(1).random(n, dtype=np.float32)

        def call() -> None:
            sample = replay.sample()
            replay.update_priorities(sample.keys, priorities)  # type: ignore[union-attr]

        return call


def items(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Sequences as items of a buffer: a step more of observations than of the rest."""
    steps = BURN_IN + LENGTH
    return {
        "obs": rng.random((count, steps + 1, *OBS), dtype=np.float32),
        "act": np.zeros((count, steps), np.int64),
        "rew": np.zeros((count, steps), np.float32),
        "done": np.zeros((count, steps), np.float32),
        "state": np.zeros((count, STATE), np.float16),
    }


class Cpprb:
    """cpprb.PrioritizedReplayBuffer with sequences as items."""

    def __init__(self, size: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        one = items(1, np.random.default_rng(0))
        columns = {name: {"shape": array.shape[1:], "dtype": array.dtype} for name, array in one.items()}
        self._buffer = PrioritizedReplayBuffer(size, columns, alpha=ALPHA)
        rng = np.random.default_rng(0)
        for _ in range(size // 500):
            self._buffer.add(**items(500, rng), priorities=rng.random(500))

    def cycle(self, n: int) -> Call:
        priorities = np.random.default_rng(1).random(n)
        return lambda: self._buffer.update_priorities(self._buffer.sample(n, beta=BETA)["indexes"], priorities)


class Tianshou:
    """tianshou.data.PrioritizedReplayBuffer with sequences as items."""

    def __init__(self, size: int) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer

        # Next observations are within the item: the buffer need not store them again.
        self._buffer = PrioritizedReplayBuffer(size, alpha=ALPHA, beta=BETA, ignore_obs_next=True)
        rng = np.random.default_rng(0)
        for start in range(0, size, 500):
            some = items(min(500, size - start), rng)
            for k in range(len(some["obs"])):
                info = {name: some[name][k] for name in ("act", "rew", "done", "state")}
                one = Batch(obs=some["obs"][k], act=0, rew=0.0, terminated=False, truncated=False, info=Batch(info))
                self._buffer.add(one)
        self._buffer.update_weight(np.arange(size), rng.random(size))

    def cycle(self, n: int) -> Call:
        priorities = np.random.default_rng(1).random(n)
        return lambda: self._buffer.update_weight(self._buffer.sample(n)[1], priorities)


def sequences(quick: bool) -> list[Row]:
    """Samples per second, with the update of their priorities."""
    rows = 40_000 if quick else ROWS
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=place))
    peers: dict[str, Any] = {"cpprb": Cpprb, "tianshou": Tianshou}
    try:
        calls = {"shoal": Shoal(rows, folder).cycle(BATCH)}
        for name, kind in peers.items():
            try:
                importlib.import_module(name)
            except ImportError:
                say(f"  {name} is not installed: left out")
                continue
            calls[name] = kind(rows // PERIOD).cycle(BATCH)
        what = f"{BATCH} sequences of {BURN_IN} + {LENGTH} steps of {rows:,} and their priorities: batches/s"
        measured = interleave(what, calls, seconds=0.3 if quick else 1.0, rounds=3 if quick else 9)
        row = compared(what, measured, at_least=2.0)
        row.bar = ">= 2x"  # open where no peer is installed
        return [row]
    finally:
        shutil.rmtree(folder)


PARTS = {"memory": memory, "sequences": sequences}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or PARTS:
        say(f"{name} ({time.strftime('%H:%M:%S')})")
        rows += PARTS[name](options.quick)
    whole = not options.quick and not options.only
    name = "recurrent" if whole else "recurrent-partial"
    holds = report(name, rows, PACKAGES, {"quick": options.quick, "only": options.only, "steps": STEPS})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
