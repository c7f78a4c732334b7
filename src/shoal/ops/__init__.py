"""The maths of reinforcement learning as pure functions: tensors in, tensors out, no state, no device, no process.

Suffixes say the time step: `tm1` is before the step, `t` after it. Letters say the axes: B batch, T time, A actions,
N quantiles, P parameters of a distribution over actions. A wrong rank is a ValueError, a wrong dtype a TypeError, both
naming the argument and its shape.
"""

from __future__ import annotations

from shoal.ops.categorical import categorical_loss as categorical_loss
from shoal.ops.categorical import categorical_projection as categorical_projection
from shoal.ops.categorical import support as support
from shoal.ops.continuous_control import SquashedSample as SquashedSample
from shoal.ops.continuous_control import bootstrap_target as bootstrap_target
from shoal.ops.continuous_control import clipped_double_q_target as clipped_double_q_target
from shoal.ops.continuous_control import sigma_ladder as sigma_ladder
from shoal.ops.continuous_control import smoothed_action as smoothed_action
from shoal.ops.continuous_control import soft_q_target as soft_q_target
from shoal.ops.continuous_control import squashed_gaussian as squashed_gaussian
from shoal.ops.continuous_control import temperature_loss as temperature_loss
from shoal.ops.distributions import ActionDistribution as ActionDistribution
from shoal.ops.distributions import Categorical as Categorical
from shoal.ops.distributions import DiagonalGaussian as DiagonalGaussian
from shoal.ops.distributions import MultiCategorical as MultiCategorical
from shoal.ops.exploration import epsilon_greedy as epsilon_greedy
from shoal.ops.exploration import epsilon_ladder as epsilon_ladder
from shoal.ops.moments import Moments as Moments
from shoal.ops.moments import joined_moments as joined_moments
from shoal.ops.moments import merged_moments as merged_moments
from shoal.ops.moments import moments_with_sums as moments_with_sums
from shoal.ops.moments import sums_about as sums_about
from shoal.ops.policy_learning import clipped_surrogate_loss as clipped_surrogate_loss
from shoal.ops.policy_learning import explained_variance as explained_variance
from shoal.ops.policy_learning import masked_mean as masked_mean
from shoal.ops.policy_learning import normalized as normalized
from shoal.ops.policy_learning import policy_gradient_loss as policy_gradient_loss
from shoal.ops.policy_learning import relevance_mask as relevance_mask
from shoal.ops.priority import importance_weights as importance_weights
from shoal.ops.schedules import linear_schedule as linear_schedule
from shoal.ops.schedules import polynomial_schedule as polynomial_schedule
from shoal.ops.sequence_values import double_q_values as double_q_values
from shoal.ops.sequence_values import n_step_returns as n_step_returns
from shoal.ops.sequence_values import regret as regret
from shoal.ops.sequence_values import rescaled as rescaled
from shoal.ops.sequence_values import sequence_priority as sequence_priority
from shoal.ops.sequence_values import unrescaled as unrescaled
from shoal.ops.value_learning import batched_index as batched_index
from shoal.ops.value_learning import double_q_target as double_q_target
from shoal.ops.value_learning import double_quantile_target as double_quantile_target
from shoal.ops.value_learning import huber as huber
from shoal.ops.value_learning import q_learning_target as q_learning_target
from shoal.ops.value_learning import quantile_huber_loss as quantile_huber_loss
from shoal.ops.value_learning import quantile_midpoints as quantile_midpoints
from shoal.ops.value_learning import td_error as td_error
from shoal.ops.vtrace import GAE as GAE
from shoal.ops.vtrace import VTrace as VTrace
from shoal.ops.vtrace import discounts as discounts
from shoal.ops.vtrace import gae as gae
from shoal.ops.vtrace import vtrace as vtrace
