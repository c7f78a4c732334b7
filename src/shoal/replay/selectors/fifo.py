"""A queue: every stretch of the stream once, in the order it was written.

The reader publishes how far it has come in the shard's `cursor`; a writer that must not lose anything waits for it
(`on_full: wait`), others overwrite and the rows passed over are counted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.replay.counters import Counters
from shoal.replay.shard import Header, ShardReader
from shoal.replay.starts import Span
from shoal.types import CUT, Keys, Selection


class _Queue:
    """How far one shard was read: the next stretch starts at row `logical`, lane `lane`."""

    def __init__(self, shard: ShardReader, span: Span) -> None:
        self.shard, self.span = shard, span
        self.header = Counters(shard.path / "header.bin", writable=True)
        self.logical, self.lane = self.header[Header.CURSOR], 0
        self.ready = 0
        self.dropped = 0

    def refresh(self) -> None:
        """Steps over what was overwritten or broken off, and counts the stretches that are complete."""
        floor = self.shard.oldest + (self.span.before if self.shard.oldest else 0)
        if self.logical < floor:
            self.dropped += (floor - self.logical) * self.shard.lanes - self.lane
            self.logical, self.lane = floor, 0
        head = self.shard.head
        while self.lane == 0 and self._breaks() and self.logical < head:
            self.logical += 1
        complete = max(0, (head - 1 - self.logical) // self.span.after) if self.span.after else head - self.logical
        self.ready = 0 if self._breaks() else self._unbroken(complete) * self.shard.lanes - self.lane
        self.header[Header.CURSOR] = self.logical

    def take(self) -> tuple[int, int]:
        """The next stretch: its lane and first row."""
        taken = (self.lane, self.logical)
        self.lane += 1
        if self.lane == self.shard.lanes:
            self.lane = 0
            self.logical += self.span.after
        self.ready -= 1
        return taken

    def _cuts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        rows: npt.NDArray[np.int64] = np.arange(start, stop, dtype=np.int64)
        broken: npt.NDArray[np.bool_] = self.shard.columns["boundary"][rows % self.shard.rows, 0] == CUT
        return rows[broken]

    def _breaks(self) -> bool:
        """Whether the stretch at hand starts on, or runs into, a break in the stream (a CUT marks all lanes)."""
        stop = min(self.shard.head, self.logical + self.span.after + 1)
        return len(self._cuts(self.logical, stop)) > 0

    def _unbroken(self, stretches: int) -> int:
        """Of so many complete stretches, those before the next break."""
        cuts = self._cuts(self.logical, self.logical + stretches * self.span.after + 1)
        return stretches if len(cuts) == 0 else int((cuts[0] - self.logical - 1) // self.span.after)


class Fifo:
    """Each stretch once, oldest first, the shards in turn."""

    def __init__(self) -> None:
        self._queues: list[_Queue] = []

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
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
