"""What the algorithms for continuous actions share: settings, networks, refusals, a learner of critics and a policy.

Critics are one ensemble, and the policy's gradient is not computed for the critics' weights that it flows through.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import nn

from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.exploring_policy import ExploringPolicy, GaussianNoise, as_it_is
from shoal.algorithms.interface import (
    Algorithm,
    AlgorithmConfig,
    Learner,
    LearnerContext,
    NormalizeObservations,
    Policy,
    PolicyContext,
    Width,
)
from shoal.algorithms.kinds import require_kind
from shoal.algorithms.learner import GradientLearner, Loss, Objective
from shoal.algorithms.moments import RunningMoments
from shoal.algorithms.optimizer import TargetNetwork
from shoal.algorithms.own_code import own_torso
from shoal.algorithms.repeated_actions import RepeatExploration
from shoal.errors import ConfigError
from shoal.networks import CriticNetwork, PolicyNetwork, Scratch
from shoal.networks.activations import Activation
from shoal.ops import linear_schedule
from shoal.replay import Column, NStepView
from shoal.types import EnvSpec

# Declared once, with range and meaning; each algorithm gives its own default.
NStep = Annotated[int, Field(ge=1, le=64, description="Steps of reward before the bootstrap.")]
CriticLearningRate = Annotated[float, Field(gt=0, le=1, description="Adam's step size for the critic.")]
PolicyLearningRate = Annotated[float, Field(gt=0, le=1, description="Adam's step size for the policy.")]
Tau = Annotated[float, Field(gt=0, le=1, description="How far targets move towards the networks; 1 copies them.")]
TargetPeriod = Annotated[int, Field(ge=1, description="Updates between two moves of the targets.")]
GradientClip = Annotated[
    float | None, Field(gt=0, description="Largest norm of each network's gradient; null for no limit.")
]
PolicyHidden = Annotated[tuple[Width, ...], Field(min_length=1, description="Layer widths of the policy.")]
CriticHidden = Annotated[tuple[Width, ...], Field(min_length=1, description="Layer widths of each critic.")]
ActivationName = Annotated[Activation, Field(description="After every hidden layer: relu or tanh.")]
Sigma = Annotated[
    float, Field(ge=0, le=10, description="Deviation of the actors' Gaussian noise; half the action range is 1.")
]
Correlation = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="How much of a step's noise is the step's before; 0 for none, 0.9 pushes one way for long.",
    ),
]


class ContinuousConfig(AlgorithmConfig):
    """Hyper-parameters common to the algorithms for continuous actions."""

    n_step: NStep = 1
    learning_rate: CriticLearningRate = 3e-4
    policy_learning_rate: PolicyLearningRate = 3e-4
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    gradient_clip: GradientClip = None
    tau: Tau = 0.005
    target_period: TargetPeriod = 1
    policy_hidden: PolicyHidden = (256, 256)
    critic_hidden: CriticHidden = (256, 256)
    activation: ActivationName = "relu"
    normalize_observations: NormalizeObservations = False
    repeat_exploration: RepeatExploration = False
    reward_scale: float = Field(1.0, gt=0, description="What rewards are multiplied with before they are learned.")
    beta_start: float = Field(0.4, ge=0, le=1, description="Exponent of the importance weights at the start.")
    beta_updates: int = Field(100_000, ge=1, description="Updates until that exponent has grown to 1.")


def require_continuous(spec: EnvSpec, algorithm: str) -> None:
    """Refuses what these algorithms cannot learn: discrete or unbounded actions, images."""
    require_kind(spec, algorithm, "continuous")
    bounds = (*spec.action_low, *spec.action_high)
    if not all(map(math.isfinite, bounds)):
        raise ConfigError(
            f"{algorithm} needs bounded actions; those of {spec.env_id} reach from {min(bounds)} to {max(bounds)}. "
            "Wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction with bounds of your choice."
        )
    if ActionBounds(spec).size == 0:
        raise ConfigError(f"{algorithm} needs an action value to choose; those of {spec.env_id} are fixed, or none.")
    if spec.sees_images:
        raise ConfigError(
            f"{algorithm} learns from vectors; {spec.env_id} shows images of shape {spec.obs_shape}. "
            "Choose impala or impact; or env.wrappers=[FlattenObservation], which makes the image one vector."
        )


class NoiseConfig(ContinuousConfig):
    """Of deterministic policies that explore with Gaussian noise."""

    noise: Sigma = 0.1
    noise_correlation: Correlation = 0.0


def policy_network(config: ContinuousConfig, spec: EnvSpec) -> PolicyNetwork:
    """A deterministic policy: [B, *obs_shape] -> [B, A] in [-1, 1]."""
    size, normalize = ActionBounds(spec).size, config.normalize_observations
    own = own_torso(config, spec)
    sizes = (spec.obs_shape, size, config.policy_hidden)
    return PolicyNetwork(*sizes, config.activation, normalize=normalize, tanh=True, own=own)


def critic_network(config: ContinuousConfig, spec: EnvSpec, members: int = 1, outputs: int = 1) -> CriticNetwork:
    """M critics: [B, F], [B, A] -> [M, B, outputs]."""
    sizes, own = (spec.obs_shape, ActionBounds(spec).size, config.critic_hidden), own_torso(config, spec)
    return CriticNetwork(*sizes, config.activation, members=members, outputs=outputs, own=own)


def noisy_policy(config: NoiseConfig, spec: EnvSpec, context: PolicyContext) -> Policy:
    """A deterministic policy that explores with Gaussian noise, the same in all lanes."""
    noise = GaussianNoise(np.full(context.lanes, config.noise), config.noise_correlation)
    return ExploringPolicy(policy_network(config, spec), noise, as_it_is, spec, context, config.repeat_exploration)


class Networks(NamedTuple):
    """What is learned, and the slower copies that targets are computed with."""

    policy: PolicyNetwork
    critic: CriticNetwork
    target_policy: PolicyNetwork
    """The policy itself where the algorithm has no slower copy of it."""
    target_critic: CriticNetwork


LossFunction = Callable[[Networks, TransitionBatch], Loss]


def continuous_learner(
    config: ContinuousConfig,
    spec: EnvSpec,
    context: LearnerContext,
    policy: PolicyNetwork,
    critic: CriticNetwork,
    critic_loss: LossFunction,
    policy_loss: LossFunction,
    *,
    policy_delay: int = 1,
    policy_target: bool = True,
    policy_gradient_bound: float | None = None,
    extra: nn.Module | None = None,
    module: nn.Module | None = None,
) -> Learner:
    """A learner of critics, and then of a policy.

    Args:
        config: hyper-parameters.
        spec: the environment.
        context: where it works.
        policy: the policy network.
        critic: the critics.
        critic_loss: per sample, with TD errors.
        policy_loss: a scalar.
        policy_delay: updates of the critics for one of the policy.
        policy_target: whether targets use a slower copy of the policy.
        policy_gradient_bound: see `Objective.gradient_bound`.
        extra: more to learn with the policy, by the same optimizer.
        module: what is published, if it is more than the policy.
    """
    device = context.device
    module = (policy if module is None else module).to(device)
    policy, critic = policy.to(device), critic.to(device)
    networks = Networks(policy, critic, copy.deepcopy(policy) if policy_target else policy, copy.deepcopy(critic))
    scratch = Scratch()
    for network in networks:
        network.body.work_in(scratch)
    moments = {} if policy.norm is None else {"moments": RunningMoments(policy.norm.mean).to(device)}
    prepare = PreparedBatches(config, spec, policy, moments.get("moments"), context)

    named: dict[str, nn.Module] = {"policy": module, "critic": critic, "target_critic": networks.target_critic}
    targets = [TargetNetwork(networks.target_critic, critic, config.target_period, config.tau)]
    if policy_target:
        named["target_policy"] = networks.target_policy
        targets.append(TargetNetwork(networks.target_policy, policy, config.target_period, config.tau))
    if extra is not None:
        named["extra"] = extra.to(device)

    objectives = [
        Objective(
            parameters=critic,
            loss=lambda batch: critic_loss(networks, batch),
            learning_rate=config.schedule(config.learning_rate),
            epsilon=config.adam_epsilon,
            gradient_clip=config.gradient_clip,
            saved_as="critic_optimizer",
        ),
        Objective(
            parameters=policy if extra is None else nn.ModuleList([policy, extra]),
            loss=lambda batch: policy_loss(networks, batch),
            learning_rate=config.schedule(config.policy_learning_rate),
            epsilon=config.adam_epsilon,
            gradient_clip=config.gradient_clip,
            gradient_bound=policy_gradient_bound,
            period=policy_delay,
            name="policy_",
            saved_as="policy_optimizer",
        ),
    ]
    squashed = ActionBounds(spec).from_env(device)
    return GradientLearner(
        {**named, **moments},
        objectives,
        targets,
        context,
        beta=linear_schedule(config.beta_start, 1.0, config.beta_updates),
        prepare=prepare,
        published_whole=False,
        watched={
            "policy": lambda obs, _: policy.body.plain(policy.features(policy.normalized(obs))),
            "critic": lambda obs, action: critic.body.plain(critic.features(policy.normalized(obs)), squashed(action)),
        },
    )


class PreparedBatches:
    """Normalised observations, actions in [-1, 1], scaled rewards."""

    def __init__(
        self,
        config: ContinuousConfig,
        spec: EnvSpec,
        policy: PolicyNetwork,
        moments: RunningMoments | None,
        context: LearnerContext,
    ) -> None:
        self._scale, self._policy, self._moments = config.reward_scale, policy, moments
        self._squashed, self._exchange = ActionBounds(spec).from_env(context.device), context.exchange

    def __call__(self, batch: TransitionBatch | None) -> TransitionBatch | None:
        policy, kept = self._policy, self._moments
        if kept is not None and policy.norm is not None:
            kept.include(None if batch is None else batch.obs, policy.norm, self._exchange)
        if batch is None:
            return None
        reward = batch.reward if self._scale == 1.0 else batch.reward * self._scale
        with torch.no_grad():
            obs, next_obs = policy.normalized(batch.obs), policy.normalized(batch.next_obs)
            return batch._replace(obs=obs, action=self._squashed(batch.action), reward=reward, next_obs=next_obs)

    def weights_replaced(self) -> None:
        """The statistics are now those that came with the weights."""
        norm = self._policy.norm
        if self._moments is not None and norm is not None and self._policy.learned:
            self._moments.adopt(norm)


SUITED_DPG: Mapping[str, Any] = {
    "learning_rate": 1e-3,
    "policy_learning_rate": 3e-4,
    "n_step": 3,
    "tau": 0.005,
    "target_period": 1,
    "activation": "relu",
    "reward_scale": 0.1,
    "policy_hidden": [256, 256],
    "critic_hidden": [256, 256],
}
"""Of the algorithms with one critic: targets that move a little at every update, and no far n-step returns."""


def continuous_algorithm(
    name: str,
    summary: str,
    config: type[ContinuousConfig],
    make_policy: Callable[[Any, EnvSpec, PolicyContext], Policy],
    make_learner: Callable[[Any, EnvSpec, LearnerContext], Learner],
    *,
    min_size: int,
    samples_per_insert: float,
    lanes: int,
    columns: tuple[Column, ...] = (),
    selector: Mapping[str, Any] | None = None,
    suited: Mapping[str, Any] | None = None,
) -> Algorithm:
    """An entry of the registry: what the algorithms differ in.

    Args:
        name: as on the command line.
        summary: one line.
        config: its hyper-parameters.
        make_policy: see `Algorithm`.
        make_learner: see `Algorithm`.
        min_size: steps collected before the first update.
        samples_per_insert: draws per step.
        lanes: environments per actor.
        columns: what its policy records.
        selector: how it draws, if not uniformly.
        suited: hyper-parameters that learn on most environments, where they are not the paper's.
    """
    replay: dict[str, Any] = {"capacity": 1_000_000, "min_size": min_size, "samples_per_insert": samples_per_insert}
    replay["selectors"] = [selector or {"type": "uniform"}]
    return Algorithm(
        name=name,
        summary=f"{summary}; continuous actions",
        config=config,
        check=lambda spec: require_continuous(spec, name),
        columns=lambda config, spec: columns,
        make_view=lambda config, schema: NStepView(schema, config.n_step, config.gamma),
        make_policy=make_policy,
        make_learner=make_learner,
        actions="continuous",
        suited=lambda spec: {
            "algorithm": {"repeat_exploration": True, **(suited or {})},
            "learner": {"publish_every": 4},
            "replay": {"min_size": 1_000},
        },
        defaults={"learner": {"batch_size": 256}, "replay": replay, "env": {"lanes": lanes}},
    )
