"""Pace: who may go on. An actor asks before every vector step, the learner before every batch.

A pace reads counters and never waits itself: a caller that is refused asks again a little later. The rules are pure
(`rate_limiter`, `back_pressure`); here they meet the counters of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shoal.replay.back_pressure import BackPressure
from shoal.replay.counters import Counters
from shoal.replay.ledger import Ledger, LedgerWord
from shoal.replay.rate_limiter import RateLimiter
from shoal.replay.shard import ShardWriter
from shoal.replay.shard_files import Header

_HEAD, _GRANT = int(Header.HEAD), int(Header.GRANT)


class Pace(Protocol):
    """When the actors and the learner of a run may go on."""

    longest_wait: float
    """Seconds that an actor waits at most before it asks again."""

    def may_act(self) -> bool:
        """Whether this actor may write its next vector step."""

    def may_learn(self) -> bool:
        """Whether the learner may draw its next batch."""

    def batches_due(self, rows: int) -> int:
        """How many batches of so many rows the learner should draw before the actors go on, if they take turns."""

    def grant(self, steps: int) -> None:
        """Lets the actors write so many more steps in any case. For a learner that may draw and cannot, because there
        is too little to draw from: it would wait for actors that wait for it.
        """


class RatePace:
    """Keeps samples and inserts at a ratio."""

    longest_wait = 0.008  # each look takes a little of the learner's time

    def __init__(self, ledger: Ledger, limiter: RateLimiter) -> None:
        self._ledger, self._limiter = ledger, limiter

    def may_act(self) -> bool:
        ledger = self._ledger
        return self._limiter.may_insert(ledger.inserts, ledger[LedgerWord.SAMPLES], ledger[LedgerWord.GRANT])

    def may_learn(self) -> bool:
        return self._limiter.may_sample(self._ledger.inserts, self._ledger[LedgerWord.SAMPLES])

    def batches_due(self, rows: int) -> int:
        inserts = self._ledger.inserts
        if inserts < self._limiter.min_size:
            return 0
        if self._limiter.samples_per_insert is None:
            return 1
        behind = self._limiter.error(inserts, self._ledger[LedgerWord.SAMPLES])
        return max(1, int(behind // rows)) if behind > 0 else 0

    def grant(self, steps: int) -> None:
        self._ledger[LedgerWord.GRANT] = self._ledger.inserts + steps


class QueuePace:
    """Actors wait while the queue is full; the learner takes what the queue has."""

    longest_wait = 0.001  # a batch may be learned from in a few of these

    def __init__(self, ledger: Ledger, min_size: int, queue: BackPressure | None = None) -> None:
        """Args:
        ledger: the run's counts.
        min_size: steps to insert before the first batch; until then nobody waits for the queue.
        queue: the asking actor's shard of it; None for those who do not act.
        """
        self._ledger, self._min_size, self._queue = ledger, min_size, queue

    def may_act(self) -> bool:
        return self._queue is None or not self._queue.full or self._ledger.inserts < self._min_size

    def may_learn(self) -> bool:
        return self._ledger.inserts >= max(1, self._min_size)

    def batches_due(self, rows: int) -> int:
        return int(self.may_learn())

    def grant(self, steps: int) -> None:
        """Nothing: the queue's reader grants rows of each shard, see `back_pressure`."""


class BarrierPace:
    """Actors and learner meet: each actor writes one rollout, the learner waits for them and takes them all.

    The rule is one number in each shard's header, `grant`: the row at which its rollout is complete. The learner raises
    it when it has published the weights for the next one (see `selectors/rollout.py`). An actor that was restarted goes
    on to the same row. A stream that was cut is granted the rows it lacks as soon as the others are done.
    """

    longest_wait = 0.001

    def __init__(self, shards: Sequence[Path], share: float, writer: ShardWriter | None = None) -> None:
        """Args:
        shards: of all actors.
        share: of the actors that must be done.
        writer: the shard of the actor that asks; None for those who do not act.
        """
        self._headers = [Counters(shard / "header.bin", writable=False).words for shard in shards]
        self._missing = len(shards) - math.ceil(share * len(shards))
        self._own = None if writer is None else writer.header.words

    def may_act(self) -> bool:
        return self._own is None or self._own[_HEAD] < self._own[_GRANT]

    def may_learn(self) -> bool:
        return sum([words[_HEAD] < words[_GRANT] for words in self._headers]) <= self._missing

    def batches_due(self, rows: int) -> int:
        return int(self.may_learn())

    def grant(self, steps: int) -> None:
        """Nothing: the selector grants rows of each shard."""
