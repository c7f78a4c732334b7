"""Uniform draws straight from shards, without an index: for readers that come and go.

A selector keeps a bit per row and knows at once where a sample may start. Whoever reads other runs' shards would build
that index for every peer that joins; here a row is looked at when it is drawn, and drawn again if it will not do. All
rows that may start a sample stay equally likely.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from shoal.replay.memory import load_byte
from shoal.replay.shard_table import Int64s, ShardTable
from shoal.types import CUT, Keys

SPARE = 16
"""Points beyond those needed: about one row in two hundred ends an episode."""
PATIENCE = 100
"""Rounds of drawing again before there seems to be nothing to draw."""

_INTS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_DRAW = numba.int64(
    *(numba.int64[::1], *(_INTS,) * 8, numba.int64, numba.types.Array(numba.float64, 1, "C", readonly=True)),
    *(numba.int32[::1], numba.int32[::1], numba.int64[::1], numba.int64[::1]),
)


@numba.njit(_DRAW, nogil=True, cache=True)
def _draw(  # type: ignore[no-untyped-def]
    counts,
    first,
    stop,
    lanes,
    rows,
    boundary,
    terminated,
    truncated,
    next_obs,
    n,
    points,
    out_shard,
    out_lane,
    out_logical,
    ages,
):
    """Draws counts[s] starts of n-step transitions from the rows [first[s], stop[s]) of every shard; counts what is
    left to draw down, and adds up how far the draws lie behind the newest row. Returns how many were drawn.
    """
    used, drawn = 0, 0
    for s in range(counts.shape[0]):
        span = (stop[s] - first[s]) * lanes[s]
        while counts[s] > 0 and used < points.shape[0]:
            pick = np.int64(points[used] * span)
            used += 1
            lane, logical = pick % lanes[s], first[s] + pick // lanes[s]
            base = lane * rows[s]
            good = load_byte(boundary[s] + base + logical % rows[s]) == 0
            # A row that holds its successor itself needs one row less.
            for ahead in range(n - (1 if next_obs[s] != 0 else 0)):
                if not good:
                    break
                here = base + (logical + ahead) % rows[s]
                if load_byte(terminated[s] + here) != 0:
                    break
                good = load_byte(boundary[s] + base + (logical + ahead + 1) % rows[s]) != CUT
                if load_byte(truncated[s] + here) != 0:
                    break
            if good:
                out_shard[drawn], out_lane[drawn], out_logical[drawn] = s, lane, logical
                ages[s] += stop[s] - 1 - logical
                counts[s] -= 1
                drawn += 1
    return drawn


class Draws:
    """Draws from the shards of a table, within windows of rows that are looked up once and used for a while.

    A window that has aged is no danger: rows that were overwritten since are found out after copying, as always.
    """

    def __init__(self, table: ShardTable, n: int, before: int = 0) -> None:
        """Args:
        table: the shards.
        n: steps of the transitions to be drawn.
        before: rows before the first that are read, too.
        """
        self._table, self._n, self._before = table, n, before
        self.barren = -1
        self.look()

    def look(self) -> None:
        """Takes in what the writers did, and which shards there are."""
        table = self._table
        oldest = table.oldest()
        # Somewhat off the writer, which goes on while the window is used.
        self.first: Int64s = oldest + np.where(oldest > 0, self._before + table.rows // 16, 0)
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
        """Fills keys[at:] with counts[s] draws from each shard. False when a shard has no start in its window: `barren`
        is its place.
        """
        left, ages = counts.copy(), self.ages.copy()
        wanted = int(counts.sum())
        for _ in range(PATIENCE):
            out = [self._n, rng.random(wanted + SPARE), keys.shard[at:], keys.lane[at:], keys.logical[at:], self.ages]
            drawn = _draw(left, self.first, self.stop, *self._arguments, *out)
            at, wanted = at + drawn, wanted - drawn
            if not wanted:
                return True
        self.ages[:] = ages
        self.barren = int(np.flatnonzero(left)[0])  # those behind it did not get their turn
        return False
