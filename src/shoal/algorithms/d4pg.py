"""D4PG: deterministic policy gradients with the distribution of the return, n-step targets and many actors.

"Distributed Distributional Deterministic Policy Gradients", Barth-Maron et al. 2018, https://arxiv.org/abs/1804.08617.
The critic predicts the whole distribution of the return, which gives it more to learn from every step; the policy
follows the gradient of its mean. `critic: quantile` learns quantiles (every predicted one regressed on every target
one, as in https://arxiv.org/abs/1710.10044), `critic: categorical` the paper's probabilities on fixed atoms.

Deviations from the paper:
1. Quantiles by default; the paper's categorical critic needs to be told where the returns lie (`value_min`,
   `value_max`), and learns nothing right if they lie elsewhere.
2. Uniform replay by default: in the paper prioritisation helped little and not always. With
   `replay.selectors=[{type: prioritized}]` a row's priority is the size of the error of its mean, and new rows
   enter at the largest seen.
3. Layers of 256 with ReLU, the action joining before the first; 400 and 300 with normalisation in the paper, the action
   joining after the first.
4. Sizes for one machine: a few actors of several lanes; samples per insert tie them to the learner.
5. Random actions until the learner's first update, that is for `replay.min_size` steps.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from shoal.algorithms import continuous as common
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.continuous import Networks, NoiseConfig
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.algorithms.learner import Loss
from shoal.ops import (
    bootstrap_target,
    categorical_loss,
    categorical_projection,
    quantile_huber_loss,
    quantile_midpoints,
    support,
)
from shoal.types import EnvSpec


class Config(NoiseConfig):
    """Hyper-parameters of D4PG."""

    n_step: common.NStep = 5
    learning_rate: common.CriticLearningRate = 1e-4
    policy_learning_rate: common.PolicyLearningRate = 1e-4
    gradient_clip: common.GradientClip = 40.0
    tau: common.Tau = 1.0
    target_period: common.TargetPeriod = 100
    noise: common.Sigma = 0.3
    critic: Literal["quantile", "categorical"] = Field("quantile", description="What the critic's outputs are.")
    atoms: int = Field(51, ge=2, le=1024, description="Quantiles, or atoms of the categorical critic.")
    kappa: float = Field(1.0, gt=0, description="quantile: where its loss turns from quadratic to linear.")
    value_min: float | None = Field(None, description="categorical: the least discounted return, scaled, there is.")
    value_max: float | None = Field(None, description="categorical: the largest.")

    @model_validator(mode="after")
    def _support_is_wide(self) -> Config:
        low, high = self.value_min, self.value_max
        if self.critic == "categorical" and (low is None or high is None):
            raise ValueError(
                "critic = categorical needs to be told where discounted returns lie, for instance "
                "value_min=-1500 value_max=0 for Pendulum; critic = quantile finds out by itself"
            )
        if low is not None and high is not None and not low < high:
            raise ValueError(f"value_min = {low} must be below value_max = {high}")
        return self


def quantile_critic_loss(networks: Networks, batch: TransitionBatch, *, tau: Tensor, kappa: float) -> Loss:
    """Quantile Huber loss of all pairs, per sample."""
    with torch.no_grad():
        dist_t = networks.target_critic(batch.next_obs, networks.target_policy.from_normalized(batch.next_obs))[0]
        goal = bootstrap_target(dist_t, batch.reward, batch.discount)  # [B, N]
    dist_tm1 = networks.critic(batch.obs, batch.action)[0]  # [B, N]
    error = goal.mean(dim=1) - dist_tm1.mean(dim=1)
    return Loss(quantile_huber_loss(dist_tm1, tau, goal, kappa), error, {"q_mean": dist_tm1.mean()})


def categorical_critic_loss(networks: Networks, batch: TransitionBatch, *, atoms: Tensor) -> Loss:
    """Cross-entropy with the target distribution projected onto the atoms, per sample."""
    with torch.no_grad():
        logits_t = networks.target_critic(batch.next_obs, networks.target_policy.from_normalized(batch.next_obs))[0]
        moved = bootstrap_target(atoms.expand(len(logits_t), -1), batch.reward, batch.discount)  # [B, N]
        goal = categorical_projection(atoms, moved, logits_t.softmax(dim=1))  # [B, N]
    logits_tm1 = networks.critic(batch.obs, batch.action)[0]  # [B, N]
    q_tm1 = (logits_tm1.detach().softmax(dim=1) * atoms).sum(dim=1)
    error = (goal * atoms).sum(dim=1) - q_tm1
    return Loss(categorical_loss(logits_tm1, goal), error, {"q_mean": q_tm1.mean()})


def policy_loss(networks: Networks, batch: TransitionBatch, *, atoms: Tensor | None) -> Loss:
    """The mean of the return's distribution at the policy's actions, to be raised; `atoms` of a categorical critic."""
    out = networks.critic.judge(batch.obs, networks.policy.from_normalized(batch.obs))[0]  # [B, N]
    q = out.mean(dim=1) if atoms is None else (out.softmax(dim=1) * atoms).sum(dim=1)
    return Loss(-q.mean(), None, {})


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    critics: common.LossFunction
    if config.critic == "quantile":
        atoms, tau = None, quantile_midpoints(config.atoms).to(context.device)
        critics = partial(quantile_critic_loss, tau=tau, kappa=config.kappa)
    else:
        assert config.value_min is not None and config.value_max is not None
        atoms = support(config.value_min, config.value_max, config.atoms).to(context.device)
        critics = partial(categorical_critic_loss, atoms=atoms)
    policy, critic = common.policy_network(config, spec), common.critic_network(config, spec, outputs=config.atoms)
    return common.continuous_learner(config, spec, context, policy, critic, critics, partial(policy_loss, atoms=atoms))


ALGORITHM = common.continuous_algorithm(
    "d4pg",
    "distributional critic (quantile or categorical), n-step, Gaussian noise",
    Config,
    common.noisy_policy,
    make_learner,
    min_size=1_000,
    samples_per_insert=128,
    lanes=4,
    suited=common.SUITED_DPG,
)
