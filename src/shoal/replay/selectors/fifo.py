"""A queue: every stretch of the stream once, in the order it was written.

The reader publishes how far it has come in the shard's `cursor`, for writers that must not lose anything to wait for;
others overwrite, and the rows passed over are counted.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.counters import Counters
from shoal.replay.shard import Header, ShardReader
from shoal.replay.views import Span
from shoal.types import CUT, Keys, Selection


class _Queue:
    """How far one shard was read: the next stretch starts at row `logical`, lane `lane`."""

    def __init__(self, shard: ShardReader, span: Span) -> None:
        self.shard, self.span = shard, span
        self.header = Counters(shard.path / "header.bin", writable=True)
        cursor = self.header[Header.CURSOR]
        self.logical, self.lane = cursor + (span.before if cursor else 0), 0
        self._waiting: deque[int] = deque()  # first rows of complete stretches, `logical` the first of them
        self._next = self.logical  # where the first stretch that is not complete starts
        self._scanned = self.logical  # below it CUTs were looked for
        self.dropped = 0

    @property
    def ready(self) -> int:
        """Stretches that are complete."""
        return len(self._waiting) * self.shard.lanes - self.lane

    def refresh(self) -> None:
        """Steps over what was overwritten or broken off, takes in what is complete, says what is still needed."""
        oldest = self.shard.oldest
        if oldest and self.logical - self.span.before < oldest:
            # At the very edge it would be overtaken again, and again when drawing anew.
            self._step_over(oldest + self.span.before + self.shard.rows // 4)
        head, after = self.shard.head, self.span.after
        for end in [*self._cuts(self._scanned, head), head]:  # a stretch needs one row more, to bootstrap from
            starts = range(self._next, end - after, after)
            self._waiting.extend(starts)
            self._next = self._next + len(starts) * after if end == head else end + 1
        self._scanned = max(self._scanned, head)
        self.logical = self._waiting[0] if self._waiting else self._next
        # A writer that waits for the cursor must also leave the frames that the next stretch stacks.
        self.header[Header.CURSOR] = max(0, self.logical - self.span.before)

    def take(self) -> tuple[int, int]:
        """The next stretch: its lane and first row."""
        taken = (self.lane, self._waiting[0])
        self.lane += 1
        if self.lane == self.shard.lanes:
            self.lane = 0
            self._waiting.popleft()
            self.logical = self._waiting[0] if self._waiting else self._next
        return taken

    def _step_over(self, floor: int) -> None:
        """Goes on at row `floor`, or behind a stretch that some lanes were read of; counts what was lost."""
        read = self.span.after * self.lane
        to = max(floor, self.logical + self.span.after) if self.lane else floor
        self.dropped += (to - self.logical) * self.shard.lanes - read
        self._waiting.clear()
        self.logical = self._next = self._scanned = to
        self.lane = 0

    def _cuts(self, start: int, stop: int) -> list[int]:
        """Rows where the stream is broken, in any lane: stretches of all lanes go side by side."""
        rows = np.arange(start, stop, dtype=np.int64)
        broken = self.shard.columns["boundary"][rows % self.shard.rows] == CUT
        return [int(row) for row in rows[broken.any(axis=1)]]


class Fifo:
    """Each stretch once, oldest first, the shards in turn."""

    def __init__(self) -> None:
        self._queues: list[_Queue] = []

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
        if not span.crosses_episodes:
            raise ConfigError("fifo hands out every row, episode ends too: use it with sequences, not transitions.")
        self._queues.append(_Queue(shard, span))

    def refresh(self) -> None:
        """See `Selector.refresh`."""
        for queue in self._queues:
            queue.refresh()

    @property
    def size(self) -> int:
        """Stretches waiting to be read."""
        return sum(queue.ready for queue in self._queues)

    @property
    def dropped(self) -> int:
        """Rows that were overwritten before they were read."""
        return sum(queue.dropped for queue in self._queues)

    def ready(self, n: int) -> bool:
        """Whether n stretches wait."""
        return self.size >= n

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """See `Selector.select`."""
        shard, lane, logical = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int64)
        for i in range(n):
            # The shard that lags furthest behind its writer goes first, so that none is overwritten for being last.
            index = max(range(len(self._queues)), key=lambda k: self._queues[k].ready)
            shard[i] = index
            lane[i], logical[i] = self._queues[index].take()
        return Selection(Keys(shard, lane, logical), np.ones(n))

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """A queue needs no priorities."""
        return 0
