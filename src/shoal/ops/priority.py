"""Prioritized replay: the importance weights that correct its bias."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.ops._checks import check_axes


def importance_weights(
    probabilities: Tensor,
    size: int | Tensor,
    beta: float,
    largest: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Tensor:
    """Importance weights of a prioritized batch, (N P)^-beta over the largest of the batch.

    One weight per sample, to be multiplied with that sample's loss. The division makes the largest weight 1, so that
    weights only make updates smaller.

    "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952.

    Args:
        probabilities: [B] float64, the exact probability of each draw; positive. Best on the CPU: checking them on a
            GPU would wait for it.
        size: N, the number of rows that could have been drawn; [B] where draws come from several sets of rows, the
            size of each draw's set. Uniform draws then weigh the same, whatever the size of their set.
        beta: how much of the bias to correct, from 0 (none) to 1 (all).
        largest: from the largest weight of this batch to the one to divide by, where this is a part of a batch.

    Returns:
        [B] float32 weights in (0, 1].
    """
    check_axes(probabilities=(probabilities, "B"))
    if probabilities.dtype != torch.float64:
        # Rows of a 1M replay have P near 1e-6 and less: rounding before the ratio would already be visible.
        raise TypeError(
            f"probabilities must be torch.float64, got {probabilities.dtype} of shape {tuple(probabilities.shape)}."
        )
    size = torch.as_tensor(size)
    if bool((size < 1).any()):
        raise ValueError(f"size must be at least 1, got {int(size.min())}.")
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be in [0, 1], got {beta}.")
    if probabilities.shape[0] == 0 or not bool((probabilities > 0).all()):
        raise ValueError(f"probabilities must be positive and at least one, got shape {tuple(probabilities.shape)}.")
    with torch.no_grad():
        weights = (size * probabilities).pow(-beta)
        return (weights / largest(weights.max())).to(torch.float32)
