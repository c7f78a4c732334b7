"""The maths of reinforcement learning as pure functions: tensors in, tensors out, no state, no device, no process.

Suffixes say the time step: `tm1` is before the step, `t` after it. Letters say the axes: B batch, T time, A actions,
N quantiles. A wrong rank is a ValueError, a wrong dtype a TypeError, both naming the argument and its shape.
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
from shoal.ops.exploration import apex_epsilon, epsilon_greedy, epsilon_ladder
from shoal.ops.moments import Moments, merged_moments
from shoal.ops.priority import importance_weights, mixed_max_mean_priority
from shoal.ops.returns import n_step_return
from shoal.ops.schedules import LinearSchedule, linear_schedule
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

__all__ = [
    "LinearSchedule",
    "Moments",
    "SquashedSample",
    "apex_epsilon",
    "batched_index",
    "bootstrap_target",
    "categorical_loss",
    "categorical_projection",
    "clipped_double_q_target",
    "double_q_target",
    "double_quantile_target",
    "epsilon_greedy",
    "epsilon_ladder",
    "huber",
    "importance_weights",
    "linear_schedule",
    "merged_moments",
    "mixed_max_mean_priority",
    "n_step_return",
    "q_learning_target",
    "quantile_huber_loss",
    "quantile_midpoints",
    "sigma_ladder",
    "smoothed_action",
    "soft_q_target",
    "squashed_gaussian",
    "support",
    "td_error",
    "temperature_loss",
]
