"""Running mean and variance of a stream of batches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.ops._checks import check_axes, check_floats


class Moments(NamedTuple):
    """Number of rows, mean and variance of a stream, per dimension."""

    size: Tensor
    """Scalar int64: how many rows were seen. Not float64: torch.compile loses what is written to such a scalar."""
    mean: Tensor
    """[F] float64"""
    variance: Tensor
    """[F] float64, of the population."""


def merged_moments(known: Moments, rows: Tensor) -> Moments:
    """Mean and variance of all rows so far and some new ones.

    "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", Chan, Golub and LeVeque 1979,
    https://doi.org/10.1007/978-3-642-51461-6_3: no sum of squares is kept, so nothing cancels.

    Args:
        known: of the rows so far; a size of 0 for none.
        rows: [B, F] new rows, at least one.

    Returns:
        The moments of all rows.
    """
    check_axes(size=(known.size, ""))
    check_floats(mean=(known.mean, "F"), variance=(known.variance, "F"), rows=(rows, "BF"))
    with torch.no_grad():
        variance, mean = torch.var_mean(rows.double(), dim=0, correction=0)
        size = known.size + rows.shape[0]
        share = rows.shape[0] / size.double()
        apart = mean - known.mean
        together = known.variance + share * (variance - known.variance) + share * (1.0 - share) * apart.square()
        return Moments(size, known.mean + share * apart, together)
