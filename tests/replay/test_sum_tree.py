"""SumTree against a running sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.replay.sum_tree import SumTree
from shoal.types import Keys

PRIORITIES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


def find(tree: SumTree, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leaves and priorities at the points, each drawn on its own."""
    lane, leaf, priority = np.empty(len(points), np.int32), np.empty(len(points), np.int64), np.empty(len(points))
    for i in range(len(points)):
        one = slice(i, i + 1)
        tree.draw(points[one].copy(), 0, 1.0, 0.0, 1.0, tree._ring[0] - 1, (lane[one], leaf[one], priority[one]))
    return leaf, priority


def leaves_of(tree: SumTree) -> np.ndarray:
    """The priorities of all rows."""
    rows, lanes, _ = tree._ring
    return tree._blocks[tree._levels[-1] :].reshape(-1)[: rows * lanes]


def update(tree: SumTree, values: np.ndarray, leaves: np.ndarray, priorities: np.ndarray) -> None:
    """Sets scattered leaves of the tree, and of a plain array beside it: leaves of priority zero stay as they are."""
    zeros = np.zeros(len(leaves), np.int32)
    assert tree.update(0, Keys(zeros, zeros, leaves), priorities, 0, len(values)) == 0
    for leaf, priority in zip(leaves, priorities, strict=True):
        if values[leaf] > 0:
            values[leaf] = priority  # the last of a repeated leaf wins


def filled(values: np.ndarray) -> SumTree:
    """A tree of these leaves."""
    tree = SumTree(len(values), 1)
    tree.set_rows(0, values)
    return tree


@given(
    st.lists(PRIORITIES, min_size=1, max_size=70),
    st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=40),
)
def test_finds_what_a_running_sum_finds(priorities: list[float], fractions: list[float]) -> None:
    values = np.array(priorities)
    tree = filled(values)
    assert tree.total == pytest.approx(values.sum(), rel=1e-12)
    if not values.any():
        return
    points = np.array(fractions) * tree.total
    leaf, priority = find(tree, points)
    assert np.all(leaf < len(values))
    assert np.array_equal(priority, values[leaf])
    assert np.all(priority > 0), "drew a leaf of priority zero"
    upper = np.cumsum(values)
    slack = 1e-9 * tree.total  # sums are associated differently
    assert np.all(points <= upper[leaf] + slack)
    assert np.all(points >= upper[leaf] - values[leaf] - slack)


@given(st.integers(1, 9), st.data())
def test_whole_numbers_are_found_exactly(size: int, data: st.DataObject) -> None:
    """No rounding: the leaf is the one that `searchsorted` names."""
    values = np.array(data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)), float)
    tree = filled(values)
    points = np.arange(0.0, values.sum(), 0.25)
    leaf, _ = find(tree, points)
    assert np.array_equal(leaf, np.searchsorted(np.cumsum(values), points, side="right"))


@given(
    st.integers(1, 50),
    st.lists(
        st.one_of(
            st.tuples(st.just("many"), st.lists(st.tuples(st.integers(0, 10**6), PRIORITIES), max_size=20)),
            st.tuples(st.just("range"), st.integers(0, 10**6), st.lists(PRIORITIES, max_size=60)),
        ),
        max_size=12,
    ),
)
def test_updates_leave_every_sum_right(capacity: int, changes: list[tuple]) -> None:
    tree, values = SumTree(capacity, 1), np.zeros(capacity)
    for change in changes:
        if change[0] == "many":
            leaves = np.array([leaf % capacity for leaf, _ in change[1]], np.int64)
            priorities = np.array([priority for _, priority in change[1]])
            update(tree, values, leaves, priorities)
        else:
            start = change[1] % capacity
            priorities = np.array(change[2][: capacity - start])
            tree.set_rows(start, priorities)
            values[start : start + len(priorities)] = priorities
        assert np.array_equal(leaves_of(tree), values)
        assert tree.total == pytest.approx(values.sum(), rel=1e-12)
    if values.any():
        _, priority = find(tree, np.linspace(0, tree.total, 100, endpoint=False))
        assert np.all(priority > 0)


def test_sums_do_not_drift() -> None:
    """1e5 updates over nine orders of magnitude: the tree is bit for bit one that was filled at once."""
    rng = np.random.default_rng(0)
    capacity = 5000
    tree, values = filled(np.ones(capacity)), np.ones(capacity)
    for _ in range(200):
        update(tree, values, rng.integers(0, capacity, 500), 10.0 ** rng.uniform(-6, 3, 500))
    assert np.array_equal(leaves_of(tree), values)
    assert tree.total == filled(values).total
    tree.set_rows(0, np.zeros(capacity))
    assert tree.total == 0.0


@pytest.mark.parametrize("beyond", [0.0, 1e-9, 1.0])
def test_points_at_the_right_edge_find_the_last_positive_leaf(beyond: float) -> None:
    """Rounding can make a point as large as the total, or larger."""
    for size in (1, 2, 3, 8, 13):
        for last in range(size):
            values = np.full(size, 0.1)
            values[last + 1 :] = 0.0
            tree = filled(values)
            leaf, priority = find(tree, np.array([tree.total, np.nextafter(tree.total, 0), tree.total + beyond]))
            assert np.all(leaf == last)
            assert np.all(priority == 0.1)


def test_leaves_of_priority_zero_are_never_drawn() -> None:
    rng = np.random.default_rng(1)
    values = np.where(rng.random(1000) < 0.5, 0.0, rng.random(1000) ** 8)
    tree = filled(values)
    drawn, probability = Keys.empty(200_000), np.empty(200_000)
    batch = (rng.random(200_000), 0, tree.total / 200_000, 0.0, tree.total)
    tree.draw(*batch, 999, (drawn.lane, drawn.logical, probability))
    assert np.all(values[drawn.logical] > 0) and not drawn.lane.any()
    assert np.array_equal(probability, values[drawn.logical] / tree.total)


def test_nothing_to_set_is_no_error() -> None:
    tree = filled(np.ones(4))
    update(tree, np.ones(4), np.empty(0, np.int64), np.empty(0))
    tree.set_rows(2, np.empty(0))
    assert tree.total == 4.0


@pytest.mark.parametrize(("rows", "lanes"), [(7, 3), (1000, 8), (99_991, 1)])
def test_rows_of_a_ring_that_went_round_for_years(rows: int, lanes: int) -> None:
    """Positions come from products of floats, not from divisions: they must be exact for any number of rows."""
    rng = np.random.default_rng(rows)
    tree = SumTree(rows, lanes)
    tree.set_rows(0, np.ones(rows * lanes))
    for newest in (rows - 1, 10**6, 2**45 + 1, 2**50):
        logical = newest - rng.integers(0, rows, 64)
        logical = np.clip(logical, max(0, newest - rows + 1), newest)
        lane = rng.integers(0, lanes, 64).astype(np.int32)
        keys = Keys(np.zeros(64, np.int32), lane, logical)
        tree.set_rows(0, np.ones(rows * lanes))
        assert tree.update(0, keys, np.full(64, 3.0), max(0, newest - rows + 1), newest + 1) == 0
        expected = np.ones(rows * lanes)
        expected[logical % rows * lanes + lane] = 3.0
        np.testing.assert_array_equal(leaves_of(tree), expected)

        points = rng.random(200)
        drawn = Keys.empty(200)
        probabilities = np.empty(200)
        into = (drawn.lane, drawn.logical, probabilities)
        tree.draw(points, 0, tree.total / 200, 0.0, tree.total, newest, into)
        assert ((newest - rows < drawn.logical) & (drawn.logical <= newest)).all()
        np.testing.assert_allclose(
            probabilities, expected[drawn.logical % rows * lanes + drawn.lane] / tree.total, rtol=1e-12
        )


@pytest.mark.parametrize(("rows", "lanes", "period"), [(12, 3, 4), (4000, 8, 40), (30, 1, 30)])
def test_a_period_skips_the_rows_between(rows: int, lanes: int, period: int) -> None:
    """The same draws and sums as with a leaf for every row, most of them zero."""
    rng = np.random.default_rng(rows)
    for newest in (rows - 1, 10**6 + 7, 2**45 + 1):
        few, all_rows = SumTree(rows, lanes, period), SumTree(rows, lanes)
        values = rng.random((rows, lanes)) * (np.arange(rows)[:, None] % period == 0)
        for first, stop in ((0, rows), (rows // 3, rows), (1, min(period, rows))):  # the last holds no start
            for tree in (few, all_rows):
                tree.set_rows(first, values[first:stop].reshape(-1))
        logical = newest - rng.integers(0, rows, 200)
        logical[::2] -= logical[::2] % period
        lane = rng.integers(0, lanes, 200).astype(np.int32)
        keys, oldest = Keys(np.zeros(200, np.int32), lane, logical), newest - rows + 1
        priorities = rng.random(200)
        stale = [tree.update(0, keys, priorities, oldest, newest + 1) for tree in (few, all_rows)]
        assert stale[0] == stale[1] == np.count_nonzero(logical < oldest)
        assert few.total == pytest.approx(all_rows.total, rel=1e-12)
        points, drawn, chances = rng.random(100), [Keys.empty(100), Keys.empty(100)], [np.empty(100), np.empty(100)]
        for tree, found, chance in zip((few, all_rows), drawn, chances, strict=True):
            tree.draw(points.copy(), 0, tree.total / 100, 0.0, tree.total, newest, (found.lane, found.logical, chance))
        assert np.array_equal(drawn[0].logical, drawn[1].logical) and np.array_equal(drawn[0].lane, drawn[1].lane)
        np.testing.assert_allclose(*chances, rtol=1e-12)
