"""Stretches: a shard's stream split into consecutive sequences, at the same rows in all lanes.

The burn-in rows of a sequence are the last rows of the sequence before, so that every row except the first few is
learned from.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal.replay.shard import ShardReader
from shoal.replay.shard_files import ring_pieces
from shoal.replay.views import Span
from shoal.types import CUT


class Stretches:
    """The stretches of one shard that are complete and not yet taken."""

    def __init__(self, shard: ShardReader, span: Span, at: int = 0) -> None:
        """Args:
        shard: what to read.
        span: the rows a view reads; a stretch is `span.after` rows, and needs one more to bootstrap from.
        at: the row where the first stretch starts.
        """
        self.shard, self.span = shard, span
        self.waiting: list[int] = []
        """First rows of complete stretches, in order, the same in all lanes."""
        self.next = at
        """The first row of the first stretch that is not complete."""
        self._scanned = at  # rows below it were searched for CUTs

    @property
    def first(self) -> int:
        """The oldest row that is still needed, without the stacked frames before it."""
        return self.waiting[0] if self.waiting else self.next

    def overtaken(self) -> int | None:
        """The row to continue at when the writer has reached `first`, else None."""
        oldest = self.shard.oldest
        if oldest and self.first - self.span.before < oldest:
            # Right at the edge it would be overtaken again at once.
            return oldest + self.span.before + self.shard.rows // 4
        return None

    def restart(self, at: int) -> None:
        """Forgets what waits and continues at a row."""
        self.waiting.clear()
        self.next = self._scanned = at

    def refresh(self) -> None:
        """Finds the stretches that are complete now."""
        # If the writer is more than a ring ahead, it has just overtaken this reader: the next call finds that.
        head, stride = min(self.shard.head, self._scanned + self.shard.rows), self.span.stride
        if head <= self._scanned:
            return
        for end in [*self._cuts(self._scanned, head), head]:
            starts = range(self.next, end - self.span.after, stride)
            self.waiting.extend(starts)
            self.next = self.next + len(starts) * stride if end == head else end + 1
        self._scanned = head

    def _cuts(self, start: int, stop: int) -> Iterator[int]:
        """Rows where the stream is broken in any lane: stretches start at the same rows in all lanes."""
        for logical, position, count in ring_pieces(self.shard.rows, start, stop):
            broken = self.shard.by_lane["boundary"][:, position : position + count] == CUT
            if broken.any():
                yield from (logical + np.flatnonzero(broken.any(axis=0))).tolist()
