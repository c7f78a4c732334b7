"""Uniform draws, over everything stored or over the newest part of it."""

from __future__ import annotations

import numpy as np

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector, attach_starts, split_by_count
from shoal.replay.shard import ShardReader
from shoal.replay.starts import Starts
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Uniform(Selector):
    """Every eligible row of every shard is equally likely. `newest` below 1 keeps to that fraction of each shard, its
    newest rows; `capacity` keeps to the newest so many sequences.

    The capacity is shared out evenly over all lanes: each draws from its newest `capacity * steps / lanes` rows,
    rounded up. So many sequences lie there end to end; a draw may begin at any row of them. Shards whose actors are
    slower reach further back in time. For transitions a sequence is one row.
    """

    name = "uniform"

    def __init__(self, newest: float = 1.0, capacity: int | None = None) -> None:
        if not 0.0 < newest <= 1.0:
            raise ConfigError(f"newest is {newest}; it is the fraction of the stored rows to draw from, within (0, 1].")
        if capacity is not None and capacity < 1:
            raise ConfigError(f"A uniform selector's capacity is {capacity}; it must hold at least 1 sequence.")
        self._newest, self._capacity = newest, capacity
        self._starts: list[Starts] = []

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
        attach_starts(self._starts, shard, span, self._newest)
        if self._capacity is not None:
            rows = self._capacity * (span.after if span.crosses_episodes else 1)
            lanes = sum(starts.shard.lanes for starts in self._starts)
            for starts in self._starts:
                starts.keep_newest(-(-rows // lanes))

    def refresh(self) -> None:
        """See `Selector.refresh`."""
        for starts in self._starts:
            starts.refresh()

    @property
    def size(self) -> int:
        """Eligible rows of all shards."""
        return sum(starts.count for starts in self._starts)

    def ready(self, n: int) -> bool:
        """One eligible row is enough: draws are with replacement."""
        return self.size > 0

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """See `Selector.select`."""
        shard, lane, logical = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int64)
        shares = split_by_count([starts.count for starts in self._starts], n, rng)
        done = 0
        for index, (starts, share) in enumerate(zip(self._starts, shares, strict=True)):
            shard[done : done + share] = index
            filled, lanes = 0, starts.shard.lanes
            while filled < share:
                # A few rows cannot start a sample (episode ends): draw some more than needed and keep the good ones.
                wanted = share - filled
                picked = rng.integers(starts.first * lanes, starts.stop * lanes, wanted + wanted // 8 + 4)
                picked = picked[starts.flags[picked % (starts.shard.rows * lanes)] == 1][:wanted]
                place = slice(done + filled, done + filled + len(picked))
                logical[place], lane[place] = np.divmod(picked, lanes)
                filled += len(picked)
            done += share
        return Selection(Keys(shard, lane, logical), np.full(n, 1.0 / self.size))
