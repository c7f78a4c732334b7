"""Circular: a queue whose batches are used several times (IMPACT, Luo et al., https://arxiv.org/abs/1912.00167).

N slots hold the keys of one batch each. They are served in turn, each K times, and then refilled from the queue. A slot
holds keys, not rows, so its rows must stay in the ring until its last pass. They do when the ring is longer than the
queue by the rows of all slots, `N * batch * steps / lanes` per shard; a writer waits for the queue, not for the slots.
A slot whose rows the writer has nearly reached is discarded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector, safe_from
from shoal.replay.selectors.fifo import Fifo
from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import Keys, Selection


@dataclass
class _Slot:
    """One batch, and how many passes are left."""

    keys: Keys
    left: int


class Circular(Selector):
    """Batches of a queue, each served `passes` times, `slots` of them in turn."""

    name = "circular"
    fresh = True

    def __init__(self, fifo: Fifo, slots: int, passes: int) -> None:
        """Args:
        fifo: where batches come from; nobody else may read it.
        slots: batches held.
        passes: times each is served.
        """
        if slots < 1 or passes < 1:
            raise ConfigError(f"slots and passes must be at least 1; got {slots} and {passes}.")
        self._fifo, self._passes = fifo, passes
        self._slots: list[_Slot | None] = [None] * slots
        self._turn = 0
        self._shards: list[ShardReader] = []
        self._before = 0
        self.discarded = 0
        """Batches whose rows were overwritten before their last pass."""

    def attach(self, shard: ShardReader, span: Span) -> None:
        self._fifo.attach(shard, span)
        self._shards.append(shard)
        self._before = span.before

    def refresh(self) -> None:
        self._fifo.refresh()
        safe = safe_from(self._shards, self._before)
        if not safe.any():
            return
        for place, slot in enumerate(self._slots):
            if slot is not None and np.any(slot.keys.logical < safe[slot.keys.shard]):
                self._slots[place] = None
                self.discarded += 1

    @property
    def size(self) -> int:
        """Sequences held and waiting."""
        return self._fifo.size + sum(len(slot.keys.logical) for slot in self._slots if slot is not None)

    def ready(self, n: int) -> bool:
        """Whether a slot of n has passes left, or the queue holds n to fill one."""
        if self._next(n) is not None:
            return True
        self._fifo.ready(n)  # tells waiting writers what is missing
        return False

    def most(self, n: int) -> int:
        """The larger of the largest slot with passes left and what the queue holds."""
        held = [len(slot.keys.logical) for slot in self._slots if slot is not None]
        return max((size for size in (*held, self._fifo.most(n)) if size <= n), default=0)

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """n may differ between batches; a slot is served whole."""
        place = self._next(n)
        assert place is not None, "ask `ready` first"
        slot = self._slots[place]
        if slot is None:
            slot = self._slots[place] = _Slot(self._fifo.select(n, rng).keys, self._passes)
        slot.left -= 1
        if not slot.left:
            self._slots[place] = None
        self._turn = (place + 1) % len(self._slots)
        return Selection(slot.keys.at(np.arange(n)), np.ones(n))  # a copy: redraws change it

    def redraw(self, n: int, rng: np.random.Generator) -> Selection | None:
        """From the queue, else from any slot, which does not count as a pass: it is only a few rows."""
        if self._fifo.size >= n:
            return self._fifo.select(n, rng)
        held = next((slot.keys for slot in self._slots if slot is not None), None)
        return None if held is None else Selection(held.at(rng.integers(len(held.logical), size=n)), np.ones(n))

    def release(self) -> None:
        self._fifo.release()

    def spare(self) -> None:
        self._fifo.spare()

    def metrics(self) -> dict[str, float]:
        """The queue's metrics, and how many batches were discarded."""
        return {**self._fifo.metrics(), "discarded": float(self.discarded)}

    def _next(self, n: int) -> int | None:
        """The next slot in turn that can serve n: one to fill, if the queue holds n, or one of n with passes left."""
        fills = self._fifo.size >= n
        for step in range(len(self._slots)):
            place = (self._turn + step) % len(self._slots)
            slot = self._slots[place]
            if fills if slot is None else len(slot.keys.logical) == n:
                return place
        return None
