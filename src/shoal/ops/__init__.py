"""The maths of reinforcement learning as pure functions: tensors in, tensors out, no state, no device, no process.

Suffixes say the time step: `tm1` is before the step, `t` after it. Letters say the axes: B batch, T time, A actions,
N quantiles, P parameters of a distribution over actions. A wrong rank is a ValueError, a wrong dtype a TypeError, both
naming the argument and its shape.
"""

from __future__ import annotations

from shoal.ops.categorical import categorical_loss, categorical_projection, support
from shoal.ops.continuous_control import (
    bootstrap_target,
    clipped_double_q_target,
    sigma_ladder,
    smoothed_action,
    soft_q_target,
)
from shoal.ops.distributions import ActionDistribution, Categorical, DiagonalGaussian
from shoal.ops.exploration import epsilon_greedy, epsilon_ladder
from shoal.ops.moments import Moments, merged_moments
from shoal.ops.policy_learning import (
    clipped_surrogate_loss,
    masked_mean,
    normalized,
    policy_gradient_loss,
    relevance_mask,
)
from shoal.ops.priority import importance_weights
from shoal.ops.schedules import linear_schedule, polynomial_schedule
from shoal.ops.squashed_gaussian import SquashedSample, squashed_gaussian, temperature_loss
from shoal.ops.value_learning import (
    batched_index,
    double_q_target,
    double_quantile_target,
    huber,
    q_learning_target,
    quantile_huber_loss,
    quantile_midpoints,
    td_error,
)
from shoal.ops.vtrace import VTrace, discounts, vtrace

__all__ = [
    "ActionDistribution",
    "Categorical",
    "DiagonalGaussian",
    "Moments",
    "SquashedSample",
    "VTrace",
    "batched_index",
    "bootstrap_target",
    "categorical_loss",
    "categorical_projection",
    "clipped_double_q_target",
    "clipped_surrogate_loss",
    "discounts",
    "double_q_target",
    "double_quantile_target",
    "epsilon_greedy",
    "epsilon_ladder",
    "huber",
    "importance_weights",
    "linear_schedule",
    "masked_mean",
    "merged_moments",
    "normalized",
    "policy_gradient_loss",
    "polynomial_schedule",
    "q_learning_target",
    "quantile_huber_loss",
    "quantile_midpoints",
    "relevance_mask",
    "sigma_ladder",
    "smoothed_action",
    "soft_q_target",
    "squashed_gaussian",
    "support",
    "td_error",
    "temperature_loss",
    "vtrace",
]
