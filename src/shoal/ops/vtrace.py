"""V-trace: values and advantages of a policy, from experience of another one. GAE: the same from its own experience.

All tensors are time-major, [T, B], and rows are as they happened. Row t holds the state before step t and what the step
brought. After an episode's end comes one row that holds its final observation and no step; it is masked.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shoal.ops._checks import check_axes, check_bool, check_floating, check_floats


class VTrace(NamedTuple):
    """What `vtrace` returns; nothing carries a gradient.

    Attributes:
        targets: [T, B] v_t, what the value of each row should become; the value itself where masked.
        advantages: [T, B] of the actions taken, times their ratio clipped at `pg_rho_clip`; 0 where masked.
        rhos: [T, B] ratios clipped at `rho_clip`, for metrics; 0 where masked.
    """

    targets: Tensor
    advantages: Tensor
    rhos: Tensor


def discounts(terminated: Tensor, gamma: float) -> Tensor:
    """Discounts of steps: gamma, or 0 where the episode terminated. Truncation keeps gamma.

    Args:
        terminated: bool, of any shape.
        gamma: in [0, 1].

    Returns:
        float32 discounts, shaped as `terminated`.
    """
    check_bool(terminated=terminated)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}.")
    return gamma * (~terminated).to(torch.float32)


def vtrace(
    log_ratios: Tensor,
    values: Tensor,
    reward: Tensor,
    discount: Tensor,
    mask: Tensor,
    *,
    rho_clip: float | None = 1.0,
    c_clip: float | None = 1.0,
    pg_rho_clip: float | None = 1.0,
    lambda_: float = 1.0,
) -> VTrace:
    """V-trace targets and policy-gradient advantages.

        v_t = V_t + rho_t (r_t + d_t V_{t+1} - V_t) + d_t lambda c_t (v_{t+1} - V_{t+1}),    v_T = V_T
        advantage_t = min(pg_rho_clip, ratio_t) (r_t + d_t v_{t+1} - V_t)

    with rho_t = min(rho_clip, ratio_t) and c_t = min(c_clip, ratio_t). Nothing flows through a masked row: the row
    before it bootstraps from its value and from nothing beyond. So a truncated step needs no flag, only the masked row
    of the final observation after it; a step of a row that "Off-Policy Actor-Critic with Shared Experience Replay"
    rejects (https://arxiv.org/abs/1909.11583, see `relevance_mask`) is left out in the same way.

    "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    https://arxiv.org/abs/1802.01561.

    Args:
        log_ratios: [T, B] log pi(a) - log mu(a): policy to learn about, over the one that acted.
        values: [T+1, B] V of every row and of the one after the last.
        reward: [T, B] rewards.
        discount: [T, B] gamma, or 0 where the episode terminated (see `discounts`).
        mask: [T, B] bool, or floats 0 and 1; 0 where a row holds no step to learn from. What such a row says of ratio,
            reward and discount is ignored, whatever it is.
        rho_clip: decides what is learned: with infinity the value of pi, near 0 that of mu. None: unclipped.
        c_clip: decides how fast; at most `rho_clip` in the paper. None: unclipped.
        pg_rho_clip: clips the ratio in the advantages. None: unclipped.
        lambda_: decay of the trace beyond the discount, in [0, 1].

    Returns:
        Targets, advantages and clipped ratios, all [T, B] and without gradient.
    """
    check_axes(reward=(reward, "TB"), mask=(mask, "TB"))
    check_floats(log_ratios=(log_ratios, "TB"), reward=(reward, "TB"), discount=(discount, "TB"), values=(values, "SB"))
    if values.shape[0] != reward.shape[0] + 1:
        raise ValueError(f"values must be [T+1, B] with T = {reward.shape[0]}, got shape {tuple(values.shape)}.")
    if mask.dtype != torch.bool:
        check_floating(mask=mask)
    for name, clip in (("rho_clip", rho_clip), ("c_clip", c_clip), ("pg_rho_clip", pg_rho_clip)):
        if clip is not None and not clip > 0:
            raise ValueError(f"{name} must be positive, or None for no clipping, got {clip}.")
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"lambda_ must be in [0, 1], got {lambda_}.")

    with torch.no_grad():
        # Ratio, reward and discount of 0 make delta, trace and advantage 0. Filling, unlike multiplying, stops NaN.
        off = ~mask.bool()
        ratios = log_ratios.exp().masked_fill_(off, 0.0)
        reward, discount = reward.masked_fill(off, 0.0), discount.masked_fill(off, 0.0)
        rhos = ratios.clamp(max=rho_clip) if rho_clip is not None else ratios
        decay = discount * (ratios.clamp(max=c_clip) if c_clip is not None else ratios) * lambda_
        pg_rhos = ratios.clamp(max=pg_rho_clip) if pg_rho_clip is not None else ratios

        deltas = rhos * (reward + discount * values[1:] - values[:-1])
        corrections = functional.pad(deltas, (0, 0, 0, 1))  # [T+1, B] v - V, in place from the last row, which is 0
        rows, decays = corrections.unbind(), decay.to(deltas.dtype).unbind()
        for t in range(len(decays) - 1, -1, -1):
            rows[t].addcmul_(decays[t], rows[t + 1])

        targets = values + corrections  # [T+1, B]
        advantages = pg_rhos * (reward + discount * targets[1:] - values[:-1])
        return VTrace(targets[:-1], advantages, rhos)


class GAE(NamedTuple):
    """What `gae` returns; nothing carries a gradient.

    Attributes:
        advantages: [T, B] 0 where masked.
        targets: [T, B] advantages plus values: what the value of each row should become.
    """

    advantages: Tensor
    targets: Tensor


def gae(values: Tensor, reward: Tensor, discount: Tensor, mask: Tensor, *, lambda_: float) -> GAE:
    """Generalised advantage estimates.

        A_t = delta_t + d_t lambda A_{t+1},    delta_t = r_t + d_t V_{t+1} - V_t,    A_T = 0

    This is V-trace with all ratios 1: its correction of a value is the advantage.

    "High-Dimensional Continuous Control Using Generalized Advantage Estimation", https://arxiv.org/abs/1506.02438.

    Args:
        values: [T+1, B] V of every row and of the one after the last.
        reward: [T, B] rewards.
        discount: [T, B] gamma, or 0 where the episode terminated.
        mask: [T, B] 0 where a row holds no step; the step before it bootstraps from its value.
        lambda_: in [0, 1]; 0: the error of one step, 1: the whole return less the value.

    Returns:
        Advantages and targets, [T, B].
    """
    targets = vtrace(torch.zeros_like(reward), values, reward, discount, mask, lambda_=lambda_).targets
    return GAE(targets - values[:-1].detach(), targets)
