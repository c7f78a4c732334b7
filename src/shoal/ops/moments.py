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
    variance, mean = torch.var_mean(rows.detach().double(), dim=0, correction=0)
    return joined_moments(known, rows.shape[0], mean, variance)


def sums_about(rows: Tensor, center: Tensor) -> Tensor:
    """What moments follow from, if it is added up over several batches. Not about 0, where large squares would cancel.

    Args:
        rows: [B, F], also none.
        center: [F] float64, near their mean.

    Returns:
        [1 + 2F] float64: the number of rows, the sums of their distances from the center, and of the squares of these.
    """
    check_floats(rows=(rows, "BF"), center=(center, "F"))
    apart = rows.double() - center
    return torch.cat((apart.new_tensor([len(rows)]), apart.sum(0), apart.square().sum(0)))


def moments_with_sums(known: Moments, sums: Tensor) -> Moments:
    """Mean and variance of all rows so far and some new ones, which are given by their sums.

    Args:
        known: of the rows so far.
        sums: [1 + 2F] float64, `sums_about` the known mean; also of no rows.

    Returns:
        The moments of all rows.
    """
    apart, square = (sums[1:] / sums[0].clamp(min=1.0)).chunk(2)
    return joined_moments(known, sums[0], known.mean + apart, square - apart.square())


@torch.no_grad()
def joined_moments(known: Moments, rows: int | Tensor, mean: Tensor, variance: Tensor) -> Moments:
    """As `merged_moments`, by the new rows' own moments.

    Args:
        known: of the rows so far.
        rows: how many are new.
        mean: [F] float64
        variance: [F] float64, of the population.

    Returns:
        The moments of all rows.
    """
    size = known.size + (rows if isinstance(rows, int) else rows.to(torch.int64))
    share = rows / size.double().clamp(min=1.0)
    apart = mean - known.mean
    together = known.variance + share * (variance - known.variance) + share * (1.0 - share) * apart.square()
    return Moments(size, known.mean + share * apart, together)
