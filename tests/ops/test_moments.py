"""Running moments: the same as of all rows at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ops import Moments, merged_moments


def nothing(size: int) -> Moments:
    zeros = torch.zeros(size, dtype=torch.float64)
    return Moments(torch.zeros((), dtype=torch.int64), zeros, zeros)


def test_by_hand() -> None:
    """1 and 3: mean 2, variance 1. Then 5: mean 3, variance (4 + 0 + 4) / 3."""
    first = merged_moments(nothing(1), torch.tensor([[1.0], [3.0]]))
    assert (first.size.item(), first.mean.item(), first.variance.item()) == (2.0, 2.0, 1.0)
    second = merged_moments(first, torch.tensor([[5.0]]))
    assert (second.size.item(), second.mean.item()) == (3.0, pytest.approx(3.0))
    assert second.variance.item() == pytest.approx(8 / 3)


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), offset=st.floats(-1e4, 1e4))
def test_batches_merge_to_the_whole(sizes: list[int], offset: float) -> None:
    """Also far from zero, where a sum of squares would cancel."""
    generator = torch.Generator().manual_seed(sum(sizes))
    batches = [offset + torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in sizes]
    moments = nothing(3)
    for batch in batches:
        moments = merged_moments(moments, batch)
    variance, mean = torch.var_mean(torch.cat(batches), dim=0, correction=0)
    torch.testing.assert_close(moments.mean, mean)
    torch.testing.assert_close(moments.variance, variance, rtol=1e-6, atol=1e-6)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        merged_moments(nothing(3), torch.zeros(4, 2))
