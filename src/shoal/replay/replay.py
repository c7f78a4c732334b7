"""Replay: shards, a selector, a view. `sample()` and `update_priorities()`."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Sized
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError, ReplayError, WrongSchema
from shoal.replay.gather import Copier, sum_uint32
from shoal.replay.redraw import copy_until_usable
from shoal.replay.selectors import Mixture, Part, Selector
from shoal.replay.shard import ShardReader
from shoal.replay.shard_table import Int64s, ShardTable
from shoal.replay.shares import divides
from shoal.replay.views import Allocate, View
from shoal.types import Keys, Sample

VERSION_STRIDE = 8
"""Every eighth row gives the mean age as well as all do, with an eighth of the cache misses."""


def _touched(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    array = np.empty(shape, dtype)
    array.fill(0)  # touches every page now rather than in the first batches
    return array


class Guests(Protocol):
    """Draws rows of other runs. Their shards are in the replay's table, after its own."""

    def draws(self, batch: int) -> int:
        """How many rows of the next batch come from other runs."""

    def draw(self, count: int, keys: Keys, at: int) -> bool:
        """Fills keys[at : at + count]; False when there is no run to draw from."""

    def redraw(self, keys: Keys, places: Int64s) -> bool:
        """Draws other rows for these places; False when there is no run to draw from."""

    def unusable(self, keys: Keys, torn: Int64s, places: Int64s, batch: Any) -> Int64s:
        """The torn places, and those of `places` whose rows are invalid (not finite, out of range)."""


class Replay:
    """Batches drawn from shards in place.

    Batches are filled into a ring of prepared arrays: each is valid until `ring - 1` more were drawn. Not thread-safe:
    one thread uses it (see `prefetch.Prefetcher`).
    """

    def __init__(
        self,
        shards: Sized[ShardReader],
        selector: Selector,
        view: View,
        batch_size: int,
        *,
        ring: int = 2,
        seed: int | np.random.SeedSequence = 0,
        threads: int = 1,
        allocate: Allocate = _touched,
        guests: Callable[[ShardTable], Guests] | None = None,
        batch_min: int | None = None,
    ) -> None:
        """Args:
        shards: what to draw from; more may be attached later.
        selector: chooses the rows.
        view: turns rows into a batch.
        batch_size: draws per batch, at most.
        ring: number of prepared batches.
        seed: of the draws.
        threads: for copying large rows.
        allocate: makes the batches' arrays (pinned memory for a GPU).
        guests: makes what draws rows of other runs; it adds their shards to the table it is given.
        batch_min: the smallest batch that `sample` returns when a queue holds less than `batch_size`. None: whole
            batches only.
        """
        if not shards:
            raise ReplayError("A replay needs at least one shard.")
        self.batch_size = batch_size
        self._schema = shards[0].info.schema
        self._view, self._copier, self._before = view, Copier(threads), view.span.before
        self._mixture = selector if isinstance(selector, Mixture) else Mixture([Part(selector, 1.0)])
        self._mixture.layout(batch_size)  # refuses a batch size that does not divide
        self._least = self._smallest(batch_min)
        self._rng = np.random.default_rng(seed)
        self.ring = ring
        """Number of prepared batches."""
        self._batches = [view.allocate(self._schema, batch_size, allocate) for _ in range(ring)]
        self.drawn = 0
        """Batches so far."""
        self.rows_drawn = 0
        """Draws so far, times the steps of a sequence."""
        self.lacking = 0
        """Steps to wait for, those of a batch, when the last `sample` had too little to draw from; else 0."""
        self._steps = view.span.stride if view.span.crosses_episodes else 1
        self._everywhere = np.arange(batch_size)
        self.redrawn = 0
        """Draws so far that were repeated because their rows could not be used."""
        self.shards: list[ShardReader] = []
        self._table = ShardTable()
        for shard in shards:
            self.attach(shard)
        self.guests = guests(self._table) if guests is not None else None
        if self.guests is not None and (len(self._mixture.parts) > 1 or view.span.crosses_episodes):
            raise ConfigError(
                "Sharing with other runs needs transitions and a single selector, not sequences or a mixture."
            )
        self._mixture.ready(batch_size)  # tells a queue that drops how much it must hold

    def _smallest(self, batch_min: int | None) -> int:
        """The smallest batch, at least `batch_min`, that divides by the ratios."""
        if batch_min is None:
            return self.batch_size
        if not 1 <= batch_min <= self.batch_size:
            raise ConfigError(f"batch_min is {batch_min}; it must lie between 1 and the batch size, {self.batch_size}.")
        ratios = [part.ratio for part in self._mixture.parts]
        return next(n for n in range(batch_min, self.batch_size + 1) if divides(ratios, n))

    def attach(self, shard: ShardReader) -> None:
        """Adds a shard, for instance of a run that joined."""
        if difference := self._schema.difference(shard.info.schema, self._view.reads):
            raise WrongSchema(f"{shard.path} has other columns: {difference}.")
        if self._view.span.crosses_episodes and "next_obs" in shard.info.schema:
            raise WrongSchema(f"{shard.path} holds transitions; sequences need a stream.")
        least = 2 * (self._view.span.before + self._view.span.after) + 16
        if shard.rows < least:
            raise ReplayError(
                f"{shard.path} has {shard.rows} rows per lane; this view needs at least {least}. "
                "Raise replay.capacity or use fewer lanes."
            )
        self.shards.append(shard)
        self._table.add(shard)
        self._mixture.attach(shard, self._view.span)

    @property
    def size(self) -> int:
        """Rows that could be drawn, as of the last `refresh` or `sample`."""
        return self._mixture.size

    @property
    def mean_batch(self) -> float:
        """Mean draws per batch; less than `batch_size` when batches need not be whole."""
        return self.rows_drawn / (self._steps * self.drawn) if self.drawn else 0.0

    def metrics(self) -> dict[str, float]:
        """The selectors' metrics, by their names."""
        return self._mixture.metrics()

    def refresh(self) -> None:
        """Reads what the writers did since."""
        self._mixture.refresh()

    def sample(self) -> Sample | None:
        """The next batch, or None when there is not enough to draw from."""
        self._mixture.refresh()
        n = self._mixture.fitting(self._least, self.batch_size)
        self.lacking = 0 if n else max(self.batch_size * self._steps, sum(shard.lanes for shard in self.shards))
        if not n:
            return None
        data = self._batches[self.drawn % self.ring]
        layout = self._mixture.layout(n)
        keys, probabilities, own = self._select(n)
        sizes = self._mixture.sizes(n)  # before any redraw, which takes in more rows
        everywhere = self._everywhere[:n]

        def copy(places: Int64s) -> Int64s:
            chosen = keys if places is everywhere else keys.at(places)
            self._view.fill(self._table, chosen, places, data, self._copier)
            torn = self._table.torn(chosen, places, self._before)
            return torn if self.guests is None else self.guests.unusable(keys, torn, places[places >= own], data)

        for places in copy_until_usable(copy, everywhere):
            self.redrawn += len(places)
            if not self._redraw(places, layout.part, keys, probabilities, own):
                return None
        self._mixture.release()
        self.drawn += 1
        self.rows_drawn += n * self._steps
        version = self._mean_version(keys, own)
        given = data if n == self.batch_size else self._view.narrowed(data, n)
        return Sample(given, keys, probabilities, sizes, version, layout.fresh)

    def _select(self, n: int) -> tuple[Keys, npt.NDArray[np.float64], int]:
        """Keys, probabilities, and how many of them are this run's own rows; those come first."""
        invited = self.guests.draws(n) if self.guests is not None else 0
        own = n - invited
        if not invited:
            return *self._mixture.select(own, self._rng), own
        keys = Keys.empty(n)
        if not self.guests.draw(invited, keys, own):  # type: ignore[union-attr]
            own = n
        # Guests are drawn uniformly: they get the probability of a row in a uniform replay of this size.
        probabilities = np.full(n, 1.0 / self._mixture.size)
        if own:  # with a ratio of 1 all are guests
            drawn = self._mixture.select(own, self._rng)
            keys.put(slice(own), drawn.keys)
            probabilities[:own] = drawn.probabilities
        return keys, probabilities, own

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Sets the priorities of rows drawn earlier; returns how many were overwritten since."""
        return self._mixture.update(keys, priorities)

    def _redraw(
        self,
        places: Int64s,
        part_of: npt.NDArray[np.int32],
        keys: Keys,
        probabilities: npt.NDArray[np.float64],
        own: int,
    ) -> bool:
        """Draws these places again, each from its part. False when a queue is empty, or all guests left."""
        self._mixture.refresh()
        foreign, places = places[places >= own], places[places < own]
        if self.guests is not None and len(foreign) and not self.guests.redraw(keys, foreign):
            return False
        for index, part in enumerate(self._mixture.parts):
            mine = places[part_of[places] == index]
            if not len(mine):
                continue
            again = part.selector.redraw(len(mine), self._rng)
            if again is None:
                return False
            keys.put(mine, again.keys)
            probabilities[mine] = again.probabilities
        return True

    def _mean_version(self, keys: Keys, count: int) -> float:
        """Mean version of the weights behind some of the first `count` keys, for a sequence behind its middle row; NaN
        when there are none.
        """
        if not count:
            return math.nan
        which, table = (self._steps // 2, count, VERSION_STRIDE), self._table
        return float(sum_uint32(*keys, *which, table.rows, table["weights_version"]) / -(-count // VERSION_STRIDE))
