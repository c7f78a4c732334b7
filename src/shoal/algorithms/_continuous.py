"""What the algorithms for continuous actions share on the actor's side: settings, bounds, and policies.

Networks and losses speak of actions in [-1, 1]; `ActionBounds` is the only place that knows what the environment calls
them. An actor's action is clipped before it is handed out, so what is stored is what the environment took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms.interface import (
    Algorithm,
    AlgorithmConfig,
    Decision,
    Learner,
    LearnerContext,
    Outcome,
    Policy,
    PolicyContext,
    Width,
)
from shoal.algorithms.kinds import require_kind
from shoal.errors import ConfigError
from shoal.networks import PolicyNetwork
from shoal.networks.activations import Activation
from shoal.networks.torso import image_layout
from shoal.replay import Column, NStepView, Schema, View
from shoal.types import Array, EnvSpec

# Declared once, with range and meaning; each algorithm gives its own default.
NStep = Annotated[int, Field(ge=1, le=64, description="Steps of reward before the bootstrap.")]
LearningRate = Annotated[float, Field(gt=0, le=1, description="Adam's step size for the critic.")]
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

    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    n_step: NStep = 1
    learning_rate: LearningRate = 3e-4
    policy_learning_rate: PolicyLearningRate = 3e-4
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    gradient_clip: GradientClip = None
    tau: Tau = 0.005
    target_period: TargetPeriod = 1
    policy_hidden: PolicyHidden = (256, 256)
    critic_hidden: CriticHidden = (256, 256)
    activation: ActivationName = "relu"
    normalize_observations: bool = Field(
        False, description="Networks see observations with mean 0 and deviation 1, by what the learner has drawn."
    )
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
    if image_layout(spec.obs_shape, spec.obs_dtype) is not None:
        raise ConfigError(
            f"{algorithm} learns from vectors; {spec.env_id} shows images of shape {spec.obs_shape}. "
            "Choose an environment that observes its state as numbers."
        )


def no_columns(config: ContinuousConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """The stream is all that is needed."""
    return ()


def make_view(config: ContinuousConfig, schema: Schema) -> View:
    """n-step transitions."""
    return NStepView(schema, config.n_step, config.gamma)


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
    columns: Callable[[Any, EnvSpec], tuple[Column, ...]] = no_columns,
    selector: Mapping[str, Any] | None = None,
) -> Algorithm:
    """An entry of the registry: what the family's algorithms have in common, and what they differ in.

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
    """
    replay: dict[str, Any] = {"capacity": 1_000_000, "min_size": min_size, "samples_per_insert": samples_per_insert}
    replay["selectors"] = [selector or {"type": "uniform"}]
    return Algorithm(
        name=name,
        summary=f"{summary}; continuous actions",
        config=config,
        check=lambda spec: require_continuous(spec, name),
        columns=columns,
        make_view=make_view,
        make_policy=make_policy,
        make_learner=make_learner,
        compiles=True,
        actions="continuous",
        defaults={"learner": {"batch_size": 256}, "replay": replay, "env": {"lanes": lanes}},
    )


class ActionBounds:
    """Between [-1, 1] and the environment's own range, per dimension.

    Networks are not told of a dimension that has one value only: the replay could not teach a critic its slope there,
    and a policy would climb it for ever.
    """

    def __init__(self, spec: EnvSpec) -> None:
        low, high = np.array(spec.action_low, np.float64), np.array(spec.action_high, np.float64)
        self._low, self._high, self._shape = low.astype(np.float32), high.astype(np.float32), spec.action_shape
        wide = self._low < self._high  # as float32: that is what actions are
        self._free = slice(None) if wide.all() else np.flatnonzero(wide)
        self.size = len(low[self._free])
        """Values that are to be chosen."""
        self._center, self._half = (high / 2 + low / 2), (high / 2 - low / 2)[self._free]

    def to_env(self, squashed: Array) -> npt.NDArray[np.float32]:
        """[N, size] in [-1, 1] -> [N, *action_shape], never beyond a bound, also not by rounding."""
        action = np.tile(self._center, (len(squashed), 1))
        action[:, self._free] += self._half * squashed
        clipped: npt.NDArray[np.float32] = np.minimum(np.maximum(action.astype(np.float32), self._low), self._high)
        return clipped.reshape(len(clipped), *self._shape)

    def from_env(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """A function for batches on this device: [B, *action_shape] -> [B, size] in [-1, 1]."""
        if (self._low == -1).all() and (self._high == 1).all():
            return lambda action: action.reshape(action.shape[0], -1)
        center, half = (torch.from_numpy(x).float().to(device) for x in (self._center[self._free], self._half))
        free = self._free if isinstance(self._free, slice) else torch.from_numpy(self._free).to(device)
        return lambda action: (action.reshape(action.shape[0], -1)[:, free] - center) / half


Act = Callable[[Array, np.random.Generator], Array]
"""From a network's output [N, outputs] to actions [N, A] in [-1, 1]."""


class GaussianNoise:
    """Adds noise of each lane's own deviation to a deterministic policy's action.

    With `correlation` the noise of a step is partly that of the step before, at the same deviation: what the
    Ornstein-Uhlenbeck process of https://arxiv.org/abs/1509.02971 is for. Heavy things do not notice a push that is
    taken back at once.
    """

    def __init__(self, sigma: Array, correlation: float = 0.0) -> None:
        """`sigma` is [N]."""
        self._spread = sigma.astype(np.float32)[:, None]
        self._kept, self._new = np.float32(correlation), np.float32(math.sqrt(1.0 - correlation**2))
        self._noise: Array | None = None

    def __call__(self, out: Array, rng: np.random.Generator) -> Array:
        """[N, A] -> [N, A], both in [-1, 1]."""
        fresh = rng.standard_normal(out.shape, np.float32)
        if self._noise is None or not self._kept:
            self._noise = fresh
        else:
            self._noise = self._kept * self._noise + self._new * fresh
        noisy: Array = np.clip(out + self._spread * self._noise, -1.0, 1.0)
        return noisy


def as_it_is(out: Array, rng: np.random.Generator) -> Array:
    """A deterministic policy's action."""
    return out


class ExploringPolicy:
    """Acts with a policy network: exploring as its algorithm does, uniformly until something was learned."""

    def __init__(self, network: PolicyNetwork, explore: Act, greedy: Act, spec: EnvSpec, seat: PolicyContext) -> None:
        """Args:
        network: maps observations to what `explore` and `greedy` turn into actions.
        explore: how an actor acts.
        greedy: how the evaluator does.
        spec: the environment.
        seat: which actor this is.
        """
        self._network, self._explore, self._greedy = network.eval(), explore, greedy
        self._bounds, self._rng = ActionBounds(spec), np.random.default_rng(seat.seed)

    @property
    def module(self) -> nn.Module:
        """The policy network."""
        return self._network

    def initial_state(self, lanes: int) -> Any:
        """No recurrence."""
        return ()

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        """See `Policy.act`."""
        return Decision(self._bounds.to_env(self.squashed(self._network(torch.from_numpy(obs)), explore)), state)

    def squashed(self, out: Tensor, explore: bool) -> Array:
        """Actions in [-1, 1] from the network's output."""
        numbers = out.float().numpy()
        if not explore:
            return self._greedy(numbers, self._rng)
        if not self._network.learned:
            return self._rng.uniform(-1.0, 1.0, (len(numbers), self._bounds.size))
        return self._explore(numbers, self._rng)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        """Nothing beside the stream."""
        return {}

    def reset(self) -> None:
        """See `Policy.reset`."""
