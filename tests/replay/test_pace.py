"""Pace: the rules of rate limiter and queue, on the counters of a run."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.replay import BackPressure, Header, Ledger, LedgerWord, RateLimiter, ShardWriter
from shoal.replay.pace import Pace, QueuePace, RatePace


class Run:
    """A shard of 2 lanes, its writer and the run's ledger."""

    def __init__(self, marked: ModuleType, shards: Any, folder: Path) -> None:
        path = shards.make(marked.info(64, 2))
        self._marked, self.writer, self.ledger = marked, ShardWriter(path), Ledger(folder, [path])

    def insert(self, rows: int) -> None:
        self.writer.append_chunk(self._marked.block_of(0, 2, self.writer.head, rows))


@pytest.fixture
def run(marked: ModuleType, shards: Any, tmp_path: Path) -> Run:
    return Run(marked, shards, tmp_path)


def answers(pace: Pace) -> tuple[bool, bool, int]:
    return pace.may_act(), pace.may_learn(), pace.batches_due(8)


def test_a_rate(run: Run) -> None:
    pace = RatePace(run.ledger, RateLimiter(min_size=10, samples_per_insert=4.0, tolerance=20.0))
    assert answers(pace) == (True, False, 0)
    run.insert(5)
    assert answers(pace) == (True, True, 0), "it may draw, but is not behind"
    run.insert(3)  # 16 inserts: 24 samples are due
    assert answers(pace) == (False, True, 3)
    run.ledger[LedgerWord.SAMPLES] = 20
    assert answers(pace) == (True, True, 1), "behind by half a batch is a batch"
    run.ledger[LedgerWord.SAMPLES] = 44
    assert answers(pace) == (True, False, 0)


def test_a_grant_lets_actors_go_on_so_far(run: Run) -> None:
    pace = RatePace(run.ledger, RateLimiter(min_size=10, samples_per_insert=4.0, tolerance=20.0))
    run.insert(8)
    assert not pace.may_act()
    pace.grant(3)
    assert pace.may_act()
    run.insert(2)  # rows of two lanes: 20 inserts, of 19 granted
    assert not pace.may_act()
    pace.grant(3)
    pace.grant(0)
    assert not pace.may_act(), "a new learner begins without a grant"


def test_no_limit(run: Run) -> None:
    pace = RatePace(run.ledger, RateLimiter(min_size=10, samples_per_insert=None, tolerance=0.0))
    assert answers(pace) == (True, False, 0)
    run.insert(30)
    assert answers(pace) == (True, True, 1)


def test_a_queue(run: Run) -> None:
    pace = QueuePace(run.ledger, 20, BackPressure(run.writer, 6))
    run.insert(6)
    assert answers(pace) == (True, False, 0), "it is full, but the first batch needs more"
    run.insert(4)
    assert answers(pace) == (False, True, 1)
    run.writer.header[Header.CURSOR] = 5
    assert answers(pace) == (True, True, 1)
    run.insert(1)
    assert answers(pace) == (False, True, 1)
    pace.grant(100)
    assert not pace.may_act(), "only the queue's reader grants its rows"
    assert QueuePace(run.ledger, 20).may_learn()


def test_an_empty_replay_is_not_drawn_from(run: Run) -> None:
    assert not QueuePace(run.ledger, 0).may_learn()
    assert not RatePace(run.ledger, RateLimiter(0, 1.0, 5.0)).may_learn()
