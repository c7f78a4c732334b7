"""Learning action values: targets, errors, and the losses on them; scalar and by quantiles.

Names follow the time step: `q_tm1, a_tm1` before the step, `r_t, discount_t, q_t` after it. `discount_t` is gamma^m for
m-step transitions and 0 where the episode terminated. Targets have no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from shoal.ops._checks import check_axes, check_floating, check_floats, check_integer


def batched_index(values: Tensor, actions: Tensor) -> Tensor:
    """Takes, per sample, the values of one action.

    Args:
        values: [B, A] or [B, A, N].
        actions: [B] integers in [0, A).

    Returns:
        [B] or [B, N].
    """
    check_integer(actions=actions)
    if values.dim() == 3:
        check_axes(values=(values, "BAN"), actions=(actions, "B"))
        index = actions.long()[:, None, None].expand(-1, 1, values.shape[2])  # [B, 1, N]
        return values.gather(1, index).squeeze(1)
    check_axes(values=(values, "BA"), actions=(actions, "B"))
    return values.gather(1, actions.long()[:, None]).squeeze(1)


def q_learning_target(q_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Q-learning target, r + discount * max_a q(s', a).

    "Human-level control through deep reinforcement learning", https://www.nature.com/articles/nature14236.

    Args:
        q_t: [B, A] action values of the next state (of the target network, if there is one).
        r_t: [B] rewards.
        discount_t: [B] discounts.

    Returns:
        [B] targets, without gradient.
    """
    check_floats(q_t=(q_t, "BA"), r_t=(r_t, "B"), discount_t=(discount_t, "B"))
    with torch.no_grad():
        return r_t + discount_t * q_t.amax(dim=1)


def double_q_target(q_t_selector: Tensor, q_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Double Q-learning target: one network picks the action, the other gives its value.

    "Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461.

    Args:
        q_t_selector: [B, A] action values of the next state that pick the action (online network).
        q_t: [B, A] action values of the next state that value it (target network).
        r_t: [B] rewards.
        discount_t: [B] discounts.

    Returns:
        [B] targets, without gradient.
    """
    check_floats(q_t_selector=(q_t_selector, "BA"), q_t=(q_t, "BA"), r_t=(r_t, "B"), discount_t=(discount_t, "B"))
    with torch.no_grad():
        return r_t + discount_t * batched_index(q_t, q_t_selector.argmax(dim=1))


def td_error(q_tm1: Tensor, a_tm1: Tensor, target: Tensor) -> Tensor:
    """Temporal-difference error, target - q(s, a). Its gradient goes to `q_tm1` only.

    "Learning to Predict by the Methods of Temporal Differences", https://doi.org/10.1007/BF00115009.

    Args:
        q_tm1: [B, A] action values.
        a_tm1: [B] actions taken, integers.
        target: [B] targets.

    Returns:
        [B] errors.
    """
    check_axes(q_tm1=(q_tm1, "BA"), a_tm1=(a_tm1, "B"), target=(target, "B"))
    check_floating(q_tm1=q_tm1, target=target)
    check_integer(a_tm1=a_tm1)
    return target.detach() - batched_index(q_tm1, a_tm1)


def huber(x: Tensor, delta: float = 1.0) -> Tensor:
    """Huber loss: x^2 / 2 within [-delta, delta], delta * (|x| - delta / 2) outside.

    "Robust Estimation of a Location Parameter", https://doi.org/10.1214/aoms/1177703732.

    Args:
        x: errors, of any shape.
        delta: where the parabola becomes a line; positive.

    Returns:
        Losses, shaped as `x`.
    """
    check_floating(x=x)
    if not delta > 0:
        raise ValueError(f"delta must be positive, got {delta}.")
    # Both branches in one expression, for fewer kernels: c = x inside gives x^2 / 2, c = +-delta outside the line.
    clipped = x.clamp(-delta, delta)
    return clipped * (x - 0.5 * clipped)


def quantile_midpoints(n: int) -> Tensor:
    """The quantile levels of n equally likely atoms, (2i + 1) / (2n).

    "Distributional Reinforcement Learning with Quantile Regression", https://arxiv.org/abs/1710.10044.

    Args:
        n: number of quantiles, at least 1.

    Returns:
        [n] float32 levels in (0, 1), on the CPU.
    """
    if n < 1:
        raise ValueError(f"The number of quantiles must be at least 1, got {n}.")
    return ((torch.arange(n, dtype=torch.float64) + 0.5) / n).to(torch.float32)


def quantile_huber_loss(dist_tm1: Tensor, tau_tm1: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile regression with a Huber loss, over all pairs of a predicted quantile i and a target atom j.

        sum_i mean_j |tau_i - 1{u_ij < 0}| * huber_kappa(u_ij),    u_ij = target_j - dist_i

    Pairing i only with j = i is not quantile regression: each prediction needs the whole target distribution.

    "Distributional Reinforcement Learning with Quantile Regression", https://arxiv.org/abs/1710.10044. As there, and
    unlike in IQN, the loss is not divided by kappa; at the usual kappa = 1 there is no difference.

    Args:
        dist_tm1: [B, N] predicted quantiles of the action taken.
        tau_tm1: [N] or [B, N] their levels.
        target: [B, M] atoms of the target distribution, equally likely.
        kappa: Huber threshold; 0 is the plain (pinball) quantile loss.

    Returns:
        [B] losses. The gradient goes to `dist_tm1` only.
    """
    tau_axes = "BN" if tau_tm1.dim() == 2 else "N"
    check_floats(dist_tm1=(dist_tm1, "BN"), tau_tm1=(tau_tm1, tau_axes), target=(target, "BM"))
    if not kappa >= 0:
        raise ValueError(f"kappa must be at least 0, got {kappa}.")
    # torch's fused losses on expanded views take half the [B, N, M] passes of subtracting and then calling `huber`.
    # They want one dtype: their backward refuses a bfloat16 prediction of a float32 target.
    pairs, dtype = (*dist_tm1.shape, target.shape[1]), torch.promote_types(dist_tm1.dtype, target.dtype)
    predicted = dist_tm1.to(dtype)[:, :, None].expand(pairs)  # [B, N, M]
    wanted = target.detach().to(dtype)[:, None, :].expand(pairs)  # [B, N, M]
    tau = tau_tm1.detach()[..., None]  # [N, 1] or [B, N, 1]
    weight = torch.where(wanted < predicted.detach(), 1.0 - tau, tau)
    if kappa == 0:
        loss = functional.l1_loss(predicted, wanted, reduction="none")
    else:
        loss = functional.huber_loss(predicted, wanted, reduction="none", delta=kappa)
    return (weight * loss).mean(dim=2).sum(dim=1)


def double_quantile_target(dist_t_selector: Tensor, dist_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Double Q-learning target for quantiles: r + discount * atoms of the action with the selector's best mean.

    "Distributional Reinforcement Learning with Quantile Regression", https://arxiv.org/abs/1710.10044, and "Deep
    Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461.

    Args:
        dist_t_selector: [B, A, K] quantiles of the next state that pick the action (online network).
        dist_t: [B, A, N] quantiles of the next state that become the target (target network); K may differ from N.
        r_t: [B] rewards.
        discount_t: [B] discounts.

    Returns:
        [B, N] target atoms, without gradient.
    """
    check_floats(
        dist_t_selector=(dist_t_selector, "BAK"), dist_t=(dist_t, "BAN"), r_t=(r_t, "B"), discount_t=(discount_t, "B")
    )
    with torch.no_grad():
        a_t = dist_t_selector.mean(dim=2).argmax(dim=1)  # [B]
        return r_t[:, None] + discount_t[:, None] * batched_index(dist_t, a_t)
