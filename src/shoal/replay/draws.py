"""Uniform draws straight from shards, without an index: for readers of other runs' shards.

A selector keeps a bit per row and knows at once where a sample may start. To build that index for every peer that joins
would take too long. Here a row is examined when it is drawn, and replaced by another draw if no sample may start there.
All rows that may start a sample stay equally likely.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.replay.shard_files import ring_margin
from shoal.replay.shard_table import Int64s, ShardTable
from shoal.replay.startable import draw_starts
from shoal.types import Keys

SPARE = 16
"""Points beyond those needed: about one row in two hundred ends an episode."""
PATIENCE = 100
"""Rounds of drawing before a window counts as empty."""


class Draws:
    """Draws from the shards of a table, within windows of rows that are computed once and used for many batches.

    An old window does no harm: rows that were overwritten since are detected after copying, as always.
    """

    def __init__(self, table: ShardTable, n: int, before: int = 0) -> None:
        """Args:
        table: the shards.
        n: steps of the transitions to be drawn.
        before: rows read before the first one, for stacked frames.
        """
        self._table, self._n, self._before = table, n, before
        self.barren = -1
        """The shard without a start, after a `draw` that failed."""
        self.look()

    def look(self) -> None:
        """Computes the windows again, from the shards of the table and what they hold now."""
        table = self._table
        oldest = table.oldest()
        # No limit on the margin: the writer goes on while the window is used.
        margins = np.array([self._before + ring_margin(rows, most=None) for rows in table.rows.tolist()], np.int64)
        self.first: Int64s = np.where(oldest > 0, oldest + margins, 0)
        newest = np.array([shard.head for shard in table.shards], np.int64) - self._n + (table["next_obs"] != 0)
        # A window is never longer than its ring, whatever a damaged header says.
        self.stop: Int64s = np.maximum(np.minimum(newest, oldest + table.rows), self.first)
        self.ages: Int64s = np.zeros(len(self.first), np.int64)
        """Sum over the draws of each shard: how many rows of its lane are newer."""
        self._arguments: list[Any] = [table.lanes, table.rows]
        self._arguments += [table[name] for name in ("boundary", "terminated", "truncated", "next_obs")]

    def keep_newest(self, fraction: float) -> None:
        """Narrows all windows to their newest part."""
        self.first = self.stop - np.ceil((self.stop - self.first) * fraction).astype(np.int64)

    @property
    def sizes(self) -> Int64s:
        """Rows in each window, over all lanes."""
        return (self.stop - self.first) * self._table.lanes

    def draw(self, counts: Int64s, rng: np.random.Generator, keys: Keys, at: int) -> bool:
        """Fills keys[at:] with counts[s] draws from each shard. False when a shard has no start in its window."""
        left, ages = counts.copy(), self.ages.copy()
        wanted = int(counts.sum())
        for _ in range(PATIENCE):
            out = [self._n, rng.random(wanted + SPARE), keys.shard[at:], keys.lane[at:], keys.logical[at:], self.ages]
            drawn = draw_starts(left, self.first, self.stop, *self._arguments, *out)
            at, wanted = at + drawn, wanted - drawn
            if not wanted:
                return True
        self.ages[:] = ages
        self.barren = int(np.flatnonzero(left)[0])  # the shards after it were not tried
        return False
