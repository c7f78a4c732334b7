"""Mixture: exact shares, parts that keep to themselves."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.ops import importance_weights
from shoal.replay import Fifo, Mixture, Part, Prioritized, Replay, SequenceView, ShardReader, ShardWriter, Uniform
from shoal.types import Keys, Sample


def _mixture(*ratios: float) -> Mixture:
    return Mixture([Part(Uniform(), ratio) for ratio in ratios])


@pytest.mark.parametrize(
    ("ratios", "n", "shares"),
    [
        ((1.0,), 7, [7]),
        ((0.5, 0.5), 8, [4, 4]),
        ((0.75, 0.25), 256, [192, 64]),
        ((1 / 3, 2 / 3), 9, [3, 6]),
        ((0.1, 0.2, 0.7), 10, [1, 2, 7]),
    ],
)
def test_shares_are_exact(ratios: tuple[float, ...], n: int, shares: list[int]) -> None:
    mixture = _mixture(*ratios)
    assert [share for _, share in mixture.layout(n).draws] == shares
    assert np.bincount(mixture.layout(n).part).tolist() == shares
    assert np.all(np.diff(mixture.layout(n).part) >= 0)


@pytest.mark.parametrize(
    ("ratios", "n", "nearest"),
    [((0.5, 0.5), 7, "[6, 8]"), ((0.25, 0.75), 255, "[252, 256]"), ((1 / 3, 2 / 3), 1, "[3, 6]")],
)
def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_that_do(
    ratios: tuple[float, ...], n: int, nearest: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        _mixture(*ratios).layout(n)
    assert f"A batch of {n}" in str(refused.value) and nearest in str(refused.value)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 300))
def test_shares_divide_or_are_refused(weights: list[int], n: int) -> None:
    total = sum(weights)
    mixture = _mixture(*(weight / total for weight in weights))
    if all(weight * n % total == 0 for weight in weights):
        assert [share for _, share in mixture.layout(n).draws] == [weight * n // total for weight in weights]
    else:
        with pytest.raises(ConfigError, match="nearest"):
            mixture.layout(n)


@pytest.mark.parametrize("ratios", [(), (0.5, 0.4), (1.5, -0.5), (0.0, 1.0)])
def test_ratios_that_are_none_are_refused(ratios: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="sum to"):
        _mixture(*ratios)


class Marker(Uniform):
    """A uniform selector that draws only rows with `row % 3 == remainder`, so that every draw tells whose it is."""

    def __init__(self, remainder: int) -> None:
        super().__init__()
        self._remainder = remainder

    def select(self, n: int, rng: np.random.Generator) -> Any:
        """See `Selector.select`."""
        selection = super().select(n, rng)
        logical = selection.keys.logical
        again = logical % 3 != self._remainder
        while again.any():
            logical[again] = super().select(int(again.sum()), rng).keys.logical
            again = logical % 3 != self._remainder
        selection.keys.lane[:] = 0
        return selection


def test_a_redraw_stays_in_its_part(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(128, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), 2, 0, ("tag",))
    writer.append_chunk(marked.block_of(0, 1, 0, 120))
    fill, left = view.fill, [2]

    def overtaken(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            writer.append_chunk(marked.block_of(0, 1, writer.head, 50))
        fill(*arguments)

    view.fill = overtaken  # type: ignore[method-assign]
    mixture = Mixture([Part(Marker(0), 0.5), Part(Marker(1), 0.25), Part(Marker(2), 0.25)])
    replay = Replay([ShardReader(path)], mixture, view, 32)
    sample = replay.sample()
    assert sample is not None and replay.redrawn > 4
    assert (sample.keys.logical % 3).tolist() == [0] * 16 + [1] * 8 + [2] * 8
    assert not marked.Checker([0]).wrong(sample, view).any()


def test_every_part_must_be_ready(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(128, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), 4, 0, ("tag",))
    mixture = Mixture([Part(Fifo(), 0.5), Part(Uniform(), 0.5)])
    replay = Replay([ShardReader(path)], mixture, view, 8)
    writer.append_chunk(marked.block_of(0, 1, 0, 16))
    assert replay.sample() is None  # three stretches wait, four are asked for
    writer.append_chunk(marked.block_of(0, 1, 16, 1))
    sample = replay.sample()
    assert sample is not None
    assert sample.keys.logical[:4].tolist() == [0, 4, 8, 12]
    assert sample.probabilities[:4].tolist() == [1.0] * 4
    assert np.allclose(sample.probabilities[4:], 1 / 13)
    assert sample.size.tolist() == [1] * 4 + [13] * 4 and replay.size == 13
    assert replay.sample() is None


def _weights(sample: Sample, beta: float) -> list[float]:
    probabilities, size = torch.from_numpy(sample.probabilities), torch.as_tensor(sample.size)
    weights: list[float] = importance_weights(probabilities, size, beta).tolist()
    return weights


@pytest.mark.parametrize("beta", [0.4, 1.0])
def test_weights_do_not_undo_the_ratios(marked: ModuleType, shards: Any, beta: float) -> None:
    """Where nothing is preferred within a part, all draws weigh 1: that half of them is new was asked for."""
    path = shards.make(marked.info(128, 1))
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 102))
    mixture = Mixture([Part(Uniform(), 0.5), Part(Uniform(newest=0.2), 0.25), Part(Fifo(), 0.25)])
    sample = Replay([ShardReader(path)], mixture, SequenceView(marked.schema(), 2), 16).sample()
    assert sample is not None
    assert sample.probabilities.tolist() == [1 / 100] * 8 + [1 / 20] * 4 + [1.0] * 4
    assert _weights(sample, beta) == [1.0] * 16


def test_weights_undo_priorities_within_their_part(marked: ModuleType, shards: Any) -> None:
    """By hand: 4 rows of priorities 1, 1, 2, 4 have P = 1/8, 1/8, 1/4, 1/2 and N P = 1/2, 1/2, 1, 2, so that
    1 / (N P) = 2, 2, 1, 1/2; rows of the uniform part have 1. Over the largest: 1, 1, 1/2, 1/4 and 1/2.
    """
    path = shards.make(marked.info(128, 1))
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 6))
    prioritized = Prioritized(alpha=1.0, epsilon=1e-12)
    mixture = Mixture([Part(prioritized, 0.5), Part(Uniform(newest=0.5), 0.5)])
    replay = Replay([ShardReader(path)], mixture, SequenceView(marked.schema(), 2), 64)
    replay.refresh()
    rows = Keys(np.zeros(4, np.int32), np.zeros(4, np.int32), np.arange(4))
    assert replay.update_priorities(rows, np.array([1, 1, 2, 4], np.float32)) == 0
    sample = replay.sample()
    assert sample is not None and set(sample.keys.logical[:32].tolist()) == {0, 1, 2, 3}
    by_hand = {0: 1.0, 1: 1.0, 2: 0.5, 3: 0.25}
    expected = [by_hand[row] for row in sample.keys.logical[:32].tolist()] + [0.5] * 32
    assert _weights(sample, 1.0) == pytest.approx(expected, rel=1e-6)
    alone = Replay([ShardReader(path)], Uniform(), SequenceView(marked.schema(), 2), 4).sample()
    assert alone is not None and alone.size == 4, "one number where there is one part"


def test_priorities_reach_every_part(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(128, 1))
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 60))
    parts = [Prioritized(alpha=1.0), Prioritized(alpha=1.0)]
    replay = Replay(
        [ShardReader(path)], Mixture([Part(one, 0.5) for one in parts]), SequenceView(marked.schema(), 2), 16
    )
    sample = replay.sample()
    assert sample is not None
    priorities = np.where(sample.keys.logical == sample.keys.logical[2], 1e9, 1e-6).astype(np.float32)
    assert replay.update_priorities(sample.keys, priorities) == 0
    again = replay.sample()
    assert again is not None
    assert set(again.keys.logical.tolist()) == {int(sample.keys.logical[2])}
    stale = sample.keys._replace(logical=sample.keys.logical + 1000)
    assert replay.update_priorities(stale, priorities) == 16, "a row is one row, however many parts drop it"


class Counted(Uniform):
    """A uniform selector with something to report."""

    def metrics(self) -> dict[str, float]:
        """See `Selector.metrics`."""
        return {"seen": 1.0}


def test_two_queues_are_refused() -> None:
    with pytest.raises(ConfigError, match="one queue"):
        Mixture([Part(Fifo(), 0.5), Part(Fifo(), 0.5)])


def test_a_sample_says_what_is_fresh_and_metrics_whose_they_are(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(128, 1))
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 60))
    view = SequenceView(marked.schema(), 4, 0, ("tag",))
    mixture = Mixture([Part(Counted(), 0.5), Part(Fifo(), 0.25), Part(Counted(), 0.25)])
    replay = Replay([ShardReader(path)], mixture, view, 8)
    sample = replay.sample()
    assert sample is not None and sample.fresh.tolist() == [False] * 4 + [True] * 2 + [False] * 2
    assert replay.metrics() == {
        "uniform-0/seen": 1.0,
        "fifo/queue": 12.0,
        "fifo/dropped": 0.0,
        "uniform-2/seen": 1.0,
    }
    alone = Replay([ShardReader(path)], Uniform(), view, 8)
    plain = alone.sample()
    assert plain is not None and not plain.fresh.any() and len(plain.fresh) == 8
    assert alone.metrics() == {}
