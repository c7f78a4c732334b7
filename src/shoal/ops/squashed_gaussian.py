"""A Gaussian squashed into (-1, 1) by tanh: samples, and log-probabilities that are exact at the bounds too."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shoal.ops._checks import check_floats

_LOG_TWO = math.log(2.0)
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


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
