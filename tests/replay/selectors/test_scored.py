"""Distances against their definitions, the states that are compared, and the annealing."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError, WrongSchema
from shoal.replay import ShardReader, ShardWriter, Span
from shoal.replay.selectors.scored import Annealing, States, cross_distances, distances
from shoal.types import Keys


def _softmax(logits: list[float]) -> list[float]:
    total = sum(math.exp(one) for one in logits)
    return [math.exp(one) / total for one in logits]


def slow_distance(current: Any, other: Any, kind: str) -> float:
    """Straight from the definitions, one number at a time; both are [C, F]."""
    a, b = [float(x) for row in current for x in row], [float(x) for row in other for x in row]
    if kind == "l2":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    if kind == "cosine":
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return 1.0 - dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    total = 0.0
    for one, two in zip(current, other, strict=True):
        p, q = _softmax(list(one)), _softmax(list(two))
        total += sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return total


def _blocks(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["l2", "cosine", "kl"])
@given(seed=st.integers(0, 1000), sizes=st.tuples(*(st.integers(1, 5),) * 3))
def test_distances_are_what_they_are_called(kind: Any, seed: int, sizes: tuple[int, int, int]) -> None:
    current, other = _blocks(seed, *sizes), _blocks(seed + 1, *sizes)
    expected = [slow_distance(one, two, kind) for one, two in zip(current, other, strict=True)]
    assert np.allclose(distances(current, other, kind), expected, atol=1e-4)
    assert np.allclose(distances(current, current, kind), 0.0, atol=1e-5), "nothing is nearer than the same"
    assert np.all(distances(current, other, kind) >= -1e-5)


@pytest.mark.parametrize("kind", ["l2", "cosine", "kl"])
@given(seed=st.integers(0, 1000), sizes=st.tuples(*(st.integers(1, 5),) * 3), references=st.integers(1, 4))
def test_distances_from_references_are_those_from_repeated_ones(
    kind: Any, seed: int, sizes: tuple[int, int, int], references: int
) -> None:
    current, reference = _blocks(seed, *sizes), _blocks(seed + 1, references, sizes[2])
    repeated = [np.repeat(one[None], sizes[1], axis=0) for one in reference]
    expected = [[slow_distance(block, other, kind) for other in repeated] for block in current]
    assert np.allclose(cross_distances(current, reference, kind), expected, atol=2e-3)


@pytest.mark.parametrize("kind", ["l2", "cosine", "kl"])
def test_blank_and_huge_features_give_numbers(kind: Any) -> None:
    """Zeros of a ReLU that never fired; logits of an untamed network."""
    blank, huge = np.zeros((2, 3, 4), np.float32), np.full((2, 3, 4), 1e4, np.float32)
    huge[..., 0] = -1e4
    for one, two in ((blank, blank), (blank, huge), (huge, blank)):
        assert np.isfinite(distances(one, two, kind)).all()
        assert np.isfinite(cross_distances(one, two[:, 0], kind)).all()


def test_cosine_prefers_the_alike() -> None:
    block = _blocks(0, 1, 2, 3)
    alike, opposite = distances(block, 2 * block, "cosine"), distances(block, -block, "cosine")
    assert alike[0] == pytest.approx(0.0, abs=1e-6) and opposite[0] == pytest.approx(2.0)


def test_lambda_falls_to_one_in_equal_steps() -> None:
    annealing = Annealing(6.0, 2.0, 10)
    seen = [annealing.candidates(8) / 8 for _ in range(25)]
    assert np.allclose(seen[:19], [int(8 * (6 - 0.25 * k)) / 8 for k in range(1, 20)])
    assert seen[19:] == [1.0] * 6 and annealing.now == 1.0
    assert Annealing(6.0, 2.0, 10, done=8).now == pytest.approx(4.0)
    assert Annealing(6.0, 2.0, 10, done=1000).now == 1.0
    assert Annealing(1.0, 2.0, 10).candidates(7) == 7


@pytest.mark.parametrize("given", [(0.5, 1.0, 10), (2.0, 0.0, 10), (2.0, 1.0, 0)])
def test_impossible_annealings_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        Annealing(*given)


@pytest.mark.parametrize(
    ("steps", "compared", "offsets"),
    [(20, 4, [0, 5, 10, 15]), (20, 1, [0]), (3, 4, [0, 1, 2]), (5, None, [0, 1, 2, 3, 4]), (10, 3, [0, 3, 6])],
)
def test_states_are_evenly_spaced_from_the_first(
    marked: ModuleType, shards: Any, steps: int, compared: int | None, offsets: list[int]
) -> None:
    path, states = shards.make(marked.info(64, 2)), States(lambda obs: obs[:, :1], compared)
    states.attach(ShardReader(path), Span(0, steps, crosses_episodes=True))
    spread = states.spread(Keys(np.zeros(2, np.int32), np.array([0, 1], np.int32), np.array([7, 9])))
    assert spread.logical.tolist() == [7 + k for k in offsets] + [9 + k for k in offsets]
    assert spread.lane.tolist() == [0] * len(offsets) + [1] * len(offsets)


@pytest.mark.parametrize("stack", [1, 3])
def test_the_network_sees_observations_as_the_actor_did(marked: ModuleType, shards: Any, stack: int) -> None:
    """Over several shards, a wrapped ring, episode ends, and batches that grow and shrink."""
    seen: list[Any] = []

    def features(obs: Any) -> Any:
        seen.append(obs.copy())
        return np.zeros((len(obs), 2))

    states, rng = States(features, 4), np.random.default_rng(0)
    for salt in range(2):
        path = shards.make(marked.info(64, 2, stack))
        writer = ShardWriter(path)
        for _ in range(4):
            writer.append_chunk(marked.block_of(salt, 2, writer.head, 40))
        states.attach(ShardReader(path), Span(stack - 1, 8, crosses_episodes=True))
    for count in (3, 12, 5):
        shard, lane = rng.integers(0, 2, (2, count)).astype(np.int32)
        keys = states.spread(Keys(shard, lane, rng.integers(110, 150, count)))
        assert states.current(keys).shape == (4 * count, 2)
        expected = marked.Checker([0, 1]).stacks(keys.shard, keys.lane, keys.logical, stack)
        assert np.array_equal(seen[-1], expected)


def test_a_shard_without_features_is_refused(marked: ModuleType, shards: Any) -> None:
    reader = ShardReader(shards.make(marked.info(64, 1)))
    with pytest.raises(WrongSchema, match=r"no column 'feature'.*impala"):
        States(lambda obs: obs, 4, recorded=True).attach(reader, Span(0, 4, crosses_episodes=True))
