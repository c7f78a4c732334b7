"""Prefetcher: the same batches as without, in the consumer's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import NStepView, Prefetcher, Prioritized, Replay, ShardReader, ShardWriter, Uniform

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
    view = NStepView(marked.schema(), 2, 0.9, ("tag",))
    return Replay([reader], selector, view, 16, ring=ring, seed=4), view


def _get(prefetcher: Prefetcher) -> Any:
    sample = prefetcher.get(TIMEOUT)
    assert sample is not None, "no batch came"
    return sample


def _wait(until: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_same_batches_as_without(marked: ModuleType, reader: ShardReader, closing: list[Any], depth: int) -> None:
    plain, _ = _replay(marked, reader, Uniform(), 2)
    replay, _ = _replay(marked, reader, Uniform(), depth + 2)
    prefetcher = Prefetcher(replay, depth, lambda: True)
    closing.append(prefetcher)
    for _ in range(50):
        expected, sample = plain.sample(), _get(prefetcher)
        assert expected is not None
        assert np.array_equal(expected.keys.logical, sample.keys.logical)
        assert np.array_equal(expected.data.obs, sample.data.obs)
        assert np.array_equal(expected.probabilities, sample.probabilities)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_no_batch_is_overwritten_while_it_is_in_use(
    marked: ModuleType, reader: ShardReader, closing: list[Any], depth: int
) -> None:
    replay, view = _replay(marked, reader, Uniform(), depth + 2)
    prefetcher = Prefetcher(replay, depth, lambda: True)
    closing.append(prefetcher)
    for turn in range(30):
        sample = _get(prefetcher)
        # As far ahead as it can get: `depth` wait in the queue, one more is drawn and held.
        _wait(lambda turn=turn: replay.drawn == turn + depth + 2)
        assert not marked.Checker([0]).wrong(sample, view).any()
        time.sleep(0.002)
        assert replay.drawn == turn + depth + 2
        assert not marked.Checker([0]).wrong(sample, view).any()


@pytest.mark.parametrize("depth", [1, 4])
def test_a_ring_too_small_for_it_is_refused(marked: ModuleType, reader: ShardReader, depth: int) -> None:
    replay, _ = _replay(marked, reader, Uniform(), depth + 1)
    with pytest.raises(ReplayError, match=f"{depth + 1}.*{depth + 2}"):
        Prefetcher(replay, depth, lambda: True)


def test_priorities_are_applied_before_the_next_draw(
    marked: ModuleType, reader: ShardReader, closing: list[Any]
) -> None:
    allowed = threading.Semaphore(1)
    replay, _ = _replay(marked, reader, Prioritized(alpha=1.0), 3)
    prefetcher = Prefetcher(replay, 1, lambda: allowed.acquire(blocking=False))
    closing.append(prefetcher)
    sample = _get(prefetcher)
    huge = np.full(16, 1e-3, np.float32)
    huge[3] = 1e9
    prefetcher.update_priorities(sample.keys, huge)
    chosen = (sample.keys.lane[3], sample.keys.logical[3])
    allowed.release()
    drawn = _get(prefetcher)
    assert set(zip(drawn.keys.lane, drawn.keys.logical, strict=True)) == {chosen}
    assert prefetcher.dropped == 0


def test_stale_priorities_are_counted(marked: ModuleType, reader: ShardReader, closing: list[Any]) -> None:
    replay, _ = _replay(marked, reader, Prioritized(), 3)
    prefetcher = Prefetcher(replay, 1, lambda: True)
    closing.append(prefetcher)
    keys = _get(prefetcher).keys
    prefetcher.update_priorities(keys._replace(logical=keys.logical + 10_000), np.ones(16, np.float32))

    def dropped() -> bool:
        prefetcher.get(0.01)
        return prefetcher.dropped == 16

    _wait(dropped)


def test_it_asks_before_every_draw_and_wastes_no_permission(
    marked: ModuleType, shards: Any, closing: list[Any]
) -> None:
    """The learner counts a batch when it permits it: a permission that came too early is kept, not asked for again."""
    path = shards.make(marked.info(128, 2))
    replay, _ = _replay(marked, ShardReader(path), Uniform(), 3)
    asked = 0

    def may_sample() -> bool:
        nonlocal asked
        asked += 1
        return True

    prefetcher = Prefetcher(replay, 1, may_sample)
    closing.append(prefetcher)
    assert prefetcher.get(0.1) is None
    assert asked == 1
    ShardWriter(path).append_chunk(marked.block_of(0, 2, 0, 60))
    for _ in range(10):
        _get(prefetcher)
    _wait(lambda: replay.drawn == 12)
    time.sleep(0.01)
    assert asked == 12


def test_without_permission_nothing_is_drawn(marked: ModuleType, reader: ShardReader, closing: list[Any]) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    prefetcher = Prefetcher(replay, 1, lambda: False)
    closing.append(prefetcher)
    assert prefetcher.get(0.05) is None
    assert replay.drawn == 0


def test_a_failure_in_the_thread_is_raised_in_the_consumer(
    marked: ModuleType, reader: ShardReader, closing: list[Any]
) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    gate = threading.Event()

    def fail() -> bool:
        gate.wait(TIMEOUT)
        raise ReplayError("the limiter broke")

    prefetcher = Prefetcher(replay, 1, fail)
    closing.append(prefetcher)
    threading.Timer(0.05, gate.set).start()
    began = time.monotonic()
    with pytest.raises(ReplayError, match="the limiter broke"):
        prefetcher.get(TIMEOUT)  # the very call that was waiting when it happened
    assert time.monotonic() - began < TIMEOUT / 2
    with pytest.raises(ReplayError, match="the limiter broke"):
        prefetcher.get(0.0)


@pytest.mark.parametrize("full", [True, False])
def test_close_joins_the_thread(marked: ModuleType, reader: ShardReader, full: bool) -> None:
    replay, _ = _replay(marked, reader, Uniform(), 3)
    prefetcher = Prefetcher(replay, 1, lambda: full)
    if full:
        _wait(lambda: replay.drawn == 2)
    prefetcher.close()
    prefetcher.close()
    assert not any(thread.name == "shoal-prefetch" for thread in threading.enumerate())
