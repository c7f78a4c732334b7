"""Prioritized: exact probabilities over all shards, frequencies that follow them, and nothing stale."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay import Column, Fifo, Mixture, Part, Prioritized, SequenceView, Span
from shoal.types import CUT, FINAL, Keys

ALPHA, EPSILON = 0.7, 1e-3
Key = tuple[int, int, int]


def _keys(keys: list[Key]) -> Keys:
    shard, lane, logical = (np.array(column) for column in zip(*keys, strict=True))
    return Keys(shard.astype(np.int32), lane.astype(np.int32), logical.astype(np.int64))


class World:
    """Shards behind one selector, and beside them a plain dict with the priority of every row that may be drawn."""

    def __init__(
        self, shards: Any, blank: Callable[..., Any], sizes: list[tuple[int, int]], *, recorded: bool, n: int = 2
    ) -> None:
        extras = (Column("priority", "float32"),) if recorded else ()
        self.selector, self.n, self.recorded, self._blank = Prioritized(ALPHA, EPSILON), n, recorded, blank
        self.pairs = [shards.small(rows, lanes, extras=extras) for rows, lanes in sizes]
        for _, reader in self.pairs:
            self.selector.attach(reader, Span(0, n))
        self.rng = np.random.default_rng(5)
        self.columns: list[dict[str, list[Any]]] = [{"boundary": [], "priority": []} for _ in sizes]
        self.given: dict[Key, float] = {}
        self.entered: dict[Key, float] = {}
        self.largest = 1.0

    def grow(self, shard: int, count: int) -> None:
        """Random priorities, a FINAL row now and then, rarely a CUT."""
        writer, _ = self.pairs[shard]
        kinds = self.rng.choice([0, FINAL, CUT], (count, 1), p=[0.85, 0.1, 0.05]).repeat(writer.info.lanes, 1)
        given = {"boundary": kinds}
        priority = self.rng.exponential(1.0, kinds.shape).astype(np.float32)
        if self.recorded:
            given["priority"] = priority
        rows = self._blank(writer.info, count, **given)
        # What ends before a FINAL row has truncated there.
        known = self.columns[shard]
        rows["truncated"][:-1] = kinds[1:] == FINAL
        rows["truncated"][-1] = False
        if count and kinds[0, 0] == FINAL:
            rows["boundary"][0] = kinds[0] = 0
        known["boundary"] += kinds[:, 0].tolist()
        known["priority"] += priority.tolist()
        writer.append_chunk(rows)

    def leaves(self) -> dict[Key, float]:
        """p^alpha of every row that may be drawn, computed slowly."""
        found = {}
        for index, (writer, reader) in enumerate(self.pairs):
            known, head, rows = self.columns[index], writer.head, reader.rows
            margin = max(1, rows // 16)
            for t in range(max(0, head - rows + margin), head - self.n):
                if not self._may_start(known["boundary"], t):
                    continue
                for lane in range(reader.lanes):
                    key = (index, lane, t)
                    # What a row behind a CUT recorded is no row's before it.
                    completed = CUT not in known["boundary"][t + 1 : t + self.n + 1]
                    own = known["priority"][t + self.n][lane] if self.recorded and completed else None
                    entered = self.entered.setdefault(key, self._power(own))
                    found[key] = self.given.get(key, entered)
        return found

    def _may_start(self, boundary: list[int], t: int) -> bool:
        if boundary[t] != 0:
            return False
        for k in range(t + 1, t + self.n + 1):
            if boundary[k] == CUT:
                return False
            if boundary[k] == FINAL:
                return True
        return True

    def _power(self, priority: float | None) -> float:
        return self.largest if priority is None else float((abs(np.float32(priority).astype(float)) + EPSILON) ** ALPHA)

    def update(self, keys: Keys, priorities: np.ndarray) -> int:
        """Tells the selector and the dict; returns how many the selector dropped."""
        for key, priority in zip(zip(*(column.tolist() for column in keys), strict=True), priorities, strict=True):
            self.given[key] = self._power(priority)
            self.largest = max(self.largest, self.given[key])
        return self.selector.update(keys, priorities)

    def check(self, batches: int = 3, n: int = 64) -> None:
        """Every probability is exact."""
        self.selector.refresh()
        leaves = self.leaves()
        total = sum(leaves.values())
        assert self.selector.size == len(leaves)
        for _ in range(batches):
            keys, probabilities = self.selector.select(n, self.rng)
            drawn = list(zip(*(column.tolist() for column in keys), strict=True))
            assert set(drawn) <= set(leaves)
            assert np.allclose(probabilities, [leaves[key] / total for key in drawn], rtol=1e-9, atol=0)


@pytest.mark.parametrize("n", [1, 3])
def test_probabilities_are_exact_over_all_shards(shards: Any, blank: Any, n: int) -> None:
    """With the actors' priorities, updates, eviction, several shards of several sizes, one of them empty."""
    world = World(shards, blank, [(64, 2), (128, 1), (96, 3), (64, 1)], recorded=True, n=n)
    for turn in range(25):
        for shard in range(3):
            world.grow(shard, int(world.rng.integers(1, 20)))
        world.check()
        if turn % 2 and world.selector.size:
            keys, _ = world.selector.select(32, world.rng)
            assert world.update(keys, world.rng.exponential(2.0, 32).astype(np.float32)) == 0
            world.check()


def test_an_episode_that_ends_just_before_a_cut_does_not_take_a_priority_of_the_next(shards: Any, blank: Any) -> None:
    """Transitions of 3 steps. Row 4 terminates, row 5 is a CUT: what would complete rows 3 and 4 was never written."""
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    rows = blank(writer.info, 12, priority=np.arange(100, 112, dtype=np.float32)[:, None])
    rows["terminated"][4], rows["boundary"][5] = True, CUT
    writer.append_chunk(rows)
    selector = Prioritized(alpha=1.0, epsilon=1e-6)
    selector.attach(reader, Span(0, 3))
    selector.refresh()
    keys, probabilities = selector.select(4_000, np.random.default_rng(1))
    seen = dict(zip(keys.logical.tolist(), probabilities.tolist(), strict=True))
    # Rows 0 and 1 are completed by rows 3 and 4, row 6 by 9 and so on; 2, 3 and 4 ended, and enter as the largest: 1.
    priorities = {0: 103, 1: 104, 2: 1, 3: 1, 4: 1, 6: 109, 7: 110, 8: 111}
    total = sum(priorities.values())
    assert selector.size == len(priorities)
    assert {row: seen[row] for row in seen} == pytest.approx({row: priorities[row] / total for row in seen}, rel=1e-6)
    assert {2, 3, 4} & set(seen) and not {5, 9, 10, 11} & set(seen)


def test_frequencies_follow_the_priorities(shards: Any, blank: Any) -> None:
    """Chi-square over every row of three shards, after updates and eviction."""
    world = World(shards, blank, [(64, 2), (64, 1), (48, 2)], recorded=True)
    for _ in range(12):
        for shard in range(3):
            world.grow(shard, 15)
        world.selector.refresh()
        world.leaves()
        keys, _ = world.selector.select(32, world.rng)
        world.update(keys, world.rng.exponential(2.0, 32).astype(np.float32))
    leaves = world.leaves()
    total, n, batches = sum(leaves.values()), 200, 1000
    counts = dict.fromkeys(leaves, 0)
    rng = np.random.default_rng(11)
    for _ in range(batches):
        keys, _ = world.selector.select(n, rng)
        for key in zip(*(column.tolist() for column in keys), strict=True):
            counts[key] += 1
    expected = {key: n * batches * leaf / total for key, leaf in leaves.items()}
    assert min(expected.values()) > 5
    statistic = sum((counts[key] - expected[key]) ** 2 / expected[key] for key in leaves)
    freedom = len(leaves) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    # Not vacuous: the same counts refuse uniform draws by far.
    even = n * batches / len(leaves)
    assert sum((count - even) ** 2 / even for count in counts.values()) > 50 * freedom


def test_draws_are_stratified(shards: Any, blank: Any) -> None:
    """Each of n equal slices of the total holds one draw: with n equal rows every row is drawn once or nearly so."""
    writer, reader = shards.small(64)
    writer.append_chunk(blank(writer.info, 51))
    selector = Prioritized()
    selector.attach(reader, Span(0, 1))
    selector.refresh()
    for seed in range(20):
        keys, _ = selector.select(50, np.random.default_rng(seed))
        assert sorted(keys.logical.tolist()) == list(range(50))


def test_new_rows_enter_with_the_largest_priority_seen(shards: Any, blank: Any) -> None:
    world = World(shards, blank, [(64, 1)], recorded=False)
    world.grow(0, 20)
    world.check()
    key = next(iter(world.leaves()))
    # The leaves are known by now; what comes after the update enters with its priority.
    world.given |= world.leaves()
    world.update(_keys([key]), np.array([9.0], np.float32))
    world.largest = world._power(9.0)
    world.grow(0, 20)
    world.check()


def test_the_completing_row_carries_the_priority(shards: Any, blank: Any) -> None:
    """Column `priority` of row t + n belongs to the transition that began at row t."""
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    writer.append_chunk(blank(writer.info, 10, priority=np.arange(10.0)[:, None]))
    selector = Prioritized(alpha=1.0, epsilon=1e-6)
    selector.attach(reader, Span(0, 3))
    selector.refresh()
    keys, probabilities = selector.select(5000, np.random.default_rng(0))
    assert set(keys.logical.tolist()) == set(range(7))
    assert np.allclose(probabilities, (keys.logical + 3) / sum(range(3, 10)), rtol=1e-5)


def test_stale_priorities_are_dropped_counted_and_never_given_to_the_new_occupant(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, 2)
    selector = Prioritized(alpha=1.0)
    selector.attach(reader, Span(0, 1))
    writer.append_chunk(blank(writer.info, 60))
    selector.refresh()
    rng = np.random.default_rng(0)
    old, _ = selector.select(256, rng)
    for _ in range(2):
        writer.append_chunk(blank(writer.info, 32))
    selector.refresh()
    gone = int(np.count_nonzero(old.logical < selector._shards[0][0].first))
    assert 0 < gone == 256
    occupants = (old.logical + 64, old.lane)
    assert np.isin(occupants[0], np.arange(64, 124)).any(), "the slots must have new occupants"
    assert selector.update(old, np.full(256, 1e6, np.float32)) == 256
    keys, probabilities = selector.select(512, rng)
    assert np.allclose(probabilities, 1.0 / selector.size), "a stale priority reached a row"
    assert selector.update(keys, np.ones(512, np.float32)) == 0


def test_some_stale_some_not(shards: Any, blank: Any) -> None:
    world = World(shards, blank, [(64, 1), (64, 1)], recorded=True)
    for shard in range(2):
        world.grow(shard, 60)
    world.selector.refresh()
    keys, _ = world.selector.select(128, world.rng)
    world.grow(0, 30)
    world.selector.refresh()
    first = world.selector._shards[0][0].first
    stale = (keys.shard == 0) & (keys.logical < first)
    assert 0 < stale.sum() < 128
    assert world.update(keys, np.full(128, 3.0, np.float32)) == stale.sum()
    world.check()


def test_rows_of_the_future_are_stale_too(shards: Any, blank: Any) -> None:
    world = World(shards, blank, [(64, 1)], recorded=True)
    world.grow(0, 40)
    world.selector.refresh()
    assert world.selector.update(_keys([(0, 0, 39), (0, 0, 1000)]), np.ones(2, np.float32)) == 2
    world.check()


def test_a_priority_makes_no_row_eligible(shards: Any, blank: Any) -> None:
    """In a mixture every part hears of every key; a FINAL row must stay undrawable whoever speaks of it."""
    writer, reader = shards.small(64)
    rows = blank(writer.info, 20)
    rows["boundary"][7], rows["truncated"][6] = FINAL, True
    writer.append_chunk(rows)
    selector = Prioritized()
    selector.attach(reader, Span(0, 1))
    selector.refresh()
    selector.update(_keys([(0, 0, 7), (0, 0, 8)]), np.array([1e6, 1.0], np.float32))
    keys, _ = selector.select(2000, np.random.default_rng(0))
    assert 7 not in keys.logical and 8 in keys.logical


def test_the_last_of_a_repeated_key_wins(shards: Any, blank: Any) -> None:
    world = World(shards, blank, [(64, 1), (64, 2)], recorded=True)
    world.grow(0, 40)
    world.grow(1, 40)
    world.selector.refresh()
    keys, _ = world.selector.select(512, world.rng)
    assert len({*zip(*(column.tolist() for column in keys), strict=True)}) < 512
    world.update(keys, world.rng.exponential(1.0, 512).astype(np.float32))
    world.check()


def test_priorities_that_are_no_numbers_do_not_poison_the_tree(shards: Any, blank: Any) -> None:
    world = World(shards, blank, [(64, 1)], recorded=True)
    world.grow(0, 40)
    world.selector.refresh()
    keys = _keys(list(world.leaves())[:4])
    world.selector.update(keys, np.array([np.nan, np.inf, -np.inf, -3.0], np.float32))
    drawn, probabilities = world.selector.select(4096, world.rng)
    assert np.all(np.isfinite(probabilities)) and np.all(probabilities > 0)
    assert set(np.unique(drawn.logical)) <= {key[2] for key in world.leaves()}
    largest = keys.logical[1:3]
    assert np.isin(drawn.logical, largest).mean() > 0.99


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_last_draw_of_a_batch_never_falls_into_an_empty_shard(
    shards: Any, blank: Any, order: tuple[int, int]
) -> None:
    """The largest random number there is can round a batch's last point up to the total."""
    pairs = [shards.small(64), shards.small(64)]
    pairs[0][0].append_chunk(blank(pairs[0][0].info, 40))
    selector = Prioritized(alpha=1.0)
    for index in order:
        selector.attach(pairs[index][1], Span(0, 1))
    selector.refresh()
    everything = _keys([(order.index(0), 0, row) for row in range(39)])
    edge: Any = SimpleNamespace(random=lambda count: np.full(count, 1.0 - 2.0**-53))
    for root in np.random.default_rng(1).random(200):
        selector.update(everything, np.full(39, root, np.float32))
        for n in (1, 39, 64, 79, 512):  # 39 equal strata of a total often do not add up to it
            keys, probabilities = selector.select(n, edge)
            assert set(keys.shard.tolist()) == {order.index(0)}
            assert np.all(probabilities > 0)
            assert np.all((keys.logical >= 0) & (keys.logical < 39))


def test_alpha_zero_is_uniform(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, extras=(Column("priority", "float32"),))
    writer.append_chunk(blank(writer.info, 50, priority=np.arange(50.0)[:, None]))
    selector = Prioritized(alpha=0.0)
    selector.attach(reader, Span(0, 1))
    selector.refresh()
    assert np.allclose(selector.select(100, np.random.default_rng(0)).probabilities, 1 / 49)


@pytest.mark.parametrize(("alpha", "epsilon"), [(-0.1, 1e-6), (0.5, 0.0)])
def test_impossible_settings_are_refused(alpha: float, epsilon: float) -> None:
    with pytest.raises(ConfigError, match=f"alpha={alpha}, epsilon={epsilon}"):
        Prioritized(alpha, epsilon)


def test_a_queue_beside_it_hears_nothing_and_spoils_nothing(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64)
    writer.append_chunk(blank(writer.info, 60))
    mixture, span = Mixture([Part(Fifo(), 0.5), Part(Prioritized(), 0.5)]), SequenceView(reader.info.schema, 4).span
    mixture.attach(reader, span)
    mixture.refresh()
    keys, _ = mixture.select(8, np.random.default_rng(0))
    assert keys.logical[:4].tolist() == [0, 4, 8, 12]
    assert mixture.update(keys, np.ones(8, np.float32)) == 0
