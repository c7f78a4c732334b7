"""Ape-X QR-DQN: Ape-X with the whole distribution of the return instead of its mean.

"Distributional Reinforcement Learning with Quantile Regression", Dabney et al. 2018, https://arxiv.org/abs/1710.10044,
on the actors, replay and learner of Ape-X (https://arxiv.org/abs/1803.00933). Every predicted quantile is regressed on
every target quantile: the full N x N pairing.

Deviations from the papers:
1. Those of `apex-dqn`, but for the loss.
2. The next action is chosen by the online network (double), as Ape-X does; QR-DQN uses the target network.
3. A sample's priority is the size of the error of its mean, not its loss: the same scale as the actors' initial
   priorities.
4. 51 quantiles by default; 200 in the paper.
5. Dueling networks, n-step returns and prioritized replay are Ape-X's; QR-DQN's paper has none of them.
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
from shoal.networks import QuantileNetwork
from shoal.ops import batched_index, double_quantile_target, quantile_huber_loss, quantile_midpoints
from shoal.types import EnvSpec

NAME = "apex-qr-dqn"


class Config(ValueConfig):
    """Hyper-parameters of Ape-X QR-DQN."""

    quantiles: int = Field(51, ge=1, le=1024, description="Quantiles per action; 200 in the paper.")
    kappa: float = Field(1.0, gt=0, description="Where the quantile loss turns from quadratic to linear.")


def make_network(config: Config, spec: EnvSpec) -> nn.Module:
    """Quantiles of the return of each action: [B, *obs_shape] -> [B, A, N]."""
    shape = (spec.obs_shape, spec.obs_dtype, spec.num_actions)
    return QuantileNetwork(*shape, config.hidden, config.dueling, quantiles=config.quantiles)


def make_policy(config: Config, spec: EnvSpec, seat: PolicyContext) -> Policy:
    """What an actor holds."""
    return EpsilonGreedyPolicy(make_network(config, spec), _action_values, config, spec, seat)


def _action_values(dist: Tensor) -> Tensor:
    return dist.mean(dim=-1)


def quantile_loss(network: nn.Module, target: nn.Module, batch: Batch, *, tau: Tensor, kappa: float) -> Loss:
    """Quantile Huber loss of the double Q-learning target, per sample."""
    dist_tm1 = network(batch.obs)  # [B, A, N]
    with torch.no_grad():
        goal = double_quantile_target(network(batch.next_obs), target(batch.next_obs), batch.reward, batch.discount)
    chosen = batched_index(dist_tm1, batch.action)  # [B, N]
    error = goal.mean(dim=-1) - chosen.mean(dim=-1)
    return Loss(quantile_huber_loss(chosen, tau, goal, kappa), error, dist_tm1.mean())


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    """What updates the weights."""
    tau = quantile_midpoints(config.quantiles).to(context.device)

    def loss(network: nn.Module, target: nn.Module, batch: Batch) -> Loss:
        return quantile_loss(network, target, batch, tau=tau, kappa=config.kappa)

    return ValueLearner(make_network(config, spec), make_network(config, spec), loss, config, context)


ALGORITHM = Algorithm(
    name=NAME,
    summary="Ape-X with quantile regression: learns the distribution of the return",
    config=Config,
    check=lambda spec: require_discrete(spec, NAME),
    columns=priority_column,
    make_view=make_view,
    make_policy=make_policy,
    make_learner=make_learner,
    actions="discrete",
    defaults=DEFAULTS,
)
