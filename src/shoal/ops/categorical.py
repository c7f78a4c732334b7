"""Distributions of the return on fixed atoms (C51): projection onto the atoms, and the loss.

"A Distributional Perspective on Reinforcement Learning", https://arxiv.org/abs/1707.06887.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.ops._checks import check_floats


def support(low: float, high: float, atoms: int) -> Tensor:
    """Equally spaced atoms.

    Args:
        low: the first.
        high: the last, above `low`.
        atoms: how many, at least 2.

    Returns:
        [N] float32, on the CPU.
    """
    if not high > low or atoms < 2:
        raise ValueError(f"A support needs low < high and at least 2 atoms, got {low}, {high} and {atoms}.")
    return torch.linspace(low, high, atoms)


def categorical_projection(z_q: Tensor, z_p: Tensor, probs: Tensor) -> Tensor:
    """Projects a distribution on atoms `z_p` onto the atoms `z_q`: each atom's probability is split between its two
    neighbours, in proportion to how near they are. Beyond the ends all of it goes to the end.

    "A Distributional Perspective on Reinforcement Learning", algorithm 1, https://arxiv.org/abs/1707.06887.

    Args:
        z_q: [N] equally spaced, rising atoms to project onto.
        z_p: [B, M] atoms of the distribution, for instance r + discount * z.
        probs: [B, M] their probabilities.

    Returns:
        [B, N] probabilities on `z_q`, without gradient. The mean is unchanged where no atom lies beyond the ends.
    """
    check_floats(z_q=(z_q, "N"), z_p=(z_p, "BM"), probs=(probs, "BM"))
    with torch.no_grad():
        count = z_q.shape[0]
        # No .item(): the position is found on the device, and the update can be captured as a graph.
        place = (z_p - z_q[0]) * ((count - 1) / (z_q[-1] - z_q[0]))
        place = place.clamp(0.0, float(count - 1))  # [B, M]
        below = place.floor().clamp_(max=float(count - 2))
        share = place - below  # of the upper neighbour
        index = below.long()
        projected = probs.new_zeros(probs.shape[0], count)
        projected.scatter_add_(1, index, probs * (1.0 - share))
        projected.scatter_add_(1, index + 1, probs * share)
        return projected


def categorical_loss(logits_tm1: Tensor, target_probs: Tensor) -> Tensor:
    """Cross-entropy of a predicted distribution with its target, -sum_n target_n log p_n.

    "A Distributional Perspective on Reinforcement Learning", https://arxiv.org/abs/1707.06887.

    Args:
        logits_tm1: [B, N] logits of the predicted probabilities.
        target_probs: [B, N] target probabilities on the same atoms.

    Returns:
        [B] losses, with a gradient to `logits_tm1` only.
    """
    check_floats(logits_tm1=(logits_tm1, "BN"), target_probs=(target_probs, "BN"))
    return -(target_probs.detach() * torch.log_softmax(logits_tm1, dim=1)).sum(dim=1)
