"""Ape-X DQN: many actors, one learner, prioritized replay.

"Distributed Prioritized Experience Replay", Horgan et al. 2018, https://arxiv.org/abs/1803.00933: dueling double DQN
with n-step returns. Each lane of each actor explores with its own epsilon; actors compute initial priorities from the
action values they acted with, so no new step has to be scored twice and none enters at a made-up priority.

Deviations from the paper:
1. Adam instead of centred RMSProp.
2. The importance exponent grows from 0.4 to 1 instead of staying at 0.4 (as in prioritized replay's own paper);
   `beta_updates` sets how fast.
3. The ladder of epsilons runs over lanes, not over processes: an actor steps several environments at once.
4. Old steps leave when the ring is full, one by one, not in a sweep every 100 updates.
5. A samples-per-insert limit ties learner and actors together; the paper lets both run free.
6. Huber loss; the paper has the squared error.
7. Sizes for one machine: a replay of 200,000 steps, learning from 10,000 on, a few actors.
8. Dueling MLPs share their last width between the streams; image networks have two full ones, as in the paper.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms._value_based import (
    DEFAULTS,
    Batch,
    EpsilonGreedyPolicy,
    Loss,
    ValueConfig,
    ValueLearner,
    make_view,
    priority_column,
    require_discrete,
)
from shoal.algorithms.interface import Algorithm, Learner, LearnerContext, Policy, PolicyContext
from shoal.networks import QNetwork
from shoal.ops import double_q_target, huber, q_learning_target, td_error
from shoal.types import EnvSpec

NAME = "apex-dqn"


class Config(ValueConfig):
    """Hyper-parameters of Ape-X DQN."""

    double: bool = Field(True, description="Choose the next action with the online network, value it with the target.")
    huber_delta: float = Field(1.0, gt=0, description="Where the loss turns from quadratic to linear.")


def make_network(config: Config, spec: EnvSpec) -> nn.Module:
    """Action values of an observation: [B, *obs_shape] -> [B, A]."""
    return QNetwork(spec.obs_shape, spec.obs_dtype, spec.num_actions, config.hidden, config.dueling)


def make_policy(config: Config, spec: EnvSpec, seat: PolicyContext) -> Policy:
    """What an actor holds."""
    return EpsilonGreedyPolicy(make_network(config, spec), _action_values, config, spec, seat)


def _action_values(q: Tensor) -> Tensor:
    return q


def dqn_loss(network: nn.Module, target: nn.Module, batch: Batch, *, double: bool, huber_delta: float) -> Loss:
    """Huber loss of the (double) Q-learning error, per sample."""
    q_tm1 = network(batch.obs)  # [B, A]
    with torch.no_grad():
        q_t = target(batch.next_obs)
        if double:
            goal = double_q_target(network(batch.next_obs), q_t, batch.reward, batch.discount)
        else:
            goal = q_learning_target(q_t, batch.reward, batch.discount)
    error = td_error(q_tm1, batch.action, goal)
    return Loss(huber(error, huber_delta), error, q_tm1.mean())


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    """What updates the weights."""

    def loss(network: nn.Module, target: nn.Module, batch: Batch) -> Loss:
        return dqn_loss(network, target, batch, double=config.double, huber_delta=config.huber_delta)

    return ValueLearner(make_network(config, spec), make_network(config, spec), loss, config, context)


ALGORITHM = Algorithm(
    name=NAME,
    summary="dueling double DQN, n-step, prioritized replay fed by many actors",
    config=Config,
    check=lambda spec: require_discrete(spec, NAME),
    columns=priority_column,
    make_view=make_view,
    make_policy=make_policy,
    make_learner=make_learner,
    actions="discrete",
    defaults=DEFAULTS,
)
