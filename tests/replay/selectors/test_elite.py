"""Elite: the least off-policy candidates, by four strategies, with current weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError, WrongSchema
from shoal.replay import Column, Elite, Fifo, Mixture, Part, Replay, SequenceView, ShardReader, Span, Uniform
from shoal.replay.selectors.elite import pick
from shoal.types import Keys

SPAN = Span(0, 4, crosses_episodes=True)
EXTRAS = (Column("feature", "float16", (2,)),)


def slow_pick(strategy: int, names: list[int], far: list[float], sampled: list[int], n: int) -> list[int]:
    """The strategies of the original in plain words, on distinct candidates."""
    order = sorted(range(len(names)), key=lambda i: far[i])
    if strategy == 1:
        return order[:n]
    if strategy == 2:
        return [order[k * len(order) // n] for k in range(n)]
    if strategy == 3:
        return sorted(order, key=lambda i: sampled[i])[:n]
    stretches: list[list[int]] = [[] for _ in range(n)]
    for rank, candidate in enumerate(order):
        stretches[rank * n // len(order)].append(candidate)
    return [min(stretch, key=lambda i: sampled[i]) for stretch in stretches]


@given(
    strategy=st.sampled_from([1, 2, 3, 4]),
    far=st.lists(st.floats(0, 10, width=32), min_size=1, max_size=40, unique=True),
    data=st.data(),
)
def test_strategies_against_plain_words(strategy: int, far: list[float], data: st.DataObject) -> None:
    count = len(far)
    n = data.draw(st.integers(1, count))
    sampled = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    names = list(range(100, 100 + count))
    kept = pick(strategy, np.array(names), np.array(far, np.float32), np.array(sampled, np.uint32), n)
    assert kept.tolist() == slow_pick(strategy, names, far, sampled, n)


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [(1, [5, 2, 0]), (2, [5, 0, 4]), (3, [2, 4, 5]), (4, [2, 0, 4])],
)
def test_strategies_by_hand(strategy: int, kept: list[int]) -> None:
    """Sorted by distance: 5 2 0 3 4 1; sampled before: 1 0 2 2 0 3 times."""
    far = np.array([0.3, 0.9, 0.2, 0.4, 0.5, 0.1], np.float32)
    sampled = np.array([2, 3, 0, 2, 0, 1], np.uint32)
    assert pick(strategy, np.array([10, 20, 30, 40, 50, 60]), far, sampled, 3).tolist() == kept


@pytest.mark.parametrize(("strategy", "names"), [(1, [7, 7]), (2, [7, 9]), (3, [7, 8]), (4, [7, 9])])
def test_a_candidate_drawn_twice(strategy: int, names: list[int]) -> None:
    """Strategy 1 keeps it twice; the others look for different ones."""
    drawn, far = [9, 7, 8, 7, 10], np.array([3, 1, 2, 1, 4], np.float32)
    sampled = np.array([0, 0, 1, 0, 1], np.uint32) if strategy == 4 else np.zeros(5, np.uint32)
    assert [drawn[place] for place in pick(strategy, np.array(drawn), far, sampled, 2)] == names


def test_too_few_different_candidates() -> None:
    for strategy in (1, 2, 3, 4):
        kept = pick(strategy, np.array([5, 5, 5, 6]), np.arange(4, dtype=np.float32), np.zeros(4, np.uint32), 3)
        assert len(kept) == 3


class _World:
    """A stream whose recorded feature is (row, lane) / 100, and a network that remembers rows below `drift` wrongly."""

    def __init__(self, shards: Any, blank: Any, lanes: int = 1, rows: int = 256, **schema: Any) -> None:
        self.writer, reader = shards.small(rows, lanes, extras=EXTRAS, **schema)
        self.reader: ShardReader = reader
        self.blank, self.drift, self.calls = blank, 0, list[int]()

    def write(self, count: int) -> None:
        """Observations are (row, lane); the feature was recorded as the observation, in half precision."""
        rows = np.arange(self.writer.head, self.writer.head + count)
        obs = np.zeros((count, self.writer.info.lanes, 2), np.float32)
        obs[..., 0], obs[..., 1] = rows[:, None], np.arange(self.writer.info.lanes)
        self.writer.append_chunk(self.blank(self.writer.info, count, obs=obs, feature=obs / 100))

    def features(self, obs: Any) -> Any:
        """The current network: what it makes of rows below `drift` has changed, the more the older."""
        self.calls.append(len(obs))
        changed = np.maximum(0, self.drift - obs[:, :1])
        return (obs + changed * np.array([1.0, 0.0])) / 100


def _elite(world: _World, **settings: Any) -> Elite:
    given = {"candidates": 4.0, "anneal": 1e6, "strategy": 1} | settings
    elite = Elite(world.features, **given)
    elite.attach(world.reader, SPAN)
    elite.refresh()
    return elite


@pytest.mark.parametrize("distance", ["l2", "kl"])
def test_what_the_network_has_moved_on_from_is_left(shards: Any, blank: Any, distance: str) -> None:
    world = _World(shards, blank)
    world.write(250)
    world.drift = 150
    elite, rng = _elite(world, distance=distance), np.random.default_rng(0)
    drawn = np.concatenate([elite.select(16, rng).keys.logical for _ in range(20)])
    plain = np.concatenate([_uniform(world).select(16, rng).keys.logical for _ in range(20)])
    assert (drawn >= 150).mean() > 0.95 > (plain >= 150).mean()
    metrics = elite.metrics()
    assert metrics["distance"] < metrics["candidate_distance"] and metrics["lambda"] == pytest.approx(4.0, abs=1e-3)
    assert set(world.calls) == {64 * 3}, "lambda times n candidates, three states each"


def _uniform(world: _World) -> Uniform:
    """Plain draws of the same stream."""
    uniform = Uniform()
    uniform.attach(world.reader, SPAN)
    uniform.refresh()
    return uniform


def test_distances_are_those_of_the_rows(shards: Any, blank: Any) -> None:
    world = _World(shards, blank, lanes=2)
    world.write(100)
    world.drift = 50
    elite = _elite(world, compared_steps=2)
    keys = Keys(np.zeros(3, np.int32), np.array([0, 1, 0], np.int32), np.array([40, 48, 60]))
    expected = [np.hypot(0.10, 0.08), np.hypot(0.02, 0.0), 0.0]
    assert np.allclose(elite._off_policy(keys), expected, atol=2e-3)


def test_probabilities_are_the_candidates(shards: Any, blank: Any) -> None:
    world = _World(shards, blank)
    world.write(101)
    elite = _elite(world)
    assert np.allclose(elite.select(8, np.random.default_rng(0)).probabilities, 1 / 97)
    assert elite.size == 97 and not elite.fresh


def test_the_least_sampled_come_first(shards: Any, blank: Any) -> None:
    """Strategy 3 goes round; strategy 1 stays with its favourites."""
    spread = {}
    for strategy in (1, 3):
        world = _World(shards, blank)
        world.write(105)
        world.drift = 100
        elite, rng = _elite(world, strategy=strategy), np.random.default_rng(0)
        counts = np.bincount(np.concatenate([elite.select(10, rng).keys.logical for _ in range(50)]), minlength=101)
        assert counts.sum() == 500
        spread[strategy] = counts.max()
        assert np.array_equal(elite._sampled[:101], counts[:101])
    assert spread[3] < 15 < spread[1]


def test_counts_of_shards_of_different_sizes(shards: Any, blank: Any) -> None:
    """Rings of 64 rows of 3 lanes and 32 of 2, both come round: each key's count is its own."""
    large, small = _World(shards, blank, lanes=3, rows=64), _World(shards, blank, lanes=2, rows=32)
    for world, count in ((large, 50), (large, 50), (small, 25), (small, 25)):
        world.write(count)
    elite, rng = _elite(large, strategy=3), np.random.default_rng(0)
    elite.attach(small.reader, SPAN)
    elite.refresh()
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(40):
        for key in zip(*elite.select(8, rng).keys, strict=True):
            place = tuple(int(value) for value in key)
            seen[place] = seen.get(place, 0) + 1
    assert {shard for shard, _, _ in seen} == {0, 1} and {lane for _, lane, _ in seen} == {0, 1, 2}
    first, second = elite._sampled[: 64 * 3].reshape(64, 3), elite._sampled[64 * 3 :].reshape(32, 2)
    assert all((first, second)[shard][row % (64, 32)[shard], lane] == n for (shard, lane, row), n in seen.items())
    assert elite._sampled.sum() == 320
    small.write(32)
    elite.refresh()
    assert not second.any() and first.sum() == elite._sampled.sum() > 0


def test_a_row_written_anew_was_never_sampled(shards: Any, blank: Any) -> None:
    world = _World(shards, blank, rows=64)
    world.write(60)
    elite, rng = _elite(world, strategy=3), np.random.default_rng(0)
    for _ in range(30):
        elite.select(8, rng)
    before = elite._sampled.copy()
    world.write(20)
    elite.refresh()
    assert before[:16].all() and not elite._sampled[:16].any() and not elite._sampled[60:].any()
    assert np.array_equal(elite._sampled[16:56], before[16:56])
    world.write(64)
    world.write(64)
    elite.refresh()
    assert not elite._sampled.any()


def test_at_one_it_draws_plainly_and_scores_nothing(shards: Any, blank: Any) -> None:
    world = _World(shards, blank)
    world.write(250)
    elite, rng = _elite(world, candidates=3.0, anneal=1.0, anneal_draws=10), np.random.default_rng(0)
    sizes = [len(elite.select(8, rng).keys.logical) for _ in range(14)]
    assert sizes == [8] * 14 and elite.metrics()["lambda"] == 1.0
    assert world.calls == [8 * (30 - 2 * k) // 10 * 3 for k in range(1, 10)]
    assert _elite(world, candidates=3.0, anneal=1.0, anneal_draws=10, drawn=10).metrics()["lambda"] == 1.0


def test_insertion_keeps_what_is_near(shards: Any, blank: Any) -> None:
    """The network moves on from the older rows: with insertion they leave first, whenever they came."""
    world = _World(shards, blank, rows=512)
    elite = _elite(world, capacity=30, insertion=True, insertion_sample=30, candidates=1.0)
    rng = np.random.default_rng(0)
    world.write(121)
    elite.refresh()
    elite.select(4, rng)
    assert elite.size == 30 and not world.calls
    world.drift = 60
    world.write(40)
    elite.refresh()
    held = set(elite.select(2000, rng).keys.logical.tolist())
    assert len(held) == 30 and len(world.calls) == 1
    assert {row for row in range(0, 160, 4) if row >= 40} == held, "the ten that drifted furthest left"


def test_a_whole_replay_with_a_queue_beside_it(shards: Any, blank: Any) -> None:
    world = _World(shards, blank, lanes=2, stack=1)
    world.write(100)
    view = SequenceView(world.writer.info.schema, 4, 0, ("feature",))
    mixture = Mixture([Part(Fifo(), 0.5), Part(Elite(world.features, candidates=3.0, capacity=40), 0.5)])
    replay = Replay([world.reader], mixture, view, 8)
    for _ in range(5):
        sample = replay.sample()
        assert sample is not None
        assert np.allclose(sample.data.obs[..., 0], sample.keys.logical + np.arange(5)[:, None])
        assert np.all(sample.keys.logical % 4 == 0), "what is held lies end to end"
    assert set(replay.metrics()) == {
        "fifo/queue",
        "fifo/dropped",
        "elite/lambda",
        "elite/distance",
        "elite/candidate_distance",
    }


def test_rows_overtaken_while_they_are_copied_are_drawn_anew(shards: Any, blank: Any) -> None:
    world = _World(shards, blank, rows=128)
    world.write(128)
    view = SequenceView(world.writer.info.schema, 4, 0, ("feature",))
    fill: Callable[..., None] = view.fill

    def overtaken(*arguments: Any) -> None:
        world.write(20)
        fill(*arguments)

    view.fill = overtaken  # type: ignore[method-assign]
    replay = Replay([world.reader], Elite(world.features, candidates=3.0), view, 16)
    for _ in range(30):
        sample = replay.sample()
        assert sample is not None
        assert np.array_equal(sample.data.obs[0, :, 0], sample.keys.logical)
    assert replay.redrawn > 0


def test_impossible_settings_are_refused(marked: Any, shards: Any) -> None:
    with pytest.raises(ConfigError, match="no elite strategy 5"):
        Elite(lambda obs: obs, strategy=5)
    with pytest.raises(ConfigError, match="needs a capacity"):
        Elite(lambda obs: obs, insertion=True)
    with pytest.raises(WrongSchema, match="no column 'feature'"):
        Elite(lambda obs: obs).attach(ShardReader(shards.make(marked.info(64, 1))), SPAN)
