"""Learning policies: losses on the log probabilities of the actions taken, and which steps count.

Losses are per step, [T, B]. `masked_mean` averages them over the rows that hold a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.ops._checks import check_axes, check_floating, check_floats

_LARGEST_LOG_RATIO = 40.0
"""exp overflows float32 at 88, and an infinite ratio times an advantage of 0 is NaN, as is its gradient."""


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Policy-gradient loss, -log pi(a) * advantage.

    "Policy Gradient Methods for Reinforcement Learning with Function Approximation",
    https://papers.nips.cc/paper/1713; with the advantages of `vtrace` it is the one of IMPALA.

    Args:
        log_prob: [T, B] log pi(a) of the actions taken.
        advantage: [T, B] advantages.

    Returns:
        [T, B] losses. The gradient goes to `log_prob` only.
    """
    check_floats(log_prob=(log_prob, "TB"), advantage=(advantage, "TB"))
    return -log_prob * advantage.detach()


def clipped_surrogate_loss(
    log_prob: Tensor,
    target_log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantage: Tensor,
    *,
    epsilon: float | Tensor,
    worker_clip: float = 2.0,
) -> Tensor:
    """Clipped surrogate loss around a target policy.

        -min(r A, clip(r, 1 - epsilon, 1 + epsilon) A),    r = min(mu / pi_target, worker_clip) * pi / mu

    The ratio is clipped around the target network's policy, not around each worker's. With pi_target = mu it is the
    loss of "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347.

    "IMPACT: Importance Weighted Asynchronous Architectures with Clipped Target Networks",
    https://arxiv.org/abs/1912.00167.

    Args:
        log_prob: [T, B] log pi(a) of the actions taken.
        target_log_prob: [T, B] log pi_target(a), of the target network.
        behaviour_log_prob: [T, B] log mu(a), of the policy that acted.
        advantage: [T, B] advantages.
        epsilon: how far the ratio may move from 1 with a gradient, in (0, 1); or a scalar tensor, which is not checked.
        worker_clip: largest mu / pi_target, at least 1.

    Returns:
        [T, B] losses. The gradient goes to `log_prob` only.
    """
    check_floats(
        log_prob=(log_prob, "TB"),
        target_log_prob=(target_log_prob, "TB"),
        behaviour_log_prob=(behaviour_log_prob, "TB"),
        advantage=(advantage, "TB"),
    )
    if not isinstance(epsilon, Tensor) and not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon}.")
    if not worker_clip >= 1:
        raise ValueError(f"worker_clip must be at least 1, got {worker_clip}.")
    advantage = advantage.detach()
    # The same r with one exponential: pi / max(pi_target, mu / worker_clip).
    anchor = torch.maximum(target_log_prob, behaviour_log_prob - math.log(worker_clip)).detach()
    ratio = (log_prob - anchor).clamp(max=_LARGEST_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)  # type: ignore[arg-type]  # both bounds are of one type
    return -torch.minimum(ratio * advantage, clipped * advantage)


def relevance_mask(kl: Tensor, threshold: float) -> Tensor:
    """Which states to learn from: those where the policy is still close to the one that acted there.

    "Off-Policy Actor-Critic with Shared Experience Replay" (LASER), https://arxiv.org/abs/1909.11583.

    Args:
        kl: KL(pi || mu) of every state, of any shape.
        threshold: largest divergence, positive.

    Returns:
        Bool, shaped as `kl`, True where it is below the threshold; a KL that is NaN is not.
    """
    check_floating(kl=kl)
    if not threshold > 0:
        raise ValueError(f"threshold must be positive, got {threshold}.")
    return kl.detach() < threshold


def masked_mean(x: Tensor, mask: Tensor, dim: tuple[int, ...] | None = None) -> Tensor:
    """Mean of x where mask is 1, sum(x * mask) / max(1, sum(mask)).

    Args:
        x: of any shape. Where the mask is 0 it is ignored, even if it is not finite.
        mask: bool, or floats 0 and 1, shaped as `x`.
        dim: the axes to average over; None: all.

    Returns:
        [] or [...] mean; 0 where everything is masked.
    """
    check_floating(x=x)
    if mask.shape != x.shape:
        raise ValueError(f"mask must be of x's shape {tuple(x.shape)}, got shape {tuple(mask.shape)}.")
    if mask.dtype != torch.bool:
        check_floating(mask=mask)
    return torch.where(mask.bool(), x, 0.0).sum(dim) / mask.sum(dim).clamp(min=1)


def explained_variance(targets: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """How well values predict their targets: 1 - Var(target - value) / Var(target), at least -1.

    Args:
        targets: [T, B]
        values: [T, B]
        mask: [T, B] as for `masked_mean`.

    Returns:
        [] 1 if the values differ from the targets by a constant at most, 0 or less if a constant predicts as well.
    """
    check_axes(targets=(targets, "TB"), values=(values, "TB"), mask=(mask, "TB"))
    with torch.no_grad():
        count, both = mask.sum().clamp(min=1), torch.stack((targets - values, targets))  # [2, T, B]
        mean = (both * mask).sum(dim=(1, 2), keepdim=True) / count
        unexplained, whole = ((both - mean) * mask).square().sum(dim=(1, 2)) / count
        explained: Tensor = 1.0 - unexplained / whole.clamp(min=1e-8)
        return explained.clamp(min=-1.0)


def normalized(
    x: Tensor, mask: Tensor, total: Callable[[Tensor], Tensor] | None = None, *, least: float = 0.0
) -> Tensor:
    """Zero mean and unit deviation over the rows that count; 0 elsewhere.

    Args:
        x: [T, B]
        mask: [T, B] as for `masked_mean`.
        total: sums three numbers, [3] float64, over all parts of the batch; None: this is the whole batch.
        least: the smallest deviation to divide by.

    Returns:
        [T, B]
    """
    check_axes(x=(x, "TB"), mask=(mask, "TB"))
    if total is not None:
        counted = torch.where(mask.bool(), x, 0.0).detach().double()
        sums = total(torch.stack((mask.sum().double(), counted.sum(), counted.square().sum())))
        mean, square = (sums[1:] / sums[0].clamp(min=1.0)).unbind()
        deviation = (square - mean.square()).clamp(min=0.0).sqrt().clamp(min=least)
        return ((x - mean.to(x.dtype)) * mask) / (deviation + 1e-6).to(x.dtype)
    centred = (x - masked_mean(x, mask)) * mask
    return centred / (masked_mean(centred.square(), mask).sqrt().clamp(min=least) + 1e-6)
