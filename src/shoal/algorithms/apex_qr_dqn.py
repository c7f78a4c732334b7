"""Ape-X QR-DQN: Ape-X with the whole distribution of the return instead of its mean.

"Distributional Reinforcement Learning with Quantile Regression", Dabney et al. 2018, https://arxiv.org/abs/1710.10044,
on the actors, replay and learner of Ape-X (https://arxiv.org/abs/1803.00933). Every predicted quantile is regressed on
every target quantile: the full N x N pairing.

Deviations from the papers:
1. Those of `apex-dqn`, except the loss.
2. The next action is chosen by the online network (double), as Ape-X does; QR-DQN uses the target network.
3. A sample's priority is the size of the error of its mean, not its loss: the same scale as the actors' initial
   priorities.
4. 51 quantiles by default; 200 in the paper.
5. Dueling networks, n-step returns and prioritized replay are Ape-X's; QR-DQN's paper has none of them.
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.apex_dqn import ValueConfig, ValueLoss, observe_returns, q_network, value_algorithm
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.learner import Loss
from shoal.networks import QNetwork
from shoal.ops import batched_index, double_quantile_target, quantile_huber_loss, quantile_midpoints
from shoal.types import EnvSpec


class Config(ValueConfig):
    """Hyper-parameters of Ape-X QR-DQN."""

    quantiles: int = Field(51, ge=1, le=1024, description="Quantiles per action; 200 in the paper.")
    kappa: float = Field(1.0, gt=0, description="Where the quantile loss turns from quadratic to linear.")


def make_network(config: Config, spec: EnvSpec) -> QNetwork:
    """Quantiles of the return of each action: [B, *obs_shape] -> [B, A, N]."""
    return q_network(config, spec, config.quantiles)


def quantile_loss(network: QNetwork, target: QNetwork, batch: TransitionBatch, *, tau: Tensor, kappa: float) -> Loss:
    """Quantile Huber loss of the double Q-learning target, per sample."""
    dist_tm1 = network(batch.obs)  # [B, A, N]
    with torch.no_grad():
        goal = double_quantile_target(network(batch.next_obs), target(batch.next_obs), batch.reward, batch.discount)
    chosen = batched_index(dist_tm1, batch.action)  # [B, N]
    error = goal.mean(dim=-1) - chosen.mean(dim=-1)
    observe_returns(network, goal)
    scale = network.value_scale
    return Loss(quantile_huber_loss(chosen / scale, tau, goal / scale, kappa), error, {"q_mean": dist_tm1.mean()})


def make_loss(config: Config, device: torch.device) -> ValueLoss:
    """The loss with its settings."""
    return partial(quantile_loss, tau=quantile_midpoints(config.quantiles).to(device), kappa=config.kappa)


ALGORITHM = value_algorithm(
    "apex-qr-dqn",
    "Ape-X with quantile regression: learns the distribution of the return",
    Config,
    make_network,
    make_loss,
    # Of vectors: half of the time that an update takes goes into the pairs of 51. Quantiles are learned more slowly
    # than means, so the step size stays large for longer.
    suited={"quantiles": 25, "schedule_power": 0.5},
)
