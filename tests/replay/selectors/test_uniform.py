"""Uniform: every eligible row of every shard is equally likely, and no other is drawn."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay import ShardReader, ShardWriter, Span, Uniform
from shoal.replay.selectors.base import split_by_count


def _attached(
    marked: ModuleType, shards: Any, sizes: list[tuple[int, int, int]], newest: float = 1.0
) -> tuple[Uniform, list[ShardWriter]]:
    """Shards of (rows, lanes, head) behind one selector with a span of two steps."""
    selector, writers = Uniform(newest), []
    for salt, (rows, lanes, head) in enumerate(sizes):
        path = shards.make(marked.info(rows, lanes))
        writers.append(ShardWriter(path))
        while writers[-1].head < head:
            writers[-1].append_chunk(marked.block_of(salt, lanes, writers[-1].head, min(rows, head - writers[-1].head)))
        selector.attach(ShardReader(path), Span(0, 2))
    selector.refresh()
    return selector, writers


def _eligible(marked: ModuleType, rows: int, lanes: int, head: int) -> set[tuple[int, int]]:
    """(lane, row) of every start, by the formula of the marked stream: any row but a FINAL one."""
    margin = max(1, rows // 16) if head + max(1, rows // 16) > rows else 0
    first = max(0, head - rows + margin)
    return {
        (lane, t)
        for lane in range(lanes)
        for t in range(first, head - 2)
        if t % marked.period(lane) != marked.period(lane) - 1
    }


def test_unequal_shards_with_boundary_rows_are_drawn_evenly(marked: ModuleType, shards: Any) -> None:
    sizes = [(64, 1, 40), (64, 3, 64 + 37), (32, 2, 1000), (64, 2, 1), (128, 1, 100)]
    selector, _ = _attached(marked, shards, sizes)
    eligible = [(index, *key) for index, size in enumerate(sizes) for key in sorted(_eligible(marked, *size))]
    assert selector.size == len(eligible)
    counts, rng, n = dict.fromkeys(eligible, 0), np.random.default_rng(0), 500
    for _ in range(200):
        keys, probabilities = selector.select(n, rng)
        assert np.all(probabilities == 1.0 / len(eligible))
        for key in zip(*(column.tolist() for column in keys), strict=True):
            counts[key] += 1  # a KeyError here is a row that must never be drawn
    expected = 200 * n / len(eligible)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    freedom = len(eligible) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    assert min(counts.values()) > 0.7 * expected


@pytest.mark.parametrize("newest", [0.1, 0.5])
def test_the_newest_window_is_drawn_and_nothing_older(marked: ModuleType, shards: Any, newest: float) -> None:
    selector, [writer] = _attached(marked, shards, [(256, 1, 700)], newest)
    rng = np.random.default_rng(0)
    for _ in range(5):
        stored = range(writer.head - 256 + 16, writer.head - 2)
        window = set(stored[-round(len(stored) * newest) :])
        drawn = {t for _ in range(30) for t in selector.select(64, rng).keys.logical.tolist()}
        assert drawn == {t for t in window if t % 5 != 4}
        writer.append_chunk(marked.block_of(0, 1, writer.head, 33))
        selector.refresh()


def test_an_empty_shard_is_never_asked(marked: ModuleType, shards: Any) -> None:
    selector, _ = _attached(marked, shards, [(64, 1, 0), (64, 1, 30), (64, 1, 0)])
    keys, _ = selector.select(1000, np.random.default_rng(0))
    assert set(keys.shard.tolist()) == {1}


def test_readiness(marked: ModuleType, shards: Any) -> None:
    selector, [writer] = _attached(marked, shards, [(64, 1, 2)])
    assert not selector.ready(1) and selector.size == 0
    writer.append_chunk(marked.block_of(0, 1, 2, 1))
    selector.refresh()
    assert selector.ready(1000) and selector.size == 1
    assert selector.update(selector.select(4, np.random.default_rng(0)).keys, np.ones(4, np.float32)) == 0


def test_splits_follow_the_counts() -> None:
    rng = np.random.default_rng(0)
    totals = np.zeros(4)
    for _ in range(2000):
        split = split_by_count([10, 0, 30, 60], 50, rng)
        assert sum(split) == 50
        totals += split
    assert totals[1] == 0
    assert np.allclose(totals / totals.sum(), [0.1, 0, 0.3, 0.6], atol=0.01)


@pytest.mark.parametrize("newest", [0.0, -0.5, 1.5])
def test_an_impossible_fraction_is_refused(newest: float) -> None:
    with pytest.raises(ConfigError, match=f"newest is {newest}"):
        Uniform(newest)


def test_a_capacity_keeps_to_the_newest_sequences(marked: ModuleType, shards: Any) -> None:
    """Twelve sequences of four steps over three lanes: sixteen rows of each."""
    selector, writers = Uniform(capacity=12), []
    for lanes in (1, 2):
        path = shards.make(marked.info(256, lanes))
        writers.append(ShardWriter(path))
        writers[-1].append_chunk(marked.block_of(0, lanes, 0, 100))
        selector.attach(ShardReader(path), Span(0, 4, crosses_episodes=True))
    selector.refresh()
    assert selector.size == 16 * 3
    rng = np.random.default_rng(0)
    for _ in range(4):
        keys = selector.select(2000, rng).keys
        for index, writer in enumerate(writers):
            assert set(keys.logical[keys.shard == index].tolist()) == set(range(writer.head - 20, writer.head - 4))
        writers[1].append_chunk(marked.block_of(0, 2, writers[1].head, 33))
        selector.refresh()
        assert selector.size == 16 * 3


def test_a_capacity_of_transitions_counts_rows(marked: ModuleType, shards: Any) -> None:
    path, selector = shards.make(marked.info(256, 2)), Uniform(capacity=20)
    ShardWriter(path).append_chunk(marked.block_of(0, 2, 0, 100))
    selector.attach(ShardReader(path), Span(0, 3))
    selector.refresh()
    assert set(selector.select(500, np.random.default_rng(0)).keys.logical.tolist()) <= set(range(87, 97))


def test_a_shard_that_joins_takes_its_share_of_the_capacity(marked: ModuleType, shards: Any) -> None:
    selector = Uniform(capacity=10)
    for expected in (40, 40):
        path = shards.make(marked.info(256, 1))
        ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 100))
        selector.attach(ShardReader(path), Span(0, 4, crosses_episodes=True))
        selector.refresh()
        assert selector.size == expected


def test_no_capacity_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity is 0"):
        Uniform(capacity=0)
