"""The replays that benchmarks/replay.py compares, behind one small interface.

A contender has some of `insert(k)`, `sample(n)`, `update(n)`, `cycle(n)` (sample n, then update their priorities) and
`uniform(n)`. Each returns a callable that does it once. All contenders are full and hold the same number of
transitions.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.replay import (
    Column,
    NStepView,
    Prioritized,
    Replay,
    ShardInfo,
    ShardReader,
    ShardWriter,
    Uniform,
    create_shard,
    step_schema,
)
from shoal.types import EnvSpec

Call = Callable[[], Any]
ALPHA, BETA, GAMMA = 0.6, 0.4, 0.99
FILL = 500
LANES = 8
"""Lanes of the sampled shard, as an actor with eight environments writes it."""


@dataclass(frozen=True)
class Case:
    """The kind of data that is stored."""

    obs_shape: tuple[int, ...]
    obs_dtype: str
    stack: int
    rows: int
    threads: int

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("bench", self.obs_shape, self.obs_dtype, self.stack, 6, ())

    def observations(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Random observations, as the policy sees them."""
        if self.obs_dtype == "uint8":
            return rng.integers(0, 256, (count, *self.obs_shape), dtype=np.uint8)
        return rng.random((count, *self.obs_shape), dtype=np.float32)


def steps(case: Case, count: int, lanes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A chunk of a shard: episodes of about 200 steps."""
    rng = np.random.default_rng(seed)
    shape = (count, lanes)
    frames = case.observations(count * lanes, rng).reshape(*shape, *case.obs_shape)
    terminated = rng.random(shape) < 0.005
    boundary = np.zeros(shape, np.uint8)
    boundary[1:] = terminated[:-1]
    return {
        "obs": np.ascontiguousarray(frames[:, :, -1]) if case.stack > 1 else frames,
        "action": rng.integers(0, 6, shape),
        "reward": rng.random(shape, dtype=np.float32),
        "terminated": terminated,
        "truncated": np.zeros(shape, np.bool_),
        "boundary": boundary,
        "weights_version": np.ones(shape, np.uint32),
        "priority": rng.random(shape, dtype=np.float32),
    }


class Shoal:
    """n-step transitions of one shard, and small shards with one lane for inserting single steps."""

    def __init__(self, case: Case, n_step: int, beside: Shoal | None = None) -> None:
        """`beside`: another instance whose shard is shared."""
        self._case, self._n_step, self._owner = case, n_step, beside is None
        self.schema = step_schema(case.spec, (Column("priority", "float32"),))
        if beside is None:
            place = "/dev/shm" if Path("/dev/shm").is_dir() else None
            self.folder = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=place))
            self._reader = self._filled("sampled", case.rows // LANES, LANES)
        else:
            self.folder, self._reader = beside.folder, beside._reader

    def _filled(self, name: str, rows: int, lanes: int) -> ShardReader:
        create_shard(self.folder / name, ShardInfo(self.schema, rows, lanes))
        writer = ShardWriter(self.folder / name)
        chunk = steps(self._case, min(FILL, rows), lanes)
        while writer.head < rows + FILL:  # one full turn, so that the ring is full and all pages are touched
            writer.append_chunk(chunk)
        self._writer = writer
        return ShardReader(self.folder / name)

    def _replay(self, selector: Any, batch: int) -> Replay:
        view = NStepView(self.schema, self._n_step, GAMMA)
        # One batch in the ring, as for all contenders: a batch is released before the next one is sampled.
        replay = Replay([self._reader], selector, view, batch, ring=1, threads=self._case.threads)
        replay.refresh()
        return replay

    def insert(self, count: int, *, indexed: bool) -> Call:
        """Appends. With `indexed`, a prioritized reader also indexes the rows, which is normally the learner's work."""
        reader = self._filled(f"inserted-{count}-{indexed}", 20_000 if self._case.stack == 1 else 4_000, 1)
        writer, chunk = self._writer, steps(self._case, count, 1)
        replay = Replay([reader], Prioritized(ALPHA), NStepView(self.schema, self._n_step, GAMMA), 16)
        row = {name: column[0] for name, column in chunk.items()}

        def call() -> None:
            if count == 1:
                writer.append(row)
            else:
                writer.append_chunk(chunk)
            if indexed:
                replay.refresh()

        return call

    def sample(self, n: int) -> Call:
        return self._replay(Prioritized(ALPHA), n).sample

    def update(self, n: int) -> Call:
        replay = self._replay(Prioritized(ALPHA), n)
        drawn = itertools.cycle([replay.sample().keys for _ in range(32)])  # type: ignore[union-attr]
        priorities = np.random.default_rng(1).random(n, dtype=np.float32)
        return lambda: replay.update_priorities(next(drawn), priorities)

    def cycle(self, n: int) -> Call:
        replay = self._replay(Prioritized(ALPHA), n)
        priorities = np.random.default_rng(1).random(n, dtype=np.float32)

        def call() -> None:
            sample = replay.sample()
            replay.update_priorities(sample.keys, priorities)  # type: ignore[union-attr]

        return call

    def uniform(self, n: int) -> Call:
        return self._replay(Uniform(), n).sample

    @property
    def bytes_per_step(self) -> float:
        """Bytes of a full shard's files, per step."""
        size = sum(file.stat().st_blocks * 512 for file in (self.folder / "sampled").iterdir())
        return size / (self._case.rows // LANES * LANES)

    def close(self) -> None:
        if self._owner:
            shutil.rmtree(self.folder)


class Cpprb:
    """cpprb.PrioritizedReplayBuffer, obs and next_obs stored."""

    def __init__(self, case: Case) -> None:
        from cpprb import PrioritizedReplayBuffer

        obs = {"shape": case.obs_shape, "dtype": np.dtype(case.obs_dtype)}
        env = {"obs": obs, "next_obs": obs, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        self._buffer = PrioritizedReplayBuffer(case.rows, env, alpha=ALPHA)
        self._case, self._rng = case, np.random.default_rng(0)
        fill = self.insert(FILL)
        for _ in range(case.rows // FILL + 1):
            fill()

    def insert(self, count: int) -> Call:
        obs, following = self._case.observations(count, self._rng), self._case.observations(count, self._rng)
        act, rew, done = np.zeros((count, 1), np.int64), np.ones((count, 1)), np.zeros((count, 1))
        priorities = self._rng.random(count)
        return lambda: self._buffer.add(obs=obs, act=act, rew=rew, next_obs=following, done=done, priorities=priorities)

    def sample(self, n: int) -> Call:
        return lambda: self._buffer.sample(n, beta=BETA)

    def update(self, n: int) -> Call:
        drawn = itertools.cycle([self._buffer.sample(n, beta=BETA)["indexes"].copy() for _ in range(32)])
        priorities = self._rng.random(n)
        return lambda: self._buffer.update_priorities(next(drawn), priorities)

    def cycle(self, n: int) -> Call:
        priorities = self._rng.random(n)
        return lambda: self._buffer.update_priorities(self._buffer.sample(n, beta=BETA)["indexes"], priorities)


class Tianshou:
    """tianshou.data.PrioritizedReplayBuffer, obs and obs_next stored. It takes one transition per call."""

    def __init__(self, case: Case) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer

        self._batch, self._case, self._rng = Batch, case, np.random.default_rng(0)
        self.buffer = PrioritizedReplayBuffer(case.rows, alpha=ALPHA, beta=BETA)
        self.insert(1)()
        meta = self.buffer._meta  # filled directly, because a million calls of `add` take a minute
        for start in range(0, case.rows, FILL):
            part = slice(start, min(start + FILL, case.rows))
            for column in (meta.obs, meta.obs_next):
                column[part] = case.observations(part.stop - part.start, self._rng)
        self.buffer._size, self.buffer._insertion_idx = case.rows, 0
        self.buffer.update_weight(np.arange(case.rows), self._rng.random(case.rows))

    def insert(self, count: int) -> Call:
        obs = self._case.observations(2, self._rng)
        one = self._batch(obs=obs[0], obs_next=obs[1], act=0, rew=1.0, terminated=False, truncated=False)

        def call() -> None:
            for _ in range(count):
                self.buffer.add(one)

        return call

    def sample(self, n: int) -> Call:
        return lambda: self.buffer.sample(n)

    def update(self, n: int) -> Call:
        drawn = itertools.cycle([self.buffer.sample_indices(n) for _ in range(32)])
        priorities = self._rng.random(n)
        return lambda: self.buffer.update_weight(next(drawn), priorities)

    def cycle(self, n: int) -> Call:
        priorities = self._rng.random(n)
        return lambda: self.buffer.update_weight(self.buffer.sample(n)[1], priorities)


class Sb3:
    """stable_baselines3's ReplayBuffer: uniform only."""

    def __init__(self, case: Case, rows: int) -> None:
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer

        self._case, self._rng = case, np.random.default_rng(0)
        space = Box(0, 255 if case.stack > 1 else 1, case.obs_shape, np.dtype(case.obs_dtype).type)
        self._buffer = ReplayBuffer(rows, space, Discrete(6), device="cpu")
        for start in range(0, rows, FILL):
            count = min(FILL, rows - start)
            self._buffer.observations[start : start + count, 0] = case.observations(count, self._rng)
            self._buffer.next_observations[start : start + count, 0] = case.observations(count, self._rng)
        self._buffer.full = True

    def insert(self, count: int) -> Call:
        obs = self._case.observations(2, self._rng)[:, None]
        action, reward, done = np.zeros((1, 1)), np.ones(1), np.zeros(1)

        def call() -> None:
            for _ in range(count):
                self._buffer.add(obs[0], obs[1], action, reward, done, [{}])

        return call

    def uniform(self, n: int) -> Call:
        return lambda: self._buffer.sample(n)


class Limit:
    """The memory limit: only numpy's `take` of as many observation pairs into preallocated buffers."""

    def __init__(self, obs: np.ndarray, following: np.ndarray, threads: int) -> None:
        self._columns, self._threads = (obs, following), threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1))

    def gather(self, n: int) -> Call:
        rng = np.random.default_rng(0)
        drawn = itertools.cycle([rng.integers(0, len(self._columns[0]), n) for _ in range(32)])
        outs = [np.zeros((n, *column.shape[1:]), column.dtype) for column in self._columns]
        edges = [n * k // self._threads for k in range(self._threads + 1)]
        parts = [slice(low, high) for low, high in itertools.pairwise(edges)]

        def take(index: np.ndarray, part: slice) -> None:
            for column, out in zip(self._columns, outs, strict=True):
                np.take(column, index[part], axis=0, out=out[part], mode="clip")

        def call() -> None:
            index = next(drawn)
            others = [self._pool.submit(take, index, part) for part in parts[1:]]
            take(index, parts[0])
            for other in others:
                other.result()

        return call
