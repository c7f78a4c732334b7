"""Targets of actor-critic learning with continuous actions, the noise that explores and smooths, and SAC's policy: a
Gaussian squashed into (-1, 1) by tanh.

Critics are ensembles: `q_t` is [M, B], the values that M critics give to the next state and the (target) policy's
action there. Actions are in [-1, 1] here; they are scaled for the environment elsewhere. Targets have no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from shoal.ops._checks import check_floats

_LOG_TWO = math.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def sigma_ladder(total: int, largest: float, smallest: float) -> npt.NDArray[np.float64]:
    """Standard deviations of the noise of many explorers, from the largest to the smallest, in equal ratios.

    The counterpart for continuous actions of the epsilons in "Distributed Prioritized Experience Replay"
    (https://arxiv.org/abs/1803.00933): each explorer keeps its own for the whole training.

    Args:
        total: how many explorers there are (actors times lanes); a single one has the geometric mean.
        largest: of the first, positive.
        smallest: of the last, positive and at most `largest`.

    Returns:
        [total] float64, falling.
    """
    if total < 1:
        raise ValueError(f"total must be at least 1, got {total}.")
    if not 0 < smallest <= largest:
        raise ValueError(f"0 < smallest <= largest must hold, got smallest={smallest} and largest={largest}.")
    if total == 1:
        return np.array([np.sqrt(largest * smallest)])
    ladder: npt.NDArray[np.float64] = np.geomspace(largest, smallest, total)
    return ladder


def bootstrap_target(v_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Target of a value or of a distribution: r + discount * v, atom by atom.

    "Continuous control with deep reinforcement learning", https://arxiv.org/abs/1509.02971; for atoms "Distributed
    Distributional Deterministic Policy Gradients", https://arxiv.org/abs/1804.08617.

    Args:
        v_t: [B] values of the next state, or [B, N] equally likely atoms of its return.
        r_t: [B] rewards.
        discount_t: [B] discounts, 0 where the episode terminated.

    Returns:
        [B] or [B, N], without gradient.
    """
    check_floats(v_t=(v_t, "BN" if v_t.dim() == 2 else "B"), r_t=(r_t, "B"), discount_t=(discount_t, "B"))
    with torch.no_grad():
        if v_t.dim() == 2:
            return r_t[:, None] + discount_t[:, None] * v_t
        return r_t + discount_t * v_t


def clipped_double_q_target(q_t: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Target of TD3: r + discount * min_m q_m, with the minimum over the critics.

    "Addressing Function Approximation Error in Actor-Critic Methods", https://arxiv.org/abs/1802.09477.

    Args:
        q_t: [M, B] values of the next state by each target critic.
        r_t: [B] rewards.
        discount_t: [B] discounts, 0 where the episode terminated.

    Returns:
        [B] targets, without gradient.
    """
    check_floats(q_t=(q_t, "MB"), r_t=(r_t, "B"), discount_t=(discount_t, "B"))
    with torch.no_grad():
        return r_t + discount_t * q_t.amin(dim=0)


def soft_q_target(q_t: Tensor, log_prob_t: Tensor, temperature: Tensor, r_t: Tensor, discount_t: Tensor) -> Tensor:
    """Target of SAC: r + discount * (min_m q_m - temperature * log_prob).

    "Soft Actor-Critic Algorithms and Applications", https://arxiv.org/abs/1812.05905.

    Args:
        q_t: [M, B] values of the next state and an action drawn there, by each target critic.
        log_prob_t: [B] log-probability of that action.
        temperature: scalar, the weight of the entropy.
        r_t: [B] rewards.
        discount_t: [B] discounts, 0 where the episode terminated.

    Returns:
        [B] targets, without gradient.
    """
    values = {"q_t": (q_t, "MB"), "log_prob_t": (log_prob_t, "B"), "temperature": (temperature, "")}
    check_floats(**values, r_t=(r_t, "B"), discount_t=(discount_t, "B"))
    with torch.no_grad():
        return r_t + discount_t * (q_t.amin(dim=0) - temperature * log_prob_t)


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """Target policy smoothing: the action plus clipped noise, clipped to [-1, 1].

    "Addressing Function Approximation Error in Actor-Critic Methods", https://arxiv.org/abs/1802.09477.

    Args:
        action: [B, A] of the target policy.
        noise: [B, A] of the same scale.
        clip: largest change of a dimension by the noise; positive.

    Returns:
        [B, A] without gradient.
    """
    check_floats(action=(action, "BA"), noise=(noise, "BA"))
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}.")
    with torch.no_grad():
        return (action + noise.clamp(-clip, clip)).clamp_(-1.0, 1.0)


class SquashedSample(NamedTuple):
    """Actions and their log densities."""

    action: Tensor
    """[B, A] in [-1, 1]."""
    log_prob: Tensor
    """[B] log density of the action, over all its dimensions."""


def squashed_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> SquashedSample:
    """Samples tanh(mean + std * noise), with its log density.

        log p(a) = log N(u; mean, std) - sum log(1 - tanh(u)^2),    u = mean + std * noise

    The last term is computed as 2 (log 2 - u - softplus(-2u)), which is exact for every u. The usual
    log(1 - a^2 + 1e-6) is not: in float32 tanh is 1 from u = 9 on, where that term is -13.8 for every u and has no
    gradient, so a policy at its bounds would not learn that it has lost its entropy.

    "Soft Actor-Critic Algorithms and Applications", appendix C, https://arxiv.org/abs/1812.05905.

    Args:
        mean: [B, A] of the Gaussian before it is squashed.
        log_std: [B, A] logarithm of its standard deviation.
        noise: [B, A] standard normal numbers.

    Returns:
        Actions and their log densities, with gradients to `mean` and `log_std` (the reparametrisation trick).
    """
    check_floats(mean=(mean, "BA"), log_std=(log_std, "BA"), noise=(noise, "BA"))
    before = torch.addcmul(mean, log_std.exp(), noise)
    # The sum over dimensions, and the constants after it: fewer passes over small tensors.
    varying = 2.0 * (before + functional.softplus(-2.0 * before)) - log_std - 0.5 * noise.square()
    log_prob = varying.sum(dim=1) - mean.shape[1] * (2.0 * _LOG_TWO + _HALF_LOG_TWO_PI)
    return SquashedSample(torch.tanh(before), log_prob)


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Loss of SAC's temperature, which rises while the policy's entropy is below the target and falls above it.

        -log_temperature * mean(log_prob + target_entropy)

    "Soft Actor-Critic Algorithms and Applications", section 5, https://arxiv.org/abs/1812.05905. As in the authors'
    code, the loss uses the logarithm instead of the temperature itself: the sign is the same, and the step does not
    shrink with the temperature.

    Args:
        log_temperature: scalar, the parameter.
        log_prob: [B] of actions of the current policy.
        target_entropy: the wanted mean of -log_prob.

    Returns:
        Scalar loss, with a gradient to `log_temperature` only.
    """
    check_floats(log_temperature=(log_temperature, ""), log_prob=(log_prob, "B"))
    return -log_temperature * (log_prob.detach() + target_entropy).mean()
