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
from shoal.replay.selectors import Mixture, Part, Selector
from shoal.replay.shard import ShardReader
from shoal.replay.shard_table import ShardTable
from shoal.replay.views import Allocate, View
from shoal.types import Keys, Sample

MAX_REDRAWS = 100
VERSION_STRIDE = 8


def _touched(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    array = np.empty(shape, dtype)
    array.fill(0)  # faults every page now rather than in the first batches
    return array


class Guests(Protocol):
    """Rows of other runs, drawn beside one's own. They lie in the replay's table, behind its own shards."""

    def draws(self, batch: int) -> int:
        """How many of the next batch are to come from them."""

    def draw(self, count: int, keys: Keys, at: int) -> bool:
        """Fills keys[at : at + count]; False when there is nobody to draw from."""

    def redraw(self, keys: Keys, places: npt.NDArray[np.int64]) -> bool:
        """Draws places anew that cannot be used; False when there is nobody to draw from."""

    def unsound(self, keys: Keys, places: npt.NDArray[np.int64], batch: Any) -> npt.NDArray[np.int64]:
        """Those of the places of a batch that hold what nobody may learn from."""


class Replay:
    """Batches drawn from shards in place.

    Batches live in a ring of prepared arrays: one is valid until `ring - 1` further ones were drawn. Not thread-safe;
    give it to one thread (`prefetch.Prefetcher` does).
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
        selector: which rows.
        view: how rows become a batch.
        batch_size: draws per batch, at most.
        ring: prepared batches.
        seed: of the draws.
        threads: for copying large rows.
        allocate: makes the batches' arrays (pinned memory for a GPU).
        guests: makes what draws rows of other runs, from the table that they are to be added to.
        batch_min: with it a batch need not be whole: when a queue holds less, `sample` takes what is ready, down to
            this many draws. None: whole batches only.
        """
        if not shards:
            raise ReplayError("A replay needs at least one shard.")
        self.batch_size = batch_size
        self._schema = shards[0].info.schema
        self._view, self._copier, self._before = view, Copier(threads), view.span.before
        self._mixture = selector if isinstance(selector, Mixture) else Mixture([Part(selector, 1.0)])
        self._least = self._smallest(batch_min)
        self._layouts = {batch_size: (self._mixture.part_of(batch_size), self._mixture.fresh_of(batch_size))}
        self._rng = np.random.default_rng(seed)
        self._ring = [view.allocate(self._schema, batch_size, allocate) for _ in range(ring)]
        self.drawn = 0
        """Batches so far."""
        self.rows_drawn = 0
        """Draws so far, times the steps of a sequence."""
        self.lacking = 0
        """Steps worth waiting for, those of a batch, when the last `sample` had too little to draw from."""
        self._steps = view.span.stride if view.span.crosses_episodes else 1
        self._everywhere = np.arange(batch_size)
        self.redrawn = 0
        self.shards: list[ShardReader] = []
        self._table = ShardTable()
        for shard in shards:
            self.attach(shard)
        self.guests = guests(self._table) if guests is not None else None
        if self.guests is not None and (len(self._mixture.parts) > 1 or view.span.crosses_episodes):
            raise ConfigError(
                "Sharing with other runs needs transitions and a single selector, not sequences or a mixture."
            )
        self._mixture.ready(batch_size)  # a queue that drops hears how much it must hold

    def _smallest(self, batch_min: int | None) -> int:
        """The smallest batch from `batch_min` on that divides by the ratios."""
        if batch_min is None:
            return self.batch_size
        if not 1 <= batch_min <= self.batch_size:
            raise ConfigError(f"batch_min is {batch_min}; it must lie between 1 and the batch size, {self.batch_size}.")
        return next(n for n in range(batch_min, self.batch_size + 1) if self._mixture.divides(n))

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
    def ring(self) -> int:
        """Prepared batches."""
        return len(self._ring)

    @property
    def size(self) -> int:
        """Rows that could be drawn, as of the last `refresh` or `sample`."""
        return self._mixture.size

    @property
    def mean_batch(self) -> float:
        """Mean draws per batch; less than `batch_size` when batches need not be whole."""
        return self.rows_drawn / (self._steps * self.drawn) if self.drawn else 0.0

    def metrics(self) -> dict[str, float]:
        """What the selectors report, by their names."""
        return self._mixture.metrics()

    def refresh(self) -> None:
        """Takes in what the writers did since."""
        self._mixture.refresh()

    def sample(self) -> Sample | None:
        """The next batch, or None when there is not enough to draw from."""
        self._mixture.refresh()
        n = self._mixture.fitting(self._least, self.batch_size)
        self.lacking = 0 if n else max(self.batch_size * self._steps, sum(shard.lanes for shard in self.shards))
        if not n:
            return None
        data = self._ring[self.drawn % len(self._ring)]
        part, fresh = self._layout(n)
        keys, probabilities, own = self._select(n)
        sizes = self._mixture.sizes(part)  # now: drawing places anew takes in more rows
        torn = self._unusable(self._fill(keys, self._everywhere[:n], data), self._everywhere[own:n], keys, data)
        for _ in range(MAX_REDRAWS):
            if not len(torn):
                break
            self.redrawn += len(torn)
            if not self._redraw(torn, part, keys, probabilities, own):
                return None
            torn = self._unusable(self._fill(keys.at(torn), torn, data), torn[torn >= own], keys, data)
        else:
            raise ReplayError(
                f"The writer overtook {len(torn)} rows {MAX_REDRAWS} times while they were copied. "
                "Raise replay.capacity."
            )
        self._mixture.release()
        self.drawn += 1
        self.rows_drawn += n * self._steps
        # Every eighth row tells the age as well as all do, and spares the memory as many cache misses.
        version = self._mean_version(keys, own, VERSION_STRIDE)
        given = data if n == self.batch_size else self._view.narrowed(data, n)
        return Sample(given, keys, probabilities, sizes, part, version, fresh)

    def _layout(self, n: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Which part each draw comes from, and whether that is a queue."""
        known = self._layouts.get(n)
        if known is None:
            known = self._layouts[n] = (self._mixture.part_of(n), self._mixture.fresh_of(n))
        return known

    def _select(self, n: int) -> tuple[Keys, npt.NDArray[np.float64], int]:
        """Keys, probabilities, and how many of them, the first ones, are of one's own rows."""
        invited = self.guests.draws(n) if self.guests is not None else 0
        own = n - invited
        if not invited:
            return *self._mixture.select(own, self._rng), own
        keys = Keys.empty(n)
        if not self.guests.draw(invited, keys, own):  # type: ignore[union-attr]
            own = n
        # Guests are drawn uniformly: they weigh what a row of a uniform replay of this size would.
        probabilities = np.full(n, 1.0 / self._mixture.size)
        if own:  # with a ratio of 1 all are guests
            drawn = self._mixture.select(own, self._rng)
            keys.put(slice(own), drawn.keys)
            probabilities[:own] = drawn.probabilities
        return keys, probabilities, own

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Sets the priorities of rows drawn earlier; returns how many were overwritten since."""
        return self._mixture.update(keys, priorities)

    def _fill(self, keys: Keys, target: npt.NDArray[np.int64], data: Any) -> npt.NDArray[np.int64]:
        """Copies rows into the places `target` of a batch; returns the places whose rows the writer reached
        meanwhile.
        """
        self._view.fill(self._table, keys, target, data, self._copier)
        # Before a ring is full nothing is overwritten; its first rows have no frames before them.
        safe = [oldest + self._before if (oldest := shard.oldest) else 0 for shard in self._table.shards]
        if keys.logical.min() >= max(safe):  # nearly always
            return target[:0]
        return target[keys.logical < np.array(safe)[keys.shard]]

    def _unusable(
        self, torn: npt.NDArray[np.int64], foreign: npt.NDArray[np.int64], keys: Keys, data: Any
    ) -> npt.NDArray[np.int64]:
        """The torn places, and those of the foreign ones that hold what nobody may learn from."""
        if self.guests is None or not len(foreign):
            return torn
        whole = np.setdiff1d(foreign, torn) if len(torn) else foreign
        bad = self.guests.unsound(keys, whole, data)
        return np.concatenate([torn, bad]) if len(bad) else torn

    def _redraw(
        self,
        torn: npt.NDArray[np.int64],
        part_of: npt.NDArray[np.int32],
        keys: Keys,
        probabilities: npt.NDArray[np.float64],
        own: int,
    ) -> bool:
        """Draws the places anew, each from the part it belongs to. False when a queue ran dry, or all guests left."""
        self._mixture.refresh()
        foreign, torn = torn[torn >= own], torn[torn < own]
        if len(foreign):
            if not self.guests.redraw(keys, foreign):  # type: ignore[union-attr]
                return False
        for index, part in enumerate(self._mixture.parts):
            places = torn[part_of[torn] == index]
            if not len(places):
                continue
            again = part.selector.redraw(len(places), self._rng)
            if again is None:
                return False
            keys.put(places, again.keys)
            probabilities[places] = again.probabilities
        return True

    def _mean_version(self, keys: Keys, count: int, stride: int) -> float:
        """Mean version of the weights behind every `stride`-th of the first `count` keys; NaN when there are none."""
        if not count:
            return math.nan
        total = sum_uint32(*keys, count, stride, self._table.rows, self._table["weights_version"])
        return float(total) / len(range(0, count, stride))
