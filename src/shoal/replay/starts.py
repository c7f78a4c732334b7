"""Which rows may start a sample, as one reader knows them.

A reader keeps, per shard, one bit per (row, lane): may a view start here? New rows are examined once, when enough of
their future is published. Old rows are struck off a little before the writer overwrites them, so that a draw rarely
meets the writer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.replay.shard import ShardReader
from shoal.replay.shard_files import ring_margin, ring_pieces
from shoal.replay.startable import flag_starts
from shoal.replay.views import Span


class Change(NamedTuple):
    """Neighbouring ring positions whose starts changed; `flags` are their new ones, flattened over lanes."""

    logical: int
    position: int
    flags: npt.NDArray[np.uint8]


class Starts:
    """The starting rows of one shard. `first <= logical < stop` are examined and not yet struck off."""

    def __init__(self, shard: ShardReader, span: Span, *, newest: float = 1.0) -> None:
        """Args:
        shard: what to read.
        span: how far the view looks.
        newest: fraction of the stored rows to keep, the newest ones.
        """
        self.shard = shard
        self.first = 0
        self.stop = 0
        self.count = 0
        self._seen = (0, 0)  # head and oldest row at the last refresh
        self.span = span
        # Where rows hold their successor themselves, the last of them is not waited for.
        self._after = span.after - ("next_obs" in shard.info.schema)
        self._newest = newest
        self._window: int | None = None
        self._margin = span.before + ring_margin(shard.rows)
        columns = [shard.by_lane[name] for name in ("boundary", "terminated", "truncated")]
        self._ring: list[Any] = [*(column.ctypes.data for column in columns), shard.rows]
        self._flags = np.zeros((shard.rows, shard.lanes), np.uint8)
        self._blank = np.zeros((shard.rows, shard.lanes), np.uint8)

    @property
    def flags(self) -> npt.NDArray[np.uint8]:
        """[T * N] one where a view may start."""
        return self._flags.reshape(-1)

    def keep_newest(self, rows: int) -> None:
        """Keeps only the newest `rows` rows from the next refresh on; rows struck off do not come back."""
        self._window, self._seen = rows, (-1, -1)

    def refresh(self) -> list[Change]:
        """Reads what the writer did since the last call; returns what changed, in order."""
        head = self.shard.head
        seen = (head, self.shard.oldest)
        if seen == self._seen:  # nothing moved: the common case of a learner faster than its actors
            return []
        self._seen = seen
        stop = max(self.stop, head - self._after)
        first = max(self.first, self._floor(head, stop))
        changes: list[Change] = []
        for logical, position, count in ring_pieces(self.shard.rows, self.first, min(first, self.stop)):
            self.count -= int(np.count_nonzero(self._flags[position : position + count]))
            self._flags[position : position + count] = 0
            changes.append(Change(logical, position, self._blank[:count].reshape(-1)))
        fresh = max(self.stop, first)
        for logical, position, count in ring_pieces(self.shard.rows, fresh, stop):
            flags = self._flags[position : position + count]
            rows: list[Any] = [logical, logical + count, self._after, self.span.crosses_episodes, flags]
            flag_starts(*self._ring, *rows)
            if self.span.period > 1:
                flags[np.arange(logical, logical + count) % self.span.period != 0] = 0
            self.count += int(np.count_nonzero(flags))
            changes.append(Change(logical, position, flags.reshape(-1)))
        self.first, self.stop = min(first, stop), stop
        return changes

    def _floor(self, head: int, stop: int) -> int:
        """The lowest logical row to keep."""
        # While the ring is filling nothing is overwritten: only its last `margin` rows come close to the writer.
        oldest = self.shard.oldest
        claim = oldest + self.shard.rows if oldest else head
        safe = max(0, max(head, claim) + self._margin - self.shard.rows)
        if self._newest < 1.0:
            safe = max(safe, stop - max(1, round((stop - min(safe, stop)) * self._newest)))
        if self._window is not None:
            safe = max(safe, stop - self._window)
        return safe
