"""Which buffers a batch is drawn from, in numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError, UnknownName
from shoal.sharing.strategies import STRATEGIES, check_strategy, pool_draws, pool_weights

POOLS = [one for one in STRATEGIES if one != "local_only"]


@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        ("self_heavy", [0, 0.2, 0.8]),
        ("uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("weighted", [0.5, 0.1, 0.4]),
        ("newest", [0.5, 0.1, 0.4]),
        ("local_only", [0, 0, 0]),
    ],
)
def test_weights(strategy: Any, weights: list[float]) -> None:
    assert pool_weights(strategy, np.array([500, 100, 400])).tolist() == pytest.approx(weights)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sizes", [[500], [500, 0], [0, 0, 0]])
def test_with_nobody_to_share_with_there_is_no_pool(strategy: Any, sizes: list[int]) -> None:
    assert not pool_weights(strategy, np.array(sizes)).any()


@given(st.sampled_from(POOLS), st.lists(st.integers(0, 10**7), min_size=2, max_size=9))
def test_weights_are_probabilities_and_empty_buffers_have_none(strategy: Any, sizes: list[int]) -> None:
    weights = pool_weights(strategy, np.array(sizes))
    assert (weights >= 0).all() and weights.sum() == pytest.approx(1.0 if any(sizes[1:]) else 0.0)
    assert not weights[np.array(sizes) == 0].any()


@pytest.mark.parametrize(("ratio", "batch"), [(0.2, 256), (0.2, 3), (0.01, 10), (0.333, 7), (0.999, 2), (0.1, 1)])
def test_rounding_keeps_the_mean(ratio: float, batch: int) -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([pool_draws(ratio, batch, rng) for _ in range(20_000)])
    exact = ratio * batch
    assert set(drawn.tolist()) <= {int(exact), int(exact) + 1}
    assert drawn.mean() == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize(("ratio", "whole"), [(0.0, 0), (0.25, 16), (0.5, 32), (1.0, 64)])
def test_whole_numbers_are_not_rounded(ratio: float, whole: int) -> None:
    rng = np.random.default_rng(0)
    assert {pool_draws(ratio, 64, rng) for _ in range(100)} == {whole}


@given(st.floats(0, 1), st.integers(0, 5000))
def test_never_more_than_a_batch(ratio: float, batch: int) -> None:
    assert 0 <= pool_draws(ratio, batch, np.random.default_rng(0)) <= batch


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'self_heavy'"):
        check_strategy("self-heavy", 0.2)
    for ratio in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="cross_sample_ratio"):
            check_strategy("uniform", ratio)
