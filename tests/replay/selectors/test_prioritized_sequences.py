"""Prioritized draws of sequences: which start, what their first priority is, and that draws follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import Column, Prioritized, Replay, RowPriorities, SequenceView, Span, Uniform
from shoal.types import CUT, FINAL, Keys

ETA, LAG, BURN_IN, LENGTH, PERIOD = 0.9, 2, 1, 5, 3
SPAN = Span(0, BURN_IN + LENGTH, True, BURN_IN, PERIOD, RowPriorities(LAG, ETA))


class World:
    """One shard whose rows are also kept in lists."""

    def __init__(self, shards: Any, blank: Any, rows: int = 64, lanes: int = 2, alpha: float = 0.7) -> None:
        self.writer, self.reader = shards.small(rows, lanes, extras=(Column("priority", "float32"),))
        self.selector, self.alpha, self._blank = Prioritized(alpha, 1e-3), alpha, blank
        self.selector.attach(self.reader, SPAN)
        self.boundary, self.priority = np.zeros((0, lanes), np.uint8), np.zeros((0, lanes), np.float32)
        self.rng = np.random.default_rng(3)
        self.updated: dict[tuple[int, int], float] = {}

    def grow(self, count: int, cut: float = 0.03) -> None:
        """Every lane has its own final rows; a CUT is one of all lanes."""
        lanes = self.reader.lanes
        boundary = np.where(self.rng.random((count, lanes)) < 0.15, FINAL, 0).astype(np.uint8)
        boundary[self.rng.random(count) < cut] = CUT
        priority = self.rng.exponential(1.0, (count, lanes)).astype(np.float32)
        self.writer.append_chunk(self._blank(self.writer.info, count, boundary=boundary, priority=priority))
        self.boundary = np.concatenate((self.boundary, boundary))
        self.priority = np.concatenate((self.priority, priority))

    def leaves(self) -> dict[tuple[int, int], float]:
        """(lane, row) -> p^alpha of every sequence that may be drawn, straight from the definition."""
        found, head = {}, len(self.boundary)
        oldest = max(0, head - self.reader.rows + max(1, self.reader.rows // 16))
        for start in range(oldest, head - BURN_IN - LENGTH):
            for lane in range(self.reader.lanes):
                if start % PERIOD or CUT in self.boundary[start : start + BURN_IN + LENGTH + 1, lane]:
                    continue
                steps = [t for t in range(start + BURN_IN, start + BURN_IN + LENGTH - LAG + 1)]
                sizes = [self.priority[t + LAG, lane] for t in steps if self.boundary[t, lane] != FINAL]
                own = ETA * max(sizes) + (1 - ETA) * float(np.mean(sizes)) if sizes else None
                leaf = 1.0 if own is None else (own + 1e-3) ** self.alpha
                found[lane, start] = self.updated.get((lane, start), leaf)
        return found

    def check(self) -> None:
        self.selector.refresh()
        leaves = self.leaves()
        assert self.selector.size == len(leaves)
        if leaves:
            keys, probabilities = self.selector.select(64, self.rng)
            drawn = list(zip(keys.lane.tolist(), keys.logical.tolist(), strict=True))
            assert np.allclose(probabilities, [leaves[one] / sum(leaves.values()) for one in drawn], rtol=1e-6)


def test_probabilities_are_exact(shards: Any, blank: Any) -> None:
    """While the ring fills and wraps, with final rows and CUTs anywhere, and with updates."""
    world = World(shards, blank)
    for turn in range(40):
        world.grow(int(world.rng.integers(1, 12)))
        world.check()
        if turn % 3 == 0 and world.selector.size:
            keys, _ = world.selector.select(4, world.rng)
            new = world.rng.exponential(0.5, 4).astype(np.float32).clip(0, 0.9)  # the largest leaf stays 1
            for lane, row, priority in zip(keys.lane.tolist(), keys.logical.tolist(), new.tolist(), strict=True):
                world.updated[lane, row] = (priority + 1e-3) ** world.alpha
            assert world.selector.update(keys, new) == 0
            world.check()


def test_a_priority_by_hand(shards: Any, blank: Any) -> None:
    """Rows 0 to 6. Steps 1 to 4 have their priorities in rows 3 to 6; step 2 is a final row; step 5's is beyond."""
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    rows = blank(writer.info, 10, priority=np.arange(10.0)[:, None])
    rows["boundary"][2] = FINAL
    writer.append_chunk(rows)
    selector = Prioritized(alpha=1.0, epsilon=1e-9)
    selector.attach(reader, SPAN)
    selector.refresh()
    first = 0.9 * 6 + 0.1 * (3 + 5 + 6) / 3
    second = 0.9 * 9 + 0.1 * (6 + 7 + 8 + 9) / 4
    keys, probabilities = selector.select(200, np.random.default_rng(0))
    seen = dict(zip(keys.logical.tolist(), probabilities.tolist(), strict=True))
    assert seen == pytest.approx({0: first / (first + second), 3: second / (first + second)}, rel=1e-6)


def test_frequencies_follow_the_priorities(shards: Any, blank: Any) -> None:
    """Chi-square over every sequence."""
    world = World(shards, blank, rows=256)
    for _ in range(3):
        world.grow(200, cut=0.005)
    world.selector.refresh()
    leaves = world.leaves()
    assert len(leaves) > 60
    counts, n, rng = dict.fromkeys(leaves, 0), 40_000, np.random.default_rng(11)
    for _ in range(200):
        keys, _ = world.selector.select(n // 200, rng)
        for one in zip(keys.lane.tolist(), keys.logical.tolist(), strict=True):
            counts[one] += 1
    expected = {one: n * leaf / sum(leaves.values()) for one, leaf in leaves.items()}
    statistic = sum((counts[one] - expected[one]) ** 2 / expected[one] for one in leaves)
    freedom = len(leaves) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    even = n / len(leaves)
    assert sum((count - even) ** 2 / even for count in counts.values()) > 5 * freedom  # the same refuses even draws


def test_errors_longer_than_the_sequence_are_unknown(shards: Any, blank: Any) -> None:
    """All errors end beyond it: it enters with the largest priority, as rows without a record do."""
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    writer.append_chunk(blank(writer.info, 20, priority=5.0))
    selector = Prioritized(alpha=1.0)
    selector.attach(reader, Span(0, 3, True, 0, 2, RowPriorities(lag=4, eta=0.9)))
    selector.refresh()
    assert np.allclose(selector.select(64, np.random.default_rng(0)).probabilities, 1 / selector.size)
    selector.update(Keys(*(np.zeros(1, kind) for kind in (np.int32, np.int32, np.int64))), np.array([3.0], np.float32))
    assert selector.size == 9


def test_priorities_that_are_no_numbers_do_not_poison_the_tree(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    bad = np.array([np.nan, np.inf, -np.inf, 1.0] * 5, np.float32)[:, None]
    writer.append_chunk(blank(writer.info, 20, priority=bad))
    selector = Prioritized()
    selector.attach(reader, SPAN)
    selector.refresh()
    probabilities = selector.select(64, np.random.default_rng(0)).probabilities
    assert np.isfinite(probabilities).all() and (probabilities > 0).all()


def test_any_selector_starts_every_period(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    view = SequenceView(reader.info.schema, LENGTH, BURN_IN, period=4)
    writer.append_chunk(blank(writer.info, 40, obs=np.arange(40)[:, None, None]))
    replay = Replay([reader], Uniform(), view, 32)
    sample = replay.sample()
    assert sample is not None and set(sample.keys.logical.tolist()) == set(range(0, 34, 4))
    assert sample.data.obs[0, :, 0].tolist() == sample.keys.logical.tolist()
    with pytest.raises(ReplayError, match="period must be at least 1; got 0"):
        SequenceView(reader.info.schema, LENGTH, period=0)
