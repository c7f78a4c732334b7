"""HeldSequences: an index of sequences, end to end, of which some leave when new ones come.

Rows are never copied: what is held are keys, in the reader's process. Sequences whose rows the ring overwrites leave
too, so a ring must be longer than what is held.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.stretches import Stretches
from shoal.replay.views import Span
from shoal.types import Keys, Selection

Judge = Callable[[Keys], npt.NDArray[np.float32]]
"""How far sequences are from what is wanted."""
AT_ONCE = 16
"""New sequences whose rivals are judged together: one call of the network, of bounded size."""


class HeldSequences(Selector):
    """Up to `capacity` sequences, every one equally likely.

    When it is full the oldest leaves for a new one; with a judge, the furthest of `sample` drawn without replacement
    (elite insertion).
    """

    name = "held"

    def __init__(self, capacity: int, judge: Judge | None = None, sample: int = 20) -> None:
        """Args:
        capacity: sequences held.
        judge: says which of some is the furthest; None: the oldest leaves.
        sample: how many it is asked about for each new sequence.
        """
        if capacity < 1 or sample < 1:
            raise ConfigError(f"capacity and insertion_sample must be at least 1; got {capacity} and {sample}.")
        self._capacity, self._judge, self._sample = capacity, judge, min(sample, capacity)
        self._stretches: list[Stretches] = []
        self._keys = Keys.empty(0)  # in the order they came
        self._new = Keys.empty(0)  # complete, not yet entered: who leaves is drawn with the caller's generator

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
        if not span.crosses_episodes:
            raise ConfigError("A capacity with a choice of who leaves holds sequences, not transitions.")
        self._stretches.append(Stretches(shard, span))

    def refresh(self) -> None:
        """See `Selector.refresh`."""
        floors, come = [], []
        for index, stretches in enumerate(self._stretches):
            shard, span = stretches.shard, stretches.span
            if (floor := stretches.overtaken()) is not None:
                stretches.restart(floor)
            stretches.refresh()
            if stretches.waiting:
                logical = np.repeat(np.array(stretches.waiting, np.int64), shard.lanes)
                lane = np.tile(np.arange(shard.lanes, dtype=np.int32), len(stretches.waiting))
                come.append(Keys(np.full(len(lane), index, np.int32), lane, logical))
                stretches.waiting.clear()
            margin = span.before + min(64, max(1, shard.rows // 16))
            floors.append(shard.oldest + margin if shard.oldest else 0)
        if come:
            self._new = Keys.joined(self._new, *come).at(slice(-self._capacity, None))
        if any(floors):
            safe = np.array(floors)
            self._keys = self._keys.at(self._keys.logical >= safe[self._keys.shard])
            self._new = self._new.at(self._new.logical >= safe[self._new.shard])

    @property
    def size(self) -> int:
        """Sequences held, those about to enter included."""
        return min(self._capacity, len(self._keys.logical) + len(self._new.logical))

    def ready(self, n: int) -> bool:
        """One is enough: draws are with replacement."""
        return self.size > 0

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """See `Selector.select`."""
        self._enter(rng)
        held = len(self._keys.logical)
        return Selection(self._keys.at(rng.integers(held, size=n)), np.full(n, 1.0 / held))

    def _enter(self, rng: np.random.Generator) -> None:
        """Lets new sequences in, and as many others out as that needs."""
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
        """Which of the held ones leave for `count` new ones."""
        leaving = np.zeros(self._capacity, np.bool_)
        rivals = np.stack([rng.choice(self._capacity, self._sample, replace=False) for _ in range(count)])
        far = judge(self._keys.at(rivals.reshape(-1))).reshape(rivals.shape).astype(np.float64)
        for drawn, distance in zip(rivals, far, strict=True):
            distance[leaving[drawn]] = -np.inf  # gone already
            furthest = int(distance.argmax())
            if not leaving[drawn[furthest]]:
                leaving[drawn[furthest]] = True
        return leaving
