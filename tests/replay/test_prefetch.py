"""Prefetcher: the same batches as without, in the consumer's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import (
    Ledger,
    LedgerWord,
    NStepView,
    Prefetcher,
    Prioritized,
    Replay,
    ShardReader,
    ShardWriter,
    Uniform,
)
from shoal.replay.source import PacedReplay

TIMEOUT = 20.0


@pytest.fixture
def closing() -> Iterator[list[Prefetcher]]:
    """Prefetchers to close whatever happens."""
    made: list[Prefetcher] = []
    yield made
    for one in made:
        one.close()
    assert not any(thread.name == "shoal-prefetch" for thread in threading.enumerate())


@pytest.fixture
def reader(marked: ModuleType, shards: Any) -> ShardReader:
    """A shard of 60 marked rows."""
    path = shards.make(marked.info(128, 2))
    ShardWriter(path).append_chunk(marked.block_of(0, 2, 0, 60))
    return ShardReader(path)


def _replay(marked: ModuleType, reader: ShardReader, selector: Any, ring: int) -> tuple[Replay, NStepView]:
    view = NStepView(marked.schema(), 2, 0.9)
    return Replay([reader], selector, view, 16, ring=ring, seed=4), view


class _Pace:
    """A pace whose answer the test gives."""

    longest_wait = 0.0

    def __init__(self, may_learn: Callable[[], bool]) -> None:
        self.may_learn = self.may_act = may_learn
        self.granted: list[int] = []

    def batches_due(self, rows: int) -> int:
        return 1

    def grant(self, steps: int) -> None:
        self.granted.append(steps)


@pytest.fixture
def prefetch(tmp_path: Path, closing: list[Prefetcher]) -> Any:
    """Makes a prefetcher on a replay, which is closed in the end."""

    def make(replay: Replay, depth: int, may_learn: Callable[[], bool] = lambda: True) -> Prefetcher:
        closing.append(Prefetcher(PacedReplay(replay, _Pace(may_learn), Ledger(tmp_path, [])), depth))
        return closing[-1]

    return make


def _get(prefetcher: Prefetcher) -> Any:
    sample = prefetcher.sample(TIMEOUT)
    assert sample is not None, "no batch came"
    return sample


def _wait(until: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_same_batches_as_without(marked: ModuleType, reader: ShardReader, prefetch: Any, depth: int) -> None:
    plain, _ = _replay(marked, reader, Uniform(), 2)
    replay, _ = _replay(marked, reader, Uniform(), depth + 2)
    prefetcher = prefetch(replay, depth)
    for _ in range(50):
        expected, sample = plain.sample(), _get(prefetcher)
        assert expected is not None
        assert np.array_equal(expected.keys.logical, sample.keys.logical)
        assert np.array_equal(expected.data.obs, sample.data.obs)
        assert np.array_equal(expected.probabilities, sample.probabilities)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_batch_is_overwritten_while_it_is_in_use(
    marked: ModuleType, reader: ShardReader, prefetch: Any, depth: int
) -> None:
    replay, view = _replay(marked, reader, Uniform(), depth + 2)
    prefetcher = prefetch(replay, depth)
    for turn in range(30):
        sample = _get(prefetcher)
        # As far ahead as it can get: `depth` wait in the queue, one more is drawn and held.
        _wait(lambda turn=turn: replay.drawn == turn + depth + 2)
        assert not marked.Checker([0]).wrong(sample, view).any()
        time.sleep(0.002)
        assert replay.drawn == turn + depth + 2
        assert not marked.Checker([0]).wrong(sample, view).any()


@pytest.mark.parametrize("depth", [1, 4])
def test_a_ring_too_small_for_it_is_refused(marked: ModuleType, reader: ShardReader, prefetch: Any, depth: int) -> None:
    replay, _ = _replay(marked, reader, Uniform(), depth + 1)
    with pytest.raises(ReplayError, match=f"{depth + 1}.*{depth + 2}"):
        prefetch(replay, depth)


def test_priorities_are_applied_before_the_next_draw(marked: ModuleType, reader: ShardReader, prefetch: Any) -> None:
    allowed = threading.Semaphore(1)
    replay, _ = _replay(marked, reader, Prioritized(alpha=1.0), 3)
    prefetcher = prefetch(replay, 1, lambda: allowed.acquire(blocking=False))
    sample = _get(prefetcher)
    huge = np.full(16, 1e-3, np.float32)
    huge[3] = 1e9
    prefetcher.update_priorities(sample.keys, huge)
    chosen = (sample.keys.lane[3], sample.keys.logical[3])
    allowed.release()
    drawn = _get(prefetcher)
    assert set(zip(drawn.keys.lane, drawn.keys.logical, strict=True)) == {chosen}
    assert prefetcher.metrics()["dropped_priorities"] == 0


def test_stale_priorities_are_counted(marked: ModuleType, reader: ShardReader, prefetch: Any) -> None:
    replay, _ = _replay(marked, reader, Prioritized(), 3)
    prefetcher = prefetch(replay, 1)
    keys = _get(prefetcher).keys
    prefetcher.update_priorities(keys._replace(logical=keys.logical + 10_000), np.ones(16, np.float32))

    def dropped() -> bool:
        prefetcher.sample(0.01)
        return prefetcher.metrics()["dropped_priorities"] == 16

    _wait(dropped)


def test_it_asks_before_every_draw_counts_the_draws_and_grants_what_it_lacks(
    marked: ModuleType, shards: Any, closing: list[Any], tmp_path: Path
) -> None:
    path = shards.make(marked.info(128, 2))
    replay, _ = _replay(marked, ShardReader(path), Uniform(), 3)
    permitted = threading.Semaphore(0)
    pace, ledger = _Pace(lambda: permitted.acquire(blocking=False)), Ledger(tmp_path, [])
    ledger[LedgerWord.SAMPLES] = 1_000  # an earlier learner's
    prefetcher = Prefetcher(PacedReplay(replay, pace, ledger), 1)
    closing.append(prefetcher)
    permitted.release()
    assert prefetcher.sample(0.2) is None
    assert pace.granted == [0, 16], "a new learner withdraws the grant of an earlier one, and lacks a batch"
    assert ledger[LedgerWord.SAMPLES] == 1_000
    ShardWriter(path).append_chunk(marked.block_of(0, 2, 0, 60))
    for turn in range(1, 11):
        permitted.release()
        _get(prefetcher)
        assert replay.drawn == turn, "one permission, one draw"
        _wait(lambda turn=turn: ledger[LedgerWord.SAMPLES] == 1_000 + 16 * turn)
    assert pace.granted == [0, 16]


def test_without_permission_nothing_is_drawn(marked: ModuleType, reader: ShardReader, prefetch: Any) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    prefetcher = prefetch(replay, 1, lambda: False)
    assert prefetcher.sample(0.05) is None
    assert replay.drawn == 0


def test_a_failure_in_the_thread_is_raised_in_the_consumer(
    marked: ModuleType, reader: ShardReader, prefetch: Any
) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    gate = threading.Event()

    def fail() -> bool:
        gate.wait(TIMEOUT)
        raise ReplayError("the limiter broke")

    prefetcher = prefetch(replay, 1, fail)
    threading.Timer(0.05, gate.set).start()
    began = time.monotonic()
    with pytest.raises(ReplayError, match="the limiter broke"):
        prefetcher.sample(TIMEOUT)  # the very call that was waiting when it happened
    assert time.monotonic() - began < TIMEOUT / 2
    with pytest.raises(ReplayError, match="the limiter broke"):
        prefetcher.sample(0.0)


@pytest.mark.parametrize("full", [True, False])
def test_close_joins_the_thread(marked: ModuleType, reader: ShardReader, prefetch: Any, full: bool) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    prefetcher = prefetch(replay, 1, lambda: full)
    if full:
        _wait(lambda: replay.drawn == 2)
    prefetcher.close()
    prefetcher.close()
    assert not any(thread.name == "shoal-prefetch" for thread in threading.enumerate())
