"""Pool: the buffers of a group as one run sees them, its own first, and draws from them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay import Keys, Schema, ShardReader
from shoal.replay.draws import Draws
from shoal.replay.table import Table
from shoal.sharing.description import Description
from shoal.sharing.registry import Entry, Registry
from shoal.sharing.strategies import NEWEST, Strategy, pool_draws, pool_weights

REFRESH_SECONDS = 1.0
"""Between two looks at who is there."""
READ = ("obs", "action", "reward", "terminated", "truncated", "boundary")


@dataclass
class Drawn:
    """What was read from one buffer."""

    samples: int = 0
    age: float = 0.0
    """Sum over samples: how many rows of its lane are newer."""


@dataclass
class _Buffer:
    """One buffer of the pool: its shards lie side by side in the table, from `place` on."""

    entry: Entry | None
    """None for one's own."""
    count: int
    place: int = 0
    drawn: Drawn = field(default_factory=Drawn)

    @property
    def mine(self) -> slice:
        """Its places in the table."""
        return slice(self.place, self.place + self.count)


class Pool:
    """Draws from a group's buffers by a strategy. Peers that do not fit are refused once, and named."""

    def __init__(
        self,
        own: Sequence[ShardReader],
        own_id: str,
        registry: Registry,
        description: Description,
        strategy: Strategy,
        ratio: float,
        *,
        n_steps: int = 1,
        before: int = 0,
        seed: int = 0,
        table: Table | None = None,
    ) -> None:
        """Args:
        own: this run's shards.
        own_id: this run's buffer.
        registry: where the others are found.
        description: what this run's rows mean.
        strategy: which buffers are drawn from.
        ratio: the pool's part of a batch.
        n_steps: steps of a transition.
        before: rows before the first that a stack of frames reaches back.
        seed: of the draws.
        table: one that holds this run's shards already.
        """
        self._registry, self._own_id, self._description = registry, own_id, description
        self._strategy, self._ratio, self._schema = strategy, ratio, own[0].info.schema
        self._rng = np.random.default_rng(seed)
        self.table = Table(own) if table is None else table
        self._draws = Draws(self.table, n_steps, before)
        self._buffers = [_Buffer(None, len(own))]
        self._looked = -REFRESH_SECONDS
        self.refused: dict[str, str] = {}
        self._known: dict[str, Drawn] = {}  # also of peers that left
        self._run_of: dict[str, str] = {}
        self._chances: npt.NDArray[np.float64] | None = None  # of each shard to be drawn from; None: of nobody
        self._counts: npt.NDArray[np.int64] = np.zeros(len(own), np.int64)

    @property
    def peers(self) -> list[Entry]:
        """The buffers of others that are attached."""
        return [buffer.entry for buffer in self._buffers if buffer.entry is not None]

    def refresh(self) -> None:
        """Looks who joined and who left, and what they wrote, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._looked < REFRESH_SECONDS:
            return
        self._looked = now
        self._settle()
        there = {entry.buffer_id: entry for entry in self._registry.entries() if entry.buffer_id != self._own_id}
        for buffer in list(self._buffers):
            if buffer.entry is not None and there.get(buffer.entry.buffer_id) != buffer.entry:
                self._detach(buffer)
        attached = {entry.buffer_id for entry in self.peers}
        for buffer_id, entry in there.items():
            if buffer_id not in attached and entry.description is not None and entry.shards:
                self._attach(entry)
        runs = {entry.run_id for entry in there.values()}
        self.refused = {run: why for run, why in self.refused.items() if run in runs}
        self.refused |= dict.fromkeys(self._registry.damaged(), "its entry.json cannot be read")
        self._plan()

    def draws(self, batch: int) -> int:
        """How many of the next batch come from the pool; 0 while there is nobody to share with."""
        if self._strategy == "local_only" or self._ratio == 0.0:
            return 0
        self.refresh()
        return 0 if self._chances is None else pool_draws(self._ratio, batch, self._rng)

    def draw(self, count: int, keys: Keys, at: int) -> bool:
        """Fills keys[at : at + count], one buffer after the other; False when there is nobody to draw from."""
        if self._chances is None:
            return False
        counts = self._rng.multinomial(count, self._chances)
        if not self._draws.draw(counts, self._rng, keys, at):
            return False
        self._counts += counts
        return True

    def redraw(self, keys: Keys, places: npt.NDArray[np.int64]) -> bool:
        """Draws places anew that their writers reached, from windows as they are now; False when there is nobody."""
        shard = keys.shard[places]
        np.subtract.at(self._counts, shard, 1)
        np.subtract.at(self._draws.ages, shard, self._draws.stop[shard] - 1 - keys.logical[places])
        self._settle()
        self._plan()
        again = Keys.empty(len(places))
        if not self.draw(len(places), again, 0):
            return False
        keys.put(places, again)
        return True

    def _plan(self) -> None:
        """How likely each shard is to be drawn from, until the next look."""
        self._draws.look()
        if self._strategy == "newest":
            self._draws.keep_newest(NEWEST)
        self._counts = np.zeros(len(self.table.shards), np.int64)
        rows, sizes = self._draws.sizes, self._sizes()
        sizes[1:][self._held()[1:] < self._registry.min_buffer_size] = 0
        weights = pool_weights(self._strategy, sizes)
        chances = np.zeros(len(rows))
        for weight, buffer in zip(weights.tolist(), self._buffers, strict=True):
            if weight:
                chances[buffer.mine] = weight * rows[buffer.mine] / rows[buffer.mine].sum()
        self._chances = chances / chances.sum() if weights.any() else None

    def _held(self) -> npt.NDArray[np.int64]:
        """Rows of each buffer, those beside the writer too that are not drawn."""
        rows = [min(shard.head, shard.rows) * shard.lanes for shard in self.table.shards]
        return np.array([sum(rows[buffer.mine]) for buffer in self._buffers], np.int64)

    def _settle(self) -> None:
        """Adds up what was read since the last look, before places in the table change."""
        for buffer in self._buffers:
            buffer.drawn.samples += int(self._counts[buffer.mine].sum())
            buffer.drawn.age += int(self._draws.ages[buffer.mine].sum())
        self._counts[:] = 0
        self._draws.ages[:] = 0

    def torn(self, keys: Keys, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of the places that their writers reached since they were drawn."""
        return places[keys.logical[places] < self.table.oldest()[keys.shard[places]]]

    def counted(self) -> dict[str, Drawn]:
        """What was read of every run but one's own, by run. Changes nothing: another thread may ask."""
        totals: dict[str, Drawn] = {}
        for buffer in self._buffers:
            if buffer.entry is not None:
                recent = totals.setdefault(buffer.entry.run_id, Drawn())
                recent.samples += int(self._counts[buffer.mine].sum())
                recent.age += int(self._draws.ages[buffer.mine].sum())
        for buffer_id, drawn in self._known.items():
            known = totals.setdefault(self._run_of[buffer_id], Drawn())
            known.samples += drawn.samples
            known.age += drawn.age
        return totals

    def sizes(self) -> dict[str, int]:
        """Rows to draw from, by run, as of the last look."""
        sizes: dict[str, int] = {}
        for buffer, size in zip(self._buffers, self._sizes().tolist(), strict=True):
            if buffer.entry is not None:
                sizes[buffer.entry.run_id] = sizes.get(buffer.entry.run_id, 0) + size
        return sizes

    def _sizes(self) -> npt.NDArray[np.int64]:
        rows = self._draws.sizes
        return np.array([rows[buffer.mine].sum() for buffer in self._buffers], np.int64)

    def _attach(self, entry: Entry) -> None:
        assert entry.description is not None
        difference = self._description.difference(entry.description)
        shards: list[ShardReader] = []
        if not difference:
            try:
                shards = [ShardReader(path) for path in entry.shards]
            except (ReplayError, OSError) as error:
                if not self._registry.folder(entry.buffer_id).is_dir():
                    return  # it left between two looks
                difference = str(error)
        if not difference:
            difference = next(filter(None, (self._unlike(shard.info.schema) for shard in shards)), "")
        if difference:
            self.refused[entry.run_id] = difference
            return
        self.refused.pop(entry.run_id, None)
        place = len(self.table.shards)
        for shard in shards:
            self.table.add(shard)
        drawn = self._known.setdefault(entry.buffer_id, Drawn())
        self._run_of[entry.buffer_id] = entry.run_id
        self._buffers.append(_Buffer(entry, len(shards), place, drawn))

    def _unlike(self, other: Schema) -> str:
        if "next_obs" in other and replace(other["next_obs"], name="obs") != self._schema["obs"]:
            return f"next_obs is {other['next_obs']} there and {self._schema['obs']} here"
        return self._schema.difference(other, READ)

    def _detach(self, buffer: _Buffer) -> None:
        for _ in range(buffer.count):
            self.table.remove(buffer.place)
        self._buffers.remove(buffer)
        for other in self._buffers:
            if other.place > buffer.place:
                other.place -= buffer.count
