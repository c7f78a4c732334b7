"""TD3: deterministic policy gradients without the critics' optimism.

"Addressing Function Approximation Error in Actor-Critic Methods", Fujimoto et al. 2018,
https://arxiv.org/abs/1802.09477. A single critic overestimates, and the policy learns to exploit that. So two critics
are learned, and targets use their minimum; the policy is updated less often than they are; and the target's action is
smoothed with a little noise, so that the policy gains nothing from a narrow peak of the critics.

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

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms import continuous as common
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.continuous import Networks, NoiseConfig
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.algorithms.learner import Loss
from shoal.ops import clipped_double_q_target, smoothed_action
from shoal.types import EnvSpec


class Config(NoiseConfig):
    """Hyper-parameters of TD3."""

    policy_delay: int = Field(2, ge=1, description="Updates of the critics for one of the policy.")
    target_period: common.TargetPeriod = 2
    smoothing_noise: float = Field(0.2, ge=0, description="Deviation of the noise on the target's action.")
    smoothing_clip: float = Field(0.5, gt=0, description="Most that this noise changes an action.")


def critic_loss(networks: Networks, batch: TransitionBatch, noise: Tensor, *, clip: float) -> Loss:
    """Squared errors of both critics against the smaller target, per sample; `noise` [B, A] smooths the action."""
    with torch.no_grad():
        action = smoothed_action(networks.target_policy.from_normalized(batch.next_obs), noise, clip)
        q_t = networks.target_critic(batch.next_obs, action).squeeze(2)  # [2, B]
        goal = clipped_double_q_target(q_t, batch.reward, batch.discount)
    q_tm1 = networks.critic(batch.obs, batch.action).squeeze(2)  # [2, B]
    error = goal - q_tm1
    return Loss(error.square().sum(dim=0), error.mean(dim=0), {"q_mean": q_tm1.mean()})


def policy_loss(networks: Networks, batch: TransitionBatch) -> Loss:
    """Minus the first critic's value of the policy's actions."""
    action = networks.policy.from_normalized(batch.obs)
    return Loss(-networks.critic.judge(batch.obs, action, first=1).mean(), None, {})


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    def critics(networks: Networks, batch: TransitionBatch) -> Loss:
        noise = config.smoothing_noise * torch.randn_like(batch.action)
        return critic_loss(networks, batch, noise, clip=config.smoothing_clip)

    policy, critic = common.policy_network(config, spec), common.critic_network(config, spec, members=2)
    losses = (critics, policy_loss)
    return common.continuous_learner(config, spec, context, policy, critic, *losses, policy_delay=config.policy_delay)


ALGORITHM = common.continuous_algorithm(
    "td3",
    "twin critics, delayed deterministic policy, smoothed targets",
    Config,
    common.noisy_policy,
    make_learner,
    min_size=5_000,
    samples_per_insert=256,  # in batches of 256: one update per step
    lanes=1,
    suited={"learning_rate": 1e-3, "policy_learning_rate": 1e-3},  # 3e-4: InvertedPendulum not in 30,000 steps
)
