"""Rollout: the next sequence of every lane, all at once. The barrier of synchronous algorithms.

A shard's writer may go as far as its rollout is complete, `grant` in the header, and waits there (`pace.BarrierPace`).
The reader grants the next rollout when it comes for it, so after it has learned from the last one and published what it
learned; with a lag of 1 as soon as the last one is copied.

No fast writer is granted the rows that a slow one lacks, as a fifo does: they would be of old weights.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.selectors.fifo import Queue
from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Rollout(Selector):
    """Each stretch once, one of every lane; of actors that are late, in a later rollout."""

    name = "rollout"
    fresh = True

    def __init__(self, lag: Literal[0, 1] = 0) -> None:
        """`lag`: 1 lets writers go on while the last rollout is learned from."""
        if lag not in (0, 1):
            raise ConfigError(f"A rollout's lag is {lag!r}; it must be 0 or 1.")
        self._lag = lag
        self._queues: list[Queue] = []
        self._drawn: list[Queue] = []  # whose stretches the last draw took

    def attach(self, shard: ShardReader, span: Span) -> None:
        if not span.crosses_episodes:
            raise ConfigError("rollout hands out every row, episode ends too: use it with sequences, not transitions.")
        self._queues.append(Queue(shard, span))

    def refresh(self) -> None:
        for queue in self._queues:
            queue.refresh()
        for queue in self._queues:
            if not queue.ready:
                queue.publish(queue.shard.lanes)  # to complete one stretch of each lane

    @property
    def size(self) -> int:
        """Complete stretches that are not read yet."""
        return sum(queue.ready for queue in self._queues)

    def ready(self, n: int) -> bool:
        return self.size >= n

    def most(self, n: int) -> int:
        return min(n, self.size)

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        keys, taken = Keys.empty(n), 0
        self._drawn = [queue for queue in self._queues if queue.ready]
        for index, queue in enumerate(self._queues):
            while queue.ready and taken < n:  # whole shards: n is what is ready, and streams are cut in all lanes
                lanes = np.arange(queue.shard.lanes, dtype=np.int32)
                start = queue.take(len(lanes))[0]
                place = slice(taken, taken + len(lanes))
                keys.put(place, Keys(np.full(len(lanes), index, np.int32), lanes, np.full(len(lanes), start)))
                taken += len(lanes)
        return Selection(keys, np.ones(n))

    def release(self) -> None:
        for queue in self._drawn:
            queue.publish(queue.shard.lanes if self._lag else 0)

    def metrics(self) -> dict[str, float]:
        """Rows that were overwritten before they were read: none, while all writers wait."""
        return {"dropped": float(sum(queue.dropped for queue in self._queues))}
