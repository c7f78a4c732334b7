"""Prioritized replay: the weights that undo its bias, and the priority of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.ops._checks import check_axes, check_bool, check_floating


def importance_weights(probabilities: Tensor, size: int | Tensor, beta: float) -> Tensor:
    """Importance weights of a prioritized batch, (N P)^-beta over the largest of the batch.

    One weight per sample, to be multiplied with that sample's loss. Because of the division only ratios of
    probabilities matter, so the largest weight is 1 and updates are only ever made smaller.

    "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952.

    Args:
        probabilities: [B] float64, the exact probability of each draw; positive. Best on the CPU, where they are
            made: they are looked at, which on a GPU would wait for it.
        size: N, the number of rows that could have been drawn; [B] where draws come from several sets of rows, each
            with its own. Draws from a set where all rows are alike then weigh the same, whatever its size.
        beta: how much of the bias to undo, from 0 (none) to 1 (all).

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
        return (weights / weights.max()).to(torch.float32)


def mixed_max_mean_priority(td_abs: Tensor, eta: float = 0.9, mask_t: Tensor | None = None) -> Tensor:
    """Priority of a sequence, eta * max_t |delta_t| + (1 - eta) * mean_t |delta_t|.

    The mean alone would wash out the few large errors of a long sequence.

    "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2),
    https://openreview.net/forum?id=r1lyTjAqYX.

    Args:
        td_abs: [T, B] absolute TD errors.
        eta: share of the maximum, in [0, 1].
        mask_t: [T, B] bool, True where a row holds a transition; others count neither in the maximum nor in the mean.
            None: all rows do.

    Returns:
        [B] priorities, without gradient; 0 for a sequence that is masked out entirely.
    """
    check_axes(td_abs=(td_abs, "TB"))
    check_floating(td_abs=td_abs)
    if td_abs.shape[0] == 0:
        raise ValueError(f"td_abs must have at least one step, got shape {tuple(td_abs.shape)}.")
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be in [0, 1], got {eta}.")
    td_abs = td_abs.detach()
    if mask_t is None:
        return eta * td_abs.amax(dim=0) + (1.0 - eta) * td_abs.mean(dim=0)
    check_axes(td_abs=(td_abs, "TB"), mask_t=(mask_t, "TB"))
    check_bool(mask_t=mask_t)
    td_abs = td_abs.masked_fill(~mask_t, 0.0)
    mean = td_abs.sum(dim=0) / mask_t.sum(dim=0).clamp(min=1)
    return eta * td_abs.amax(dim=0) + (1.0 - eta) * mean
