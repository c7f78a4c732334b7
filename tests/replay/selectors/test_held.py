"""HeldSequences: up to so many sequences; the oldest, or the furthest of some, leaves for a new one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay import ShardReader, ShardWriter, Span
from shoal.replay.selectors import HeldSequences
from shoal.types import Keys

SPAN = Span(0, 4, crosses_episodes=True)


class _Stream:
    """One shard of two lanes behind a selector."""

    def __init__(self, marked: ModuleType, shards: Any, held: HeldSequences, rows: int = 512) -> None:
        path = shards.make(marked.info(rows, 2))
        self.marked, self.writer, self.held = marked, ShardWriter(path), held
        held.attach(ShardReader(path), SPAN)

    def write(self, rows: int) -> None:
        """So many rows, then a look."""
        self.writer.append_chunk(self.marked.block_of(0, 2, self.writer.head, rows))
        self.held.refresh()

    def seen(self) -> list[tuple[int, int]]:
        """(row, lane) of everything held."""
        keys = self.held.select(4000, np.random.default_rng(0)).keys
        return sorted(set(zip(keys.logical.tolist(), keys.lane.tolist(), strict=True)))


def test_the_oldest_leaves(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, HeldSequences(6))
    assert not stream.held.ready(1)
    stream.write(4)
    assert not stream.held.ready(1), "the row to bootstrap from is missing"
    stream.write(1)
    assert stream.held.ready(100) and stream.seen() == [(0, 0), (0, 1)]
    stream.write(8)
    assert stream.seen() == [(row, lane) for row in (0, 4, 8) for lane in (0, 1)]
    stream.write(4)
    assert stream.seen() == [(row, lane) for row in (4, 8, 12) for lane in (0, 1)]
    selection = stream.held.select(10, np.random.default_rng(0))
    assert np.allclose(selection.probabilities, 1 / 6) and stream.held.size == 6
    stream.write(400)
    assert len(stream.seen()) == 6 and stream.seen()[-1] == (412, 1)


def test_draws_are_even(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, HeldSequences(10))
    stream.write(200)
    keys = stream.held.select(20_000, np.random.default_rng(1)).keys
    _, counts = np.unique(keys.logical * 2 + keys.lane, return_counts=True)
    assert len(counts) == 10 and counts.min() > 1800 and counts.max() < 2200


@pytest.mark.parametrize("sample", [3, 6, 100])
def test_the_furthest_of_some_leaves(marked: ModuleType, shards: Any, sample: int) -> None:
    """Rows divisible by eight are far: they go first, and none of the nearest three ever does."""
    asked: list[Keys] = []

    def far(keys: Keys) -> Any:
        asked.append(keys)
        return np.where(keys.logical % 8 == 0, 10.0, keys.logical / 1000).astype(np.float32)

    stream = _Stream(marked, shards, HeldSequences(6, far, sample))
    stream.write(13)
    assert len(stream.seen()) == 6 and not asked
    for _ in range(20):
        stream.write(4)
        held = stream.seen()
        assert len(held) == 6
    for keys in asked:
        rivals = keys.logical.reshape(-1, min(sample, 6)) * 2 + keys.lane.reshape(-1, min(sample, 6))
        assert all(len(set(row.tolist())) == len(row) for row in rivals), "drawn without replacement"
    if sample >= 6:
        far_ones = [row for row, _ in held if row % 8 == 0]
        assert len(far_ones) <= 2, "only what came last"
        assert (4, 0) in held and (4, 1) in held, "the nearest stay for ever"


def test_many_at_once_are_let_in_too(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, HeldSequences(20, lambda keys: keys.logical.astype(np.float32), 5))
    stream.write(41)
    assert len(stream.seen()) == 20
    stream.write(300)
    held = stream.seen()
    assert len(held) == 20 and stream.held.size == 20
    assert held[-1][0] == 336, "the newest entered last"


def test_what_the_ring_overwrites_leaves(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, HeldSequences(1000), rows=64)
    for _ in range(40):
        stream.write(7)
        oldest = max(0, stream.writer.head - 64)
        if stream.held.ready(1):
            assert min(row for row, _ in stream.seen()) >= oldest
    assert 20 <= len(stream.seen()) <= 32
    stream.write(60)
    stream.write(60)
    assert min(row for row, _ in stream.seen()) >= stream.writer.head - 64


@pytest.mark.parametrize(("capacity", "sample"), [(0, 5), (5, 0)])
def test_impossible_sizes_are_refused(capacity: int, sample: int) -> None:
    with pytest.raises(ConfigError, match=f"got {capacity} and {sample}"):
        HeldSequences(capacity, None, sample)


def test_transitions_are_refused(marked: ModuleType, shards: Any) -> None:
    reader = ShardReader(shards.make(marked.info(64, 1)))
    with pytest.raises(ConfigError, match="counts sequences: leave it out for transitions"):
        HeldSequences(5).attach(reader, Span(0, 1))
