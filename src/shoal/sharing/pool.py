"""Pool: the buffers of a group from the view of one run, its own first, and draws from them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay import Keys, ShardReader
from shoal.replay.draws import Draws
from shoal.replay.shard_table import ShardTable
from shoal.sharing.description import Description, one_line
from shoal.sharing.peer import find_fault, open_peer
from shoal.sharing.registry import Registry
from shoal.sharing.shared_buffer import SharedBuffer
from shoal.sharing.soundness import Soundness
from shoal.sharing.strategies import NEWEST, Strategy, pool_draws, pool_weights
from shoal.types import Transition

REFRESH_SECONDS = 1.0
"""Time between two looks at the registry."""


@dataclass
class Drawn:
    """What was read from one buffer."""

    run_id: str = ""
    samples: int = 0
    age: float = 0.0
    """Sum over samples of the number of newer rows in the lane."""


@dataclass
class _Buffer:
    """One buffer of the pool: its shards are neighbours in the table, from `place` on."""

    entry: SharedBuffer | None
    """None for this run's own."""
    count: int
    place: int = 0
    drawn: Drawn = field(default_factory=Drawn)

    @property
    def indices(self) -> slice:
        """Its indices in the table."""
        return slice(self.place, self.place + self.count)


class Pool:
    """Draws from a group's buffers by a strategy. Peers that do not fit, or hand out unusable rows, are refused and
    named. The others are read.

    One thread draws. Other threads may read `peers`, `refused`, `counted` and `sizes`.
    """

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
        table: ShardTable | None = None,
        soundness: Soundness | None = None,
        counted: dict[str, Drawn] | None = None,
    ) -> None:
        """Args:
        own: this run's shards.
        own_id: this run's buffer.
        registry: where the others are found.
        description: what this run's rows mean.
        strategy: which buffers are drawn from.
        ratio: the pool's part of a batch.
        n_steps: steps of a transition.
        before: rows read before the first one, for stacked frames.
        seed: of the draws.
        table: a table that holds this run's shards already.
        soundness: what others' rows must fulfil; by default they must be finite.
        counted: what an earlier pool of this run has read.
        """
        self._registry, self._own_id, self._description = registry, own_id, description
        self._strategy, self._ratio, self._schema = strategy, ratio, own[0].info.schema
        self._rng = np.random.default_rng(seed)
        self.table = ShardTable(own) if table is None else table
        self._draws = Draws(self.table, n_steps, before)
        self._buffers = [_Buffer(None, len(own))]
        self._looked = -REFRESH_SECONDS
        self.refused: dict[str, str] = {}
        """Run to reason. Never changed, only replaced, because other threads read it."""
        self.known: dict[str, Drawn] = {} if counted is None else counted
        """What was read from each buffer, including those that left."""
        self._soundness = soundness or Soundness()
        self._faulty: dict[str, tuple[SharedBuffer, str]] = {}  # until they announce themselves again
        self._lock = threading.Lock()  # held while buffers come and go
        self._probabilities: npt.NDArray[np.float64] | None = None  # of the shards; None: nobody to draw from
        self._counts: npt.NDArray[np.int64] = np.zeros(len(own), np.int64)

    @property
    def peers(self) -> list[SharedBuffer]:
        """The buffers of others that are attached."""
        with self._lock:
            return self._peers()

    def _peers(self) -> list[SharedBuffer]:
        return [buffer.entry for buffer in self._buffers if buffer.entry is not None]

    def refresh(self) -> None:
        """Looks for buffers that joined or left and for new rows, at most once per REFRESH_SECONDS."""
        now = time.monotonic()
        if now - self._looked < REFRESH_SECONDS:
            return
        self._looked = now
        entries, damaged = self._registry.look()
        there = {entry.buffer_id: entry for entry in entries if entry.buffer_id != self._own_id}
        refused = {name: why for name, why in damaged.items() if name != self._own_id}
        with self._lock:
            self._settle()
            self._find_faults()
            self._faulty = {name: faulty for name, faulty in self._faulty.items() if there.get(name) == faulty[0]}
            for buffer in self._buffers[1:]:
                assert buffer.entry is not None
                if there.get(buffer.entry.buffer_id) != buffer.entry or buffer.entry.buffer_id in self._faulty:
                    self._detach(buffer)
            refused |= {entry.run_id: why for entry, why in self._faulty.values()}
            attached = {entry.buffer_id for entry in self._peers()}
            for buffer_id, entry in there.items():
                if entry.refused:
                    refused[entry.run_id] = one_line(entry.refused)
                if buffer_id in attached or buffer_id in self._faulty or entry.description is None or not entry.shards:
                    continue
                if why := self._attach(entry, entry.description):
                    refused[entry.run_id] = why
            self.refused = refused
            self._plan()

    def _find_faults(self) -> None:
        """Checks whether the files of peers are still as they were when they were opened."""
        for buffer in self._buffers[1:]:
            assert buffer.entry is not None
            if why := next(filter(None, map(find_fault, self.table.shards[buffer.indices])), ""):
                self._faulty[buffer.entry.buffer_id] = (buffer.entry, why)

    def draws(self, batch: int) -> int:
        """How many of the next batch come from the pool; 0 while there is nobody to share with."""
        if self._strategy == "local_only" or self._ratio == 0.0:
            return 0
        self.refresh()
        return 0 if self._probabilities is None else pool_draws(self._ratio, batch, self._rng)

    def draw(self, count: int, keys: Keys, at: int) -> bool:
        """Fills keys[at : at + count], one buffer after the other; False when there is nobody to draw from."""
        while self._probabilities is not None:
            counts = self._rng.multinomial(count, self._probabilities)
            if self._draws.draw(counts, self._rng, keys, at):
                self._counts += counts
                return True
            # A shard without usable rows does not stop the others; it is tried again after the next look.
            self._probabilities[self._draws.barren] = 0.0
            total = self._probabilities.sum()
            self._probabilities = self._probabilities / total if total > 0 else None
        return False

    def redraw(self, keys: Keys, places: npt.NDArray[np.int64]) -> bool:
        """Replaces draws that cannot be used, from windows as they are now; False when there is nobody to draw from."""
        shard = keys.shard[places]
        np.subtract.at(self._counts, shard, 1)
        np.subtract.at(self._draws.ages, shard, self._draws.stop[shard] - 1 - keys.logical[places])
        with self._lock:
            self._settle()
            self._plan()
        again = Keys.empty(len(places))
        if not self.draw(len(places), again, 0):
            return False
        keys.put(places, again)
        return True

    def _plan(self) -> None:
        """Computes the probability of each shard, for use until the next look."""
        self._draws.look()
        if self._strategy == "newest":
            self._draws.keep_newest(NEWEST)
        self._counts = np.zeros(len(self.table.shards), np.int64)
        rows, sizes = self._draws.sizes, self._sizes()
        sizes[1:][self._held()[1:] < self._registry.min_buffer_size] = 0
        for place, buffer in enumerate(self._buffers):
            if buffer.entry is not None and buffer.entry.buffer_id in self._faulty:
                sizes[place] = 0
        weights = pool_weights(self._strategy, sizes)
        probabilities = np.zeros(len(rows))
        for weight, buffer in zip(weights.tolist(), self._buffers, strict=True):
            if weight:
                probabilities[buffer.indices] = weight * rows[buffer.indices] / rows[buffer.indices].sum()
        self._probabilities = probabilities / probabilities.sum() if weights.any() else None

    def _held(self) -> npt.NDArray[np.int64]:
        """Rows of each buffer, including those close to the writer, which are not drawn."""
        rows = [min(shard.head, shard.rows) * shard.lanes for shard in self.table.shards]
        return np.array([sum(rows[buffer.indices]) for buffer in self._buffers], np.int64)

    def _settle(self) -> None:
        """Adds up what was read since the last look, before indices in the table change."""
        for buffer in self._buffers:
            buffer.drawn.samples += int(self._counts[buffer.indices].sum())
            buffer.drawn.age += int(self._draws.ages[buffer.indices].sum())
        self._counts[:] = 0
        self._draws.ages[:] = 0

    def unusable(
        self, keys: Keys, torn: npt.NDArray[np.int64], places: npt.NDArray[np.int64], batch: Transition
    ) -> npt.NDArray[np.int64]:
        """The torn places, and those of `places` that are unsound."""
        whole = np.setdiff1d(places, torn) if len(torn) else places
        return np.concatenate([torn, self.unsound(keys, whole, batch)])

    def unsound(self, keys: Keys, places: npt.NDArray[np.int64], batch: Transition) -> npt.NDArray[np.int64]:
        """Those of the places where another run's row is unusable. That run is no longer read."""
        foreign = places[keys.shard[places] >= self._buffers[0].count]
        faults = self._soundness.faults(batch, foreign) if len(foreign) else {}
        for place, why in faults.items():
            shard = keys.shard[place]
            entry = next(one.entry for one in self._buffers if one.place <= shard < one.place + one.count)
            assert entry is not None
            if entry.buffer_id not in self._faulty:
                self._faulty[entry.buffer_id] = (entry, why)
                self.refused = {**self.refused, entry.run_id: why}
        return np.array(list(faults), np.int64)

    def counted(self) -> dict[str, Drawn]:
        """What was read from the other runs, by run. Changes nothing, because other threads may call it."""
        totals: dict[str, Drawn] = {}
        with self._lock:
            for drawn in self.known.values():
                known = totals.setdefault(drawn.run_id, Drawn(drawn.run_id))
                known.samples += drawn.samples
                known.age += drawn.age
            for buffer in self._buffers[1:]:
                recent = totals[buffer.drawn.run_id]
                recent.samples += int(self._counts[buffer.indices].sum())
                recent.age += int(self._draws.ages[buffer.indices].sum())
        return totals

    def sizes(self) -> dict[str, int]:
        """Rows to draw from, by run, as of the last look."""
        sizes: dict[str, int] = {}
        with self._lock:
            for buffer, size in zip(self._buffers, self._sizes().tolist(), strict=True):
                if buffer.entry is not None:
                    sizes[buffer.entry.run_id] = sizes.get(buffer.entry.run_id, 0) + size
        return sizes

    def _sizes(self) -> npt.NDArray[np.int64]:
        rows = self._draws.sizes
        return np.array([rows[buffer.indices].sum() for buffer in self._buffers], np.int64)

    def _attach(self, entry: SharedBuffer, description: Description) -> str:
        """Adds a peer; returns why it is refused, or an empty text."""
        if difference := self._description.difference(description):
            return difference
        try:
            shards = open_peer(entry.shards, self._schema, {shard.path for shard in self.table.shards})
        except ReplayError as error:
            # A peer that left between two looks is not worth a message.
            return str(error) if self._registry.folder(entry.buffer_id).is_dir() else ""
        place = len(self.table.shards)
        for shard in shards:
            self.table.add(shard)
        drawn = self.known.setdefault(entry.buffer_id, Drawn(entry.run_id))
        self._buffers.append(_Buffer(entry, len(shards), place, drawn))
        return ""

    def _detach(self, buffer: _Buffer) -> None:
        for _ in range(buffer.count):
            self.table.remove(buffer.place)
        self._buffers.remove(buffer)
        for other in self._buffers:
            if other.place > buffer.place:
                other.place -= buffer.count
