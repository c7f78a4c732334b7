"""Uniform draws, over everything stored or over the newest part of it."""

from __future__ import annotations

import numpy as np

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector, split_by_count
from shoal.replay.shard import ShardReader
from shoal.replay.starts import Starts
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Uniform(Selector):
    """Every row that may start a sample is equally likely, in all shards.

    `newest` below 1 limits draws to that newest fraction of each shard. `capacity` limits them to the rows of that many
    newest sequences, divided evenly over all lanes: each lane gives its newest `capacity * steps / lanes` rows, rounded
    up, and a draw may begin at any of them. Shards of slower actors reach further back in time. For transitions a
    sequence is one row.
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
        self._starts.append(Starts(shard, span, newest=self._newest))
        if self._capacity is not None:
            rows = self._capacity * (span.after if span.crosses_episodes else 1)
            lanes = sum(starts.shard.lanes for starts in self._starts)
            for starts in self._starts:
                starts.keep_newest(-(-rows // lanes))

    def refresh(self) -> None:
        for starts in self._starts:
            starts.refresh()

    @property
    def size(self) -> int:
        return sum(starts.count for starts in self._starts)

    def select(self, n: int, rng: np.random.Generator) -> Selection:
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
