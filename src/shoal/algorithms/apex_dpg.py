"""Ape-X DPG: deterministic policy gradients, fed by many actors through prioritized replay.

"Distributed Prioritized Experience Replay", Horgan et al. 2018, https://arxiv.org/abs/1803.00933, section 4.2 and
appendix D: a critic learned from n-step returns, a policy that follows its gradient (DPG, https://arxiv.org/abs/1509.02971),
and actors that explore each with its own noise and compute initial priorities: an actor holds the critic too, and a new
row enters the replay with the size of its TD error as priority.

Deviations from the paper:
1. A ladder of noise over lanes, in equal ratios from `noise_max` to `noise_min`, as Ape-X DQN has of epsilons; the
   paper names none for DPG.
2. The importance exponent grows from 0.4 to 1 instead of staying; `beta_updates` sets how fast.
3. Old steps leave when the ring is full; the paper evicts by priority (exponent -0.4) in a sweep every 100 updates.
4. A samples-per-insert limit ties learner and actors together; the paper lets both run free.
5. Activations after both layers; the action joins the observation before the first one.
6. Sizes for one machine: a few actors of several lanes.
7. Random actions until the learner's first update, that is for `replay.min_size` steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import nn

from shoal.algorithms import continuous as common
from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.continuous import ContinuousConfig, Networks
from shoal.algorithms.exploring_policy import ExploringPolicy, GaussianNoise, as_it_is
from shoal.algorithms.initial_priorities import InitialPriorities
from shoal.algorithms.interface import Decision, Learner, LearnerContext, Outcome, PolicyContext
from shoal.algorithms.learner import Loss
from shoal.ops import bootstrap_target, sigma_ladder
from shoal.replay import Column
from shoal.types import Array, EnvSpec


class Config(ContinuousConfig):
    """Hyper-parameters of Ape-X DPG."""

    n_step: common.NStep = 5
    learning_rate: common.CriticLearningRate = 1e-4
    policy_learning_rate: common.PolicyLearningRate = 1e-4
    gradient_clip: common.GradientClip = 40.0
    tau: common.Tau = 1.0
    target_period: common.TargetPeriod = 100
    policy_hidden: common.PolicyHidden = (300, 200)
    critic_hidden: common.CriticHidden = (400, 300)
    activation: common.ActivationName = "tanh"
    noise_max: float = Field(0.8, gt=0, le=10, description="Noise of the boldest lane; half the action range is 1.")
    noise_min: float = Field(0.05, gt=0, le=10, description="Noise of the most careful lane; at most `noise_max`.")
    noise_correlation: common.Correlation = 0.0

    @model_validator(mode="after")
    def _ladder_falls(self) -> Config:
        if self.noise_min > self.noise_max:
            raise ValueError(f"noise_min = {self.noise_min} must not be above noise_max = {self.noise_max}")
        return self


class Module(nn.Module):
    """What actors get: the policy, and the critic that its initial priorities come from."""

    def __init__(self, config: Config, spec: EnvSpec) -> None:
        super().__init__()
        self.policy, self.critic = common.policy_network(config, spec), common.critic_network(config, spec)


class PricingPolicy:
    """An exploring policy that computes initial priorities of its own steps."""

    def __init__(self, config: Config, spec: EnvSpec, context: PolicyContext) -> None:
        self.module, self._bounds, self._scale = Module(config, spec).eval(), ActionBounds(spec), config.reward_scale
        ladder = sigma_ladder(context.actors * context.lanes, config.noise_max, config.noise_min)
        # Each actor gets its share of bold and careful lanes.
        noise = GaussianNoise(ladder[context.index :: context.actors], config.noise_correlation)
        repeat = config.repeat_exploration
        self._inner = ExploringPolicy(self.module.policy, noise, as_it_is, spec, context, repeat)
        self._priorities = InitialPriorities(context.lanes, config.n_step, config.gamma)
        self._taken: Array = np.zeros(context.lanes, np.float32)
        self._best: Array = np.zeros(context.lanes, np.float32)

    def initial_state(self, lanes: int) -> Any:
        return ()

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        policy = self.module.policy
        seen = policy.normalized(torch.from_numpy(obs))
        best = policy.from_normalized(seen)  # [N, A]
        squashed = self._inner.squashed(best, explore)
        if explore:
            taken = torch.from_numpy(squashed).to(best.dtype)
            both = self.module.critic(seen.repeat(2, 1), torch.cat((taken, best)))  # [1, 2N, 1]
            self._taken, self._best = both.reshape(2, len(obs)).float().numpy()
        return Decision(self._bounds.to_env(squashed), state)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        scaled = outcome._replace(reward=outcome.reward * np.float32(self._scale))
        return {"priority": self._priorities.push(self._taken, self._best, scaled)}

    def reset(self) -> None:
        self._priorities.reset()


def critic_loss(networks: Networks, batch: TransitionBatch) -> Loss:
    """Half the squared error of the n-step target, per sample."""
    with torch.no_grad():
        q_t = networks.target_critic(batch.next_obs, networks.target_policy.from_normalized(batch.next_obs))
        goal = bootstrap_target(q_t[0, :, 0], batch.reward, batch.discount)
    q_tm1 = networks.critic(batch.obs, batch.action)[0, :, 0]  # [B]
    error = goal - q_tm1
    return Loss(0.5 * error.square(), error, {"q_mean": q_tm1.mean()})


def policy_loss(networks: Networks, batch: TransitionBatch) -> Loss:
    """Minus the critic's value of the policy's actions."""
    return Loss(-networks.critic.judge(batch.obs, networks.policy.from_normalized(batch.obs)).mean(), None, {})


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    module = Module(config, spec)
    parts = (module.policy, module.critic, critic_loss, policy_loss)
    return common.continuous_learner(config, spec, context, *parts, policy_gradient_bound=1.0, module=module)


ALGORITHM = common.continuous_algorithm(
    "apex-dpg",
    "DPG with n-step returns, prioritized replay and a ladder of noise",
    Config,
    PricingPolicy,
    make_learner,
    min_size=1_000,
    samples_per_insert=128,
    lanes=4,
    columns=(Column("priority", "float32"),),
    selector={"type": "prioritized", "alpha": 0.6},
    suited=common.SUITED_DPG,
)
