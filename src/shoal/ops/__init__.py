"""The maths of reinforcement learning as pure functions: tensors in, tensors out, no state, no device, no process.

Suffixes say the time step: `tm1` is before the step, `t` after it. Letters say the axes: B batch, T time, A actions,
N quantiles, P parameters of a distribution over actions. A wrong rank is a ValueError, a wrong dtype a TypeError, both
naming the argument and its shape.
"""

from __future__ import annotations

from shoal.ops.distributions import ActionDistribution, Categorical, DiagonalGaussian
from shoal.ops.exploration import apex_epsilon, epsilon_greedy, epsilon_ladder
from shoal.ops.policy_learning import (
    clipped_surrogate_loss,
    masked_mean,
    normalized,
    policy_gradient_loss,
    relevance_mask,
)
from shoal.ops.priority import importance_weights, mixed_max_mean_priority
from shoal.ops.returns import n_step_return
from shoal.ops.schedules import LinearSchedule, PolynomialSchedule, linear_schedule, polynomial_schedule
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
    "LinearSchedule",
    "PolynomialSchedule",
    "VTrace",
    "apex_epsilon",
    "batched_index",
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
    "mixed_max_mean_priority",
    "n_step_return",
    "normalized",
    "policy_gradient_loss",
    "polynomial_schedule",
    "q_learning_target",
    "quantile_huber_loss",
    "quantile_midpoints",
    "relevance_mask",
    "td_error",
    "vtrace",
]
