"""The full system: two processes write Atari steps as fast as they can while a learner samples batches of 512.

Shoal: two shards, one Replay. Its writers run without a limit, or at a multiple of the Ray actor's rate. The peer is a
Ray actor, as efficient as we can make it: storage and output buffers are allocated once, `np.take(out=)`, the learner
has 2 batches in flight, each producer at most 2 chunks of 50. It has two variants: it stores stacked transitions, as
most replay actors do, or each frame once, like Shoal. It samples uniformly and ignores episode ends.
"""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Measured, say
from _replay_contenders import ALPHA, GAMMA, Case, steps

from shoal.replay import (
    Column,
    NStepView,
    Prioritized,
    Replay,
    ShardInfo,
    ShardReader,
    ShardWriter,
    create_shard,
    step_schema,
)

WRITERS, CHUNK, BATCH, N_STEP, IN_FLIGHT = 2, 50, 512, 3, 2
FRAME = (84, 84)
HELD = 15
"""The limited writers push this multiple of the Ray actor's best rate: well above the bar of 10."""
CASE = Case((4, *FRAME), "uint8", 4, 0, 2)


def _write(path: Path, go: Any, pace: Any) -> None:
    """A writer process: writes while `go` is 1, ends when it is 2. `pace` is in steps per second, 0 for no limit."""
    writer, chunk, due = ShardWriter(path), steps(CASE, CHUNK, 1), time.perf_counter()
    while go.value != 2:
        now = time.perf_counter()
        if go.value == 1 and (pace.value == 0 or now >= due):
            writer.append_chunk(chunk)
            due = max(due, now - 0.1) + CHUNK / (pace.value or 1e9)
        else:
            time.sleep(0.0005)


class ShoalSide:
    """Two writer processes, their shards, one prioritized replay."""

    def __init__(self, rows: int, threads: int) -> None:
        place = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=place))
        schema = step_schema(CASE.spec, (Column("priority", "float32"),))
        context = multiprocessing.get_context("spawn")
        self._go, self._pace = context.Value("i", 1, lock=False), context.Value("d", 0.0, lock=False)
        self._writers, self._readers = [], []
        for index in range(WRITERS):
            path = self.folder / str(index)
            create_shard(path, ShardInfo(schema, rows // WRITERS, 1))
            self._readers.append(ShardReader(path))
            self._writers.append(context.Process(target=_write, args=(path, self._go, self._pace), daemon=True))
            self._writers[-1].start()
        view = NStepView(schema, N_STEP, GAMMA)
        self.replay = Replay(self._readers, Prioritized(ALPHA), view, BATCH, threads=threads)
        self._priorities = np.random.default_rng(1).random(BATCH, dtype=np.float32)
        while any(reader.head < 2 * reader.rows for reader in self._readers):  # full, and every page touched
            time.sleep(0.05)
        self._go.value = 0

    def run(self, seconds: float, pace: float = 0.0) -> tuple[float, float]:
        """Batches and inserted steps per second. Both writers together write at most `pace`."""
        self._pace.value = pace / WRITERS
        self._go.value, batches, before = 1, 0, sum(reader.steps for reader in self._readers)
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            sample = self.replay.sample()
            if sample is not None:
                self.replay.update_priorities(sample.keys, self._priorities)
                batches += 1
        inserted = sum(reader.steps for reader in self._readers) - before
        self._go.value = 0
        return batches / elapsed, inserted / elapsed

    def close(self) -> None:
        self._go.value = 2
        for writer in self._writers:
            writer.join(5)
        shutil.rmtree(self.folder)


class _Store:
    """The Ray actor's replay."""

    def __init__(self, rows: int, frames_once: bool) -> None:
        shape = FRAME if frames_once else (4, *FRAME)
        self._once, self._rows, self._next, self._held = frames_once, rows, 0, 0
        self._columns = [np.zeros((rows, *shape), np.uint8) for _ in range(1 if frames_once else 2)]
        self._small = np.zeros((rows, 3), np.float32)  # action, reward, discount
        self._outs = [np.zeros((BATCH, 4, *FRAME), np.uint8) for _ in range(2)]
        self._out_small = np.zeros((BATCH, 3), np.float32)
        self._rng = np.random.default_rng(0)
        self.inserted = 0

    def push(self, small: np.ndarray, *columns: np.ndarray) -> None:
        count = len(small)
        if self._next + count > self._rows:
            self._next = 0
        part = slice(self._next, self._next + count)
        self._small[part] = small
        for column, values in zip(self._columns, columns, strict=True):
            column[part] = values
        self._next += count
        self._held = max(self._held, self._next)
        self.inserted += count

    def count(self) -> int:
        return self.inserted

    def sample(self) -> tuple[np.ndarray, ...]:
        index = self._rng.integers(3, self._held - N_STEP, BATCH)
        np.take(self._small, index, axis=0, out=self._out_small, mode="clip")
        if self._once:
            stack = index[:, None] + np.arange(-3, 1)
            np.take(self._columns[0], stack, axis=0, out=self._outs[0], mode="clip")
            np.take(self._columns[0], stack + N_STEP, axis=0, out=self._outs[1], mode="clip")
        else:
            for column, out in zip(self._columns, self._outs, strict=True):
                np.take(column, index, axis=0, out=out, mode="clip")
        return (*self._outs, self._out_small)


class _Producer:
    """Sends chunks for a while, with a bounded number of calls in flight."""

    def __init__(self, store: Any, frames_once: bool) -> None:
        rng = np.random.default_rng(0)
        shape = FRAME if frames_once else (4, *FRAME)
        self._columns = [rng.integers(0, 256, (CHUNK, *shape), dtype=np.uint8) for _ in range(1 if frames_once else 2)]
        self._store, self._small = store, rng.random((CHUNK, 3), dtype=np.float32)

    def run(self, seconds: float) -> None:
        import ray

        pending: list[Any] = []
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            if len(pending) >= IN_FLIGHT:
                _, pending = ray.wait(pending, num_returns=1)
            pending.append(self._store.push.remote(self._small, *self._columns))
        ray.get(pending)


class RaySide:
    """The Ray actor, its producers, and a learner with 2 batches in flight."""

    def __init__(self, rows: int, *, frames_once: bool) -> None:
        import ray

        self._ray = ray
        self._store = ray.remote(num_cpus=0)(_Store).remote(rows, frames_once)
        producer = ray.remote(num_cpus=0)(_Producer)
        self._producers = [producer.remote(self._store, frames_once) for _ in range(WRITERS)]
        ray.get([one.run.remote(3.0) for one in self._producers])

    def run(self, seconds: float) -> tuple[float, float]:
        """Batches and inserted steps per second."""
        ray, before, batches = self._ray, self._ray.get(self._store.count.remote()), 0
        pushing = [one.run.remote(seconds) for one in self._producers]
        start = time.perf_counter()
        ordered = [self._store.sample.remote() for _ in range(2)]
        while time.perf_counter() - start < seconds:
            batch = ray.get(ordered.pop(0))
            ordered.append(self._store.sample.remote())
            batches += len(batch[0]) // BATCH
        elapsed = time.perf_counter() - start
        inserted = ray.get(self._store.count.remote()) - before
        ray.get([*pushing, *ordered])
        return batches / elapsed, inserted / elapsed

    def close(self) -> None:
        for actor in (*self._producers, self._store):
            self._ray.kill(actor)


def measure(rows: int, seconds: float, rounds: int, threads: int) -> dict[str, dict[str, Measured]]:
    """Interleaved rates of batches and inserted steps, per contender."""
    import ray

    say("  starting Ray and the writers")
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=1 << 30, log_to_driver=False)
    sides: list[Any] = []
    try:
        stacked, once = RaySide(min(rows, 20_000), frames_once=False), RaySide(rows, frames_once=True)
        shoal = ShoalSide(rows, threads)
        sides = [stacked, once, shoal]
        taken = [0.0]  # steps/s of the Ray actors so far
        runs: dict[str, Callable[[], tuple[float, float]]] = {
            "ray, stacked": lambda: stacked.run(seconds),
            "ray, frames once": lambda: once.run(seconds),
            "shoal, paced": lambda: shoal.run(seconds, HELD * max(taken)),
            "shoal": lambda: shoal.run(seconds),
        }
        found: dict[str, dict[str, Measured]] = {"batches": {}, "steps": {}}
        for index, (name, run) in itertools.product(range(rounds + 1), runs.items()):
            batches, inserted = run()
            say(f"  round {index}, {name}: {batches:,.0f} batches/s, {inserted:,.0f} steps/s")
            if name.startswith("ray"):
                taken.append(inserted)
            if index:  # the first warms up
                found["batches"].setdefault(name, Measured()).rates.append(batches)
                found["steps"].setdefault(name, Measured()).rates.append(inserted)
        say(f"  rows redrawn because a writer overwrote them: {shoal.replay.redrawn:,}")
        return found
    finally:
        for side in sides:
            side.close()
        ray.shutdown()
