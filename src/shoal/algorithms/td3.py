"""TD3: deterministic policy gradients without the critics' optimism.

"Addressing Function Approximation Error in Actor-Critic Methods", Fujimoto et al. 2018,
https://arxiv.org/abs/1802.09477. A single critic overestimates, and the policy learns to exploit that. So two critics
are learned and the lesser one is believed; the policy is updated less often than they are; and the target's action is
smoothed with a little noise, so that a narrow peak of the critics is worth nothing.

Deviations from the paper:
1. Networks of two layers of 256, as its authors' later code and most of the literature; 400 and 300 in the paper.
   `policy_hidden` and `critic_hidden` set them.
2. Adam with 3e-4, as its authors' later code; 1e-3 in the paper.
3. Many actors collect; `replay.samples_per_insert` keeps the paper's one update per step whatever their number.
4. Random actions until the learner's first update, that is for `replay.min_size` steps.
5. Targets move at every second update by `tau`, as in the paper; here that is `target_period` and need not equal the
   policy's delay.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms._continuous import (
    ActionBounds,
    ContinuousConfig,
    Correlation,
    ExploringPolicy,
    GaussianNoise,
    Sigma,
    TargetPeriod,
    as_it_is,
    continuous_algorithm,
)
from shoal.algorithms._continuous_learner import Batch, ContinuousLearner, CriticLoss, Networks, PolicyLoss, Rules
from shoal.algorithms.interface import Learner, LearnerContext, Policy, PolicyContext
from shoal.networks import CriticNetwork, PolicyNetwork
from shoal.ops import clipped_double_q_target, smoothed_action
from shoal.types import EnvSpec

NAME = "td3"


class Config(ContinuousConfig):
    """Hyper-parameters of TD3."""

    noise: Sigma = 0.1
    noise_correlation: Correlation = 0.0
    policy_delay: int = Field(2, ge=1, description="Updates of the critics for one of the policy.")
    target_period: TargetPeriod = 2
    smoothing_noise: float = Field(0.2, ge=0, description="Deviation of the noise on the target's action.")
    smoothing_clip: float = Field(0.5, gt=0, description="Most that this noise changes an action.")


def make_network(config: Config, spec: EnvSpec) -> PolicyNetwork:
    """The action at an observation: [B, *obs_shape] -> [B, A] in [-1, 1]."""
    size, normalize = ActionBounds(spec).size, config.normalize_observations
    return PolicyNetwork(spec.obs_shape, size, config.policy_hidden, config.activation, normalize=normalize, tanh=True)


def make_critic(config: Config, spec: EnvSpec) -> CriticNetwork:
    """The twins: [B, F], [B, A] -> [2, B, 1]."""
    size = ActionBounds(spec).size
    return CriticNetwork(spec.obs_shape, size, config.critic_hidden, config.activation, members=2)


def make_policy(config: Config, spec: EnvSpec, seat: PolicyContext) -> Policy:
    """What an actor holds."""
    noise = GaussianNoise(np.full(seat.lanes, config.noise), config.noise_correlation)
    return ExploringPolicy(make_network(config, spec), noise, as_it_is, spec, seat)


def critic_loss(networks: Networks, batch: Batch, noise: Tensor, *, clip: float) -> CriticLoss:
    """Squared errors of both critics against the lesser target, per sample; `noise` [B, A] smooths the action."""
    with torch.no_grad():
        action = smoothed_action(networks.target_policy.from_normalized(batch.next_obs), noise, clip)
        q_t = networks.target_critic(batch.next_obs, action).squeeze(2)  # [2, B]
        goal = clipped_double_q_target(q_t, batch.reward, batch.discount)
    q_tm1 = networks.critic(batch.obs, batch.action).squeeze(2)  # [2, B]
    error = goal - q_tm1
    return CriticLoss(error.square().sum(dim=0), error.mean(dim=0), q_tm1.mean())


def policy_loss(networks: Networks, batch: Batch) -> PolicyLoss:
    """What the first critic thinks of the policy's actions, to be raised."""
    action = networks.policy.from_normalized(batch.obs)
    return PolicyLoss(-networks.critic.judge(batch.obs, action, first=1).mean(), {})


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    """What updates the weights."""

    def critics(networks: Networks, batch: Batch) -> CriticLoss:
        noise = config.smoothing_noise * torch.randn_like(batch.action)
        return critic_loss(networks, batch, noise, clip=config.smoothing_clip)

    rules = Rules(critics, policy_loss, policy_delay=config.policy_delay)
    parts = (make_network(config, spec), make_critic(config, spec), rules)
    return ContinuousLearner(*parts, config, spec, context)


ALGORITHM = continuous_algorithm(
    NAME,
    "twin critics, delayed deterministic policy, smoothed targets",
    Config,
    make_policy,
    make_learner,
    min_size=5_000,
    samples_per_insert=256,  # in batches of 256: one update per step
    lanes=1,
)
