"""A queue: every sequence of the stream once, in the order it was written.

The reader publishes how far it has read in the shard's `cursor`. Writers that must not lose anything wait for it
(`back_pressure`); others overwrite, and the rows that were never read are counted.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.errors import ConfigError
from shoal.replay.back_pressure import SPARE_ROWS
from shoal.replay.counters import Counters
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.shard_files import Header
from shoal.replay.stretches import Stretches
from shoal.replay.views import Span
from shoal.types import Keys, Selection

OnFull = Literal["wait", "drop"]
_CURSOR, _GRANT = int(Header.CURSOR), int(Header.GRANT)


class Queue:
    """How far one shard was read: the next is the first waiting stretch, at lane `lane`."""

    def __init__(self, shard: ShardReader, span: Span) -> None:
        self.shard, self.span = shard, span
        self._words = Counters(shard.path / "header.bin", writable=True).words
        cursor = self._words[_CURSOR]
        self.stretches = Stretches(shard, span, cursor + (span.before if cursor else 0))
        self.lane = 0
        self.dropped = 0

    @property
    def ready(self) -> int:
        """Stretches that are complete."""
        return len(self.stretches.waiting) * self.shard.lanes - self.lane

    def refresh(self) -> None:
        """Skips what was overwritten and finds what is complete."""
        floor = self.stretches.overtaken()
        if floor is not None:
            self._step_over(floor)
        self.stretches.refresh()

    def publish(self, short: int) -> None:
        """Publishes the first row still needed, and how far a waiting writer may go to complete `short` stretches."""
        # A writer that waits for the cursor must also keep the frames that the next stretch stacks.
        cursor = self._words[_CURSOR] = max(0, self.stretches.first - self.span.before)
        wanted = self.stretches.next + -(-short // self.shard.lanes) * self.span.stride + self.span.overlap + 1
        self._words[_GRANT] = min(wanted, cursor + self.shard.rows - SPARE_ROWS) if short else 0

    def take(self, count: int) -> list[int]:
        """Marks the next stretches as read, lane by lane; returns the first rows of those begun."""
        waiting = self.stretches.waiting
        whole, self.lane = divmod(self.lane + count, self.shard.lanes)
        begun = waiting[: whole + 1]
        del waiting[:whole]
        return begun

    def _step_over(self, floor: int) -> None:
        """Continues at row `floor`, or after a stretch that was read in some lanes; counts what was lost."""
        first, stride = self.stretches.first, self.span.stride
        to = max(floor, first + stride) if self.lane else floor
        self.dropped += (to - first) * self.shard.lanes - stride * self.lane
        self.stretches.restart(to)
        self.lane = 0


class Fifo(Selector):
    """Each stretch once, oldest first.

    The shard with the most unread stretches goes first, so that none is overwritten because it is last. Shards with
    equally many take turns, or the first one's actor would play most of the steps. The queue holds `capacity` unread
    stretches, or one batch if that is more. Beyond that the oldest are dropped, or the writers wait.
    """

    name = "fifo"
    fresh = True

    def __init__(self, capacity: int | None = None, on_full: OnFull = "wait") -> None:
        """Args:
        capacity: unread stretches held, over all shards and lanes; None: whatever the rings hold.
        on_full: `drop`: the oldest are skipped and counted; `wait`: nothing is skipped, the writers keep to the
            capacity (see `back_pressure.queue_rows`).
        """
        if capacity is not None and capacity < 1:
            raise ConfigError(f"A fifo's capacity is {capacity}; it must hold at least 1 sequence.")
        if on_full not in ("wait", "drop"):
            raise ConfigError(f"on_full is {on_full!r}; use 'wait' or 'drop'.")
        self._capacity, self._on_full = capacity, on_full
        self._queues: list[Queue] = []
        self._asked = 0  # the largest batch so far
        self._short = 0  # stretches missing for the batch that was last asked for
        self._passed_over = 0
        self._turn = 0  # the shard that goes first among those with equally many

    def attach(self, shard: ShardReader, span: Span) -> None:
        if not span.crosses_episodes:
            raise ConfigError("fifo hands out every row, episode ends too: use it with sequences, not transitions.")
        self._queues.append(Queue(shard, span))

    def refresh(self) -> None:
        for queue in self._queues:
            queue.refresh()
        if self._on_full == "drop" and self._capacity is not None:
            surplus = self.size - max(self._capacity, self._asked)
            if surplus > 0:
                self._take(surplus)
                self._passed_over += surplus * self._queues[0].span.stride
        self._publish(self._short)

    @property
    def size(self) -> int:
        """Complete stretches that are not read yet."""
        return sum(queue.ready for queue in self._queues)

    @property
    def dropped(self) -> int:
        """Rows that were overwritten or skipped before they were read."""
        return self._passed_over + sum(queue.dropped for queue in self._queues)

    def ready(self, n: int) -> bool:
        """Whether n stretches are complete. If not, tells waiting writers how many are missing."""
        self._asked = max(self._asked, n)
        short = max(0, n - self.size)
        if short != self._short:
            self._publish(short)
        return not short

    def most(self, n: int) -> int:
        return min(n, self.size)

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        return Selection(self._take(n), np.ones(n))

    def release(self) -> None:
        """Lets waiting writers continue during the update, each up to its limit."""
        self._publish(0)

    def spare(self) -> None:
        """Lets every waiting writer write one more stretch: other parts need new rows, and a full queue stops them."""
        self._publish(1)

    def metrics(self) -> dict[str, float]:
        """The queue's size, and the rows lost."""
        return {"queue": float(self.size), "dropped": float(self.dropped)}

    def _take(self, n: int) -> Keys:
        """The next n stretches. In one pass over all shards: small arrays per shard took longer than the draw."""
        shares = self._shares(n)
        starts: list[int] = []
        offsets, begun, done = [], [], 0
        for queue, share in zip(self._queues, shares, strict=True):
            offsets.append(queue.lane - done)
            begun.append(len(starts))
            if share:
                starts += queue.take(share)
            done += share
        shard = np.repeat(np.arange(len(shares), dtype=np.int32), shares)
        lanes = np.array([queue.shard.lanes for queue in self._queues])
        row, lane = np.divmod(np.arange(n) + np.array(offsets)[shard], lanes[shard])
        return Keys(shard, lane.astype(np.int32), np.array(starts, np.int64)[np.array(begun)[shard] + row])

    def _shares(self, n: int) -> list[int]:
        """How many of the next n stretches come from each shard."""
        turn, heights = self._turn, [queue.ready for queue in self._queues]
        shares = shares_of_fullest(heights[turn:] + heights[:turn], n)
        self._turn = (turn + n) % len(shares)  # after the last that gave one more than others
        back = len(shares) - turn
        return shares[back:] + shares[:back]

    def _publish(self, short: int) -> None:
        self._short = short
        for queue in self._queues:
            queue.publish(short)


def shares_of_fullest(heights: list[int], n: int) -> list[int]:
    """How many of n to take from each queue, always from the fullest, the first of equals; `heights` are lengths."""
    tallest, above = sorted(heights, reverse=True), 0
    for count, height in enumerate(tallest, 1):
        above += height
        lower = tallest[count] if count < len(tallest) else 0
        if above - count * lower >= n:
            break
    level = (above - n) // count
    shares = [max(0, height - level) for height in heights]
    surplus = sum(shares) - n
    for index in range(len(heights) - 1, -1, -1):
        if surplus and shares[index]:
            shares[index] -= 1
            surplus -= 1
    return shares
