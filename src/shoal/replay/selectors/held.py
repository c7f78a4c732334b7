"""HeldSequences: a bounded set of consecutive sequences; when it is full, each new one replaces another.

It holds keys, not rows, in the reader's process. Sequences whose rows the writer reaches are removed too, so a ring
must be longer than what is held.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector, safe_from
from shoal.replay.shard import ShardReader
from shoal.replay.stretches import Stretches
from shoal.replay.views import Span
from shoal.types import Keys, Selection

Judge = Callable[[Keys], npt.NDArray[np.float32]]
"""[M] distances of sequences; the furthest is replaced."""
AT_ONCE = 16
"""New sequences whose candidates for removal are judged together, in one call of the network."""


class HeldSequences(Selector):
    """Up to `capacity` sequences, all equally likely.

    When it is full, a new sequence replaces the oldest one. With a judge it replaces the furthest of `sample` sequences
    drawn without replacement (elite insertion).
    """

    name = "held"

    def __init__(self, capacity: int, judge: Judge | None = None, sample: int = 20) -> None:
        """Args:
        capacity: sequences held.
        judge: the distances that decide which sequence is replaced; None: the oldest is.
        sample: how many are judged for each new sequence.
        """
        if capacity < 1 or sample < 1:
            raise ConfigError(f"capacity and insertion_sample must be at least 1; got {capacity} and {sample}.")
        self._capacity, self._judge, self._sample = capacity, judge, min(sample, capacity)
        self._stretches: list[Stretches] = []
        self._keys = Keys.empty(0)  # in the order they came
        self._new = Keys.empty(0)  # complete, added by the next `select`: what they replace is drawn with its generator

    def attach(self, shard: ShardReader, span: Span) -> None:
        if not span.crosses_episodes:
            raise ConfigError("An elite selector's capacity counts sequences: leave it out for transitions.")
        self._stretches.append(Stretches(shard, span))

    def refresh(self) -> None:
        come = []
        for index, stretches in enumerate(self._stretches):
            if (floor := stretches.overtaken()) is not None:
                stretches.restart(floor)
            stretches.refresh()
            if stretches.waiting:
                lanes = stretches.shard.lanes
                logical = np.repeat(np.array(stretches.waiting, np.int64), lanes)
                lane = np.tile(np.arange(lanes, dtype=np.int32), len(stretches.waiting))
                come.append(Keys(np.full(len(lane), index, np.int32), lane, logical))
                stretches.waiting.clear()
        if come:
            self._new = Keys.joined(self._new, *come).at(slice(-self._capacity, None))
        safe = safe_from((one.shard for one in self._stretches), self._stretches[0].span.before)
        if safe.any():
            self._keys = self._keys.at(self._keys.logical >= safe[self._keys.shard])
            self._new = self._new.at(self._new.logical >= safe[self._new.shard])

    @property
    def size(self) -> int:
        """Sequences held, and those that the next `select` adds."""
        return min(self._capacity, len(self._keys.logical) + len(self._new.logical))

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        self._add_new(rng)
        held = len(self._keys.logical)
        return Selection(self._keys.at(rng.integers(held, size=n)), np.full(n, 1.0 / held))

    def _add_new(self, rng: np.random.Generator) -> None:
        """Adds the new sequences and removes those that they replace."""
        new, self._new = self._new, Keys.empty(0)
        if self._judge is None:
            self._keys = Keys.joined(self._keys, new).at(slice(-self._capacity, None))
            return
        room = self._capacity - len(self._keys.logical)
        self._keys, new = Keys.joined(self._keys, new.at(slice(room))), new.at(slice(room, None))
        while len(new.logical):
            coming, new = new.at(slice(AT_ONCE)), new.at(slice(AT_ONCE, None))
            leaving = self._leaving(self._judge, len(coming.logical), rng)
            self._keys = Keys.joined(self._keys.at(~leaving), coming.at(slice(-int(leaving.sum()), None)))

    def _leaving(self, judge: Judge, count: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """[capacity] which of the held sequences are replaced by `count` new ones."""
        leaving = np.zeros(self._capacity, np.bool_)
        rivals = np.stack([rng.choice(self._capacity, self._sample, replace=False) for _ in range(count)])
        far = judge(self._keys.at(rivals.reshape(-1))).reshape(rivals.shape).astype(np.float64)
        for drawn, distance in zip(rivals, far, strict=True):
            distance[leaving[drawn]] = -np.inf  # already replaced
            leaving[drawn[distance.argmax()]] = True
        return leaving
