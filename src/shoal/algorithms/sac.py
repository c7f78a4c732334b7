"""SAC: as much return as possible while acting as randomly as possible.

"Soft Actor-Critic Algorithms and Applications", Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905. The policy is a
Gaussian squeezed into the bounds by tanh; it maximises return plus temperature times entropy, which explores by itself
and keeps the policy from settling on a narrow peak of the critics. The temperature is learned so that the entropy stays
at a target. Two critics are learned, and targets use their minimum, as in TD3.

Deviations from the paper:
1. The temperature's gradient is that of its logarithm, as in the authors' code.
2. The policy minimises with the critics as they are after this update, not before it, as in most later code.
3. Many actors collect; `replay.samples_per_insert` keeps the paper's one update per step whatever their number.
4. Random actions until the learner's first update, that is for `replay.min_size` steps.
5. With `n_step` above 1 (the paper has 1) the entropy of the steps in between is not counted.
6. The temperature is learned with the policy: the same Adam and step size, and one norm if gradients are clipped.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms import continuous as common
from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.continuous import ContinuousConfig, Networks
from shoal.algorithms.exploring_policy import ExploringPolicy
from shoal.algorithms.interface import Learner, LearnerContext, Policy, PolicyContext
from shoal.algorithms.learner import Loss
from shoal.algorithms.own_code import own_torso
from shoal.networks import PolicyNetwork, mean_and_log_std
from shoal.networks.continuous import LOG_STD_MAX, LOG_STD_MIN
from shoal.ops import soft_q_target, squashed_gaussian, temperature_loss
from shoal.types import Array, EnvSpec


class Config(ContinuousConfig):
    """Hyper-parameters of SAC."""

    initial_temperature: float = Field(1.0, gt=0, description="What a unit of entropy is worth at the start.")
    learn_temperature: bool = Field(True, description="Keep the entropy at its target; false: the temperature stays.")
    target_entropy: float | None = Field(
        None, description="Entropy of actions in [-1, 1] to keep; null: minus the number of action values."
    )


class Temperature(nn.Module):
    """The logarithm of the temperature, learned with the policy."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))


def make_network(config: Config, spec: EnvSpec) -> PolicyNetwork:
    """Mean and log deviation of the action before it is squashed: [B, *obs_shape] -> [B, 2A]."""
    sizes, normalize = (spec.obs_shape, 2 * ActionBounds(spec).size), config.normalize_observations
    own = own_torso(config, spec)
    return PolicyNetwork(*sizes, config.policy_hidden, config.activation, normalize=normalize, tanh=False, own=own)


def _drawn(out: Array, rng: np.random.Generator) -> Array:
    mean, log_std = np.split(out, 2, axis=1)
    noise = rng.standard_normal(mean.shape, np.float32)
    action: Array = np.tanh(mean + np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)) * noise)
    return action


def _most_likely(out: Array, rng: np.random.Generator) -> Array:
    action: Array = np.tanh(np.split(out, 2, axis=1)[0])
    return action


def critic_loss(networks: Networks, batch: TransitionBatch, noise: Tensor, *, temperature: Tensor) -> Loss:
    """Half the squared errors of both critics against the soft target, per sample; `noise` [B, A] draws the action."""
    with torch.no_grad():
        drawn = squashed_gaussian(*mean_and_log_std(networks.policy.from_normalized(batch.next_obs)), noise)
        q_t = networks.target_critic(batch.next_obs, drawn.action).squeeze(2)  # [2, B]
        goal = soft_q_target(q_t, drawn.log_prob, temperature, batch.reward, batch.discount)
    q_tm1 = networks.critic(batch.obs, batch.action).squeeze(2)  # [2, B]
    error = goal - q_tm1
    return Loss(0.5 * error.square().sum(dim=0), error.mean(dim=0), {"q_mean": q_tm1.mean()})


def policy_loss(
    networks: Networks, batch: TransitionBatch, noise: Tensor, *, log_temperature: Tensor, target_entropy: float | None
) -> Loss:
    """Temperature x log-probability, minus the smaller value; plus the temperature's own loss, if it is learned."""
    drawn = squashed_gaussian(*mean_and_log_std(networks.policy.from_normalized(batch.obs)), noise)
    temperature = log_temperature.detach().exp()
    # Not amin: it divides the gradient among equal values, and its backward pass takes several times as long.
    q = networks.critic.judge(batch.obs, drawn.action).squeeze(2).min(dim=0).values  # [B]
    loss = (temperature * drawn.log_prob - q).mean()
    metrics = {"temperature": temperature, "entropy": -drawn.log_prob.mean()}
    if target_entropy is not None:
        loss = loss + temperature_loss(log_temperature, drawn.log_prob, target_entropy)
    return Loss(loss, None, metrics)


def make_policy(config: Config, spec: EnvSpec, context: PolicyContext) -> Policy:
    return ExploringPolicy(make_network(config, spec), _drawn, _most_likely, spec, context, config.repeat_exploration)


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    temperature = Temperature(config.initial_temperature).to(context.device)
    entropy: float | None = None
    if config.learn_temperature:
        entropy = -float(ActionBounds(spec).size) if config.target_entropy is None else config.target_entropy

    def critics(networks: Networks, batch: TransitionBatch) -> Loss:
        return critic_loss(networks, batch, torch.randn_like(batch.action), temperature=temperature.log.detach().exp())

    def policy(networks: Networks, batch: TransitionBatch) -> Loss:
        noise = torch.randn_like(batch.action)
        return policy_loss(networks, batch, noise, log_temperature=temperature.log, target_entropy=entropy)

    parts = (make_network(config, spec), common.critic_network(config, spec, members=2), critics, policy)
    extra = temperature if config.learn_temperature else None
    return common.continuous_learner(config, spec, context, *parts, policy_target=False, extra=extra)


ALGORITHM = common.continuous_algorithm(
    "sac",
    "soft actor-critic: twin critics, squashed Gaussian policy, learned temperature",
    Config,
    make_policy,
    make_learner,
    min_size=5_000,
    samples_per_insert=256,  # in batches of 256: one update per step
    lanes=1,
)
