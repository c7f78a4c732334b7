"""Which rows may start a sample.

A reader keeps, per shard, one bit per (row, lane): may a view start here? New rows are examined once, when enough of
their future is published; old rows are struck off a little before the writer overwrites them, so that a draw is rarely
lost to the race.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import CUT

_READ_BYTES = numba.types.Array(numba.uint8, 2, "C", readonly=True)
_READ_FLAGS = numba.types.Array(numba.boolean, 2, "C", readonly=True)
_STARTABLE = numba.void(
    *(_READ_BYTES, _READ_FLAGS, _READ_FLAGS), *(numba.int64,) * 3, numba.boolean, numba.types.Array(numba.uint8, 2, "C")
)


@numba.njit(_STARTABLE, nogil=True, cache=True)
def _startable(boundary, terminated, truncated, start, stop, after, crosses_episodes, out):  # type: ignore[no-untyped-def]
    lanes, rows = boundary.shape
    for logical in range(start, stop):
        for lane in range(lanes):
            first = boundary[lane, logical % rows]
            allowed = first == 0 or (crosses_episodes and first != CUT)
            ended = False
            for ahead in range(after):
                if not allowed or ended:
                    break
                here = (logical + ahead) % rows
                cut_next = boundary[lane, (logical + ahead + 1) % rows] == CUT
                if terminated[lane, here] and not crosses_episodes:
                    ended = True  # nothing beyond a terminal step is looked at
                elif cut_next:
                    allowed = False
                elif truncated[lane, here] and not crosses_episodes:
                    ended = True
            out[logical - start, lane] = allowed


class Change(NamedTuple):
    """A stretch of neighbouring ring positions whose starts changed: `flags` are theirs now, flattened over lanes."""

    logical: int
    position: int
    flags: npt.NDArray[np.uint8]


class Starts:
    """The starting rows of one shard, as one reader sees them. `first <= logical < stop` is what was examined and not
    yet struck off.
    """

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
        # Rows struck off ahead of the writer: it may fill some while a batch is being copied.
        self._margin = span.before + min(64, max(1, shard.rows // 16))
        self._flags = np.zeros((shard.rows, shard.lanes), np.uint8)
        self._blank = np.zeros((shard.rows, shard.lanes), np.uint8)

    @property
    def flags(self) -> npt.NDArray[np.uint8]:
        """[T * N] one where a view may start."""
        return self._flags.reshape(-1)

    def keep_newest(self, rows: int) -> None:
        """Keeps to the newest so many rows from the next refresh on; rows struck off do not come back."""
        self._window, self._seen = rows, (-1, -1)

    def refresh(self) -> list[Change]:
        """Takes in what the writer did since the last call; returns what changed, in order."""
        head = self.shard.head
        seen = (head, self.shard.oldest)
        if seen == self._seen:  # nothing moved: the common case of a learner faster than its actors
            return []
        self._seen = seen
        stop = max(self.stop, head - self._after)
        first = max(self.first, self._floor(head, stop))
        changes: list[Change] = []
        for logical, position, count in self._stretches(self.first, min(first, self.stop)):
            self.count -= int(np.count_nonzero(self._flags[position : position + count]))
            self._flags[position : position + count] = 0
            changes.append(Change(logical, position, self._blank[:count].reshape(-1)))
        fresh = max(self.stop, first)
        for logical, position, count in self._stretches(fresh, stop):
            flags = self._flags[position : position + count]
            columns = self.shard.by_lane
            _startable(
                columns["boundary"],
                columns["terminated"],
                columns["truncated"],
                logical,
                logical + count,
                self._after,
                self.span.crosses_episodes,
                flags,
            )
            self.count += int(np.count_nonzero(flags))
            changes.append(Change(logical, position, flags.reshape(-1)))
        self.first, self.stop = min(first, stop), stop
        return changes

    def holds(self, logical: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether rows are still known here; a priority for any other row is stale."""
        return (logical >= self.first) & (logical < self.stop)

    def _floor(self, head: int, stop: int) -> int:
        """The lowest logical row worth keeping."""
        # While the ring is filling nothing is overwritten: only its last `margin` rows come close to the writer.
        oldest = self.shard.oldest
        claim = oldest + self.shard.rows if oldest else head
        safe = max(0, max(head, claim) + self._margin - self.shard.rows)
        if self._newest < 1.0:
            safe = max(safe, stop - max(1, round((stop - min(safe, stop)) * self._newest)))
        if self._window is not None:
            safe = max(safe, stop - self._window)
        return safe

    def _stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Splits logical rows at the end of the ring: (logical, position, count)."""
        while start < stop:
            position = start % self.shard.rows
            count = min(stop - start, self.shard.rows - position)
            yield start, position, count
            start += count
