"""What IMPALA, IMPACT, PPO and A3C share: settings, the network, a policy that records how it chose, and their wiring.

What a policy records, beside the stream: `behaviour`, the parameters of the distribution it drew from (V-trace and
CLEAR compare distributions, not only one probability); `value` for CLEAR; `state` of the LSTM before each step;
`raw_action` where actions are continuous, before they are cut to the bounds; `feature` for selectors that compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.batches import SequenceBatch
from shoal.algorithms.interface import (
    Algorithm,
    AlgorithmConfig,
    CenterImages,
    Decision,
    Learner,
    LearnerContext,
    LearningRate,
    NormalizeObservations,
    NormalizeValues,
    Outcome,
    Policy,
    PolicyContext,
    Width,
)
from shoal.algorithms.kinds import refuse_priorities
from shoal.algorithms.learner import Division, GradientLearner, Loss, Objective
from shoal.algorithms.moments import Statistics
from shoal.algorithms.optimizer import TargetNetwork
from shoal.algorithms.own_code import own_torso
from shoal.algorithms.repeated_actions import HeldNoise, RepeatExploration
from shoal.errors import ConfigError
from shoal.networks import ActorCritic, center_images
from shoal.ops import ActionDistribution, Categorical, DiagonalGaussian, MultiCategorical
from shoal.replay import Column, Schema, SequenceView
from shoal.types import Array, EnvSpec

Total = Callable[[Tensor], Tensor]
"""Sums a tensor over all learners."""


class ActorCriticConfig(AlgorithmConfig):
    """Hyper-parameters common to IMPALA and its kin."""

    unroll: int = Field(20, ge=1, le=1024, description="Steps of one sequence.")
    burn_in: int = Field(0, ge=0, le=1024, description="Steps before them that only warm up the LSTM.")
    learning_rate: LearningRate = 1e-3
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="What turns gradients into steps.")
    optimizer_epsilon: float = Field(1e-5, gt=0, description="The optimizer's epsilon.")
    gradient_clip: float = Field(10.0, gt=0, description="Largest norm of the gradient.")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy, which keeps the policy curious.")
    value_cost: float = Field(0.5, ge=0, description="Weight of the value loss.")
    hidden: tuple[Width, ...] = Field((64, 64), description="Layer widths for vector observations.")
    share_torso: bool = Field(
        False, description="Policy and value read one torso (vectors; images and LSTMs always do)."
    )
    torso: Literal["small", "shallow", "deep"] = Field(
        "shallow", description="For images: A3C's network, Nature's, or IMPALA's residual one."
    )
    image_hidden: int = Field(512, ge=1, description="For images: width of the layer after the convolutions.")
    center_images: CenterImages = False
    normalize_observations: NormalizeObservations = False
    normalize_values: NormalizeValues = False
    repeat_exploration: RepeatExploration = False
    lstm: int = Field(0, ge=0, le=4096, description="Width of the LSTM; 0 for none.")
    initial_log_std: float = Field(-0.5, ge=-5, le=2, description="Continuous actions: log of the first deviation.")

    @model_validator(mode="after")
    def _burn_in_warms_something(self) -> Self:
        if self.burn_in and not self.lstm:
            raise ValueError(f"burn_in = {self.burn_in} warms up an LSTM, and there is none: set lstm, or burn_in to 0")
        return self


def make_distribution(spec: EnvSpec) -> ActionDistribution:
    """What the policy's output means."""
    if spec.action_nvec:
        return MultiCategorical(spec.action_nvec)
    return Categorical(spec.num_actions) if spec.num_actions else DiagonalGaussian(int(np.prod(spec.action_shape)))


def make_network(config: ActorCriticConfig, spec: EnvSpec) -> ActorCritic:
    """Policy and value of an observation."""
    network = ActorCritic(
        spec.obs_shape,
        spec.obs_dtype,
        make_distribution(spec).parameters,
        gaussian=spec.continuous,
        hidden=config.hidden,
        torso=config.torso,
        image_hidden=config.image_hidden,
        lstm=config.lstm,
        share_torso=config.share_torso,
        initial_log_std=config.initial_log_std,
        normalize_observations=config.normalize_observations,
        normalize_values=config.normalize_values,
        parts=spec.inputs,
        own=own_torso(config, spec),
    )
    return center_images(network) if config.center_images else network


def columns(config: ActorCriticConfig, spec: EnvSpec, *, value: bool = False) -> tuple[Column, ...]:
    """What the policy records beside the stream."""
    if config.repeat_exploration and spec.continuous:
        wrong = f"repeat_exploration = true is for discrete actions, and those of {spec.env_id} are continuous"
        raise ConfigError(f"algorithm.{wrong}: set it to false.")
    recorded = [Column("behaviour", "float32", (make_distribution(spec).parameters,))]
    if value:
        recorded.append(Column("value", "float32"))
    if config.lstm:
        recorded.append(Column("state", "float32", (2 * config.lstm,)))
    if spec.continuous:
        recorded.append(Column("raw_action", "float32", (int(np.prod(spec.action_shape)),)))
    return tuple(recorded)


def feature_column(config: ActorCriticConfig, spec: EnvSpec) -> Column:
    """What selectors that compare features read. Half precision: distances between rows need no more."""
    with torch.device("cpu" if config.network else "meta"):  # a torso of the user's may need real numbers
        return Column("feature", "float16", (make_network(config, spec).embedding,))


def make_view(config: ActorCriticConfig, schema: Schema) -> SequenceView:
    """Sequences, with what the policy recorded."""
    extras = tuple(name for name in ("behaviour", "value", "raw_action") if name in schema)
    return SequenceView(schema, config.unroll, config.burn_in, extras, ("state",) if "state" in schema else ())


def sequence_learner(
    config: ActorCriticConfig,
    context: LearnerContext,
    network: ActorCritic,
    loss: Callable[[Any], Loss],
    targets: Mapping[str, nn.Module] | None = None,
    follows: tuple[TargetNetwork, ...] = (),
    divide: Callable[[SequenceBatch | None, int], Division] | None = None,
    statistics: Statistics | None = None,
    sums: int = 0,
) -> GradientLearner:
    """A learner of one network; `targets` are saved beside it, by name; the rest is GradientLearner's, Objective's."""
    objective = Objective(
        parameters=network,
        loss=loss,
        learning_rate=config.schedule(config.learning_rate),
        epsilon=config.optimizer_epsilon,
        gradient_clip=config.gradient_clip,
        optimizer=config.optimizer,
        sums=sums,
    )
    statistics = statistics or Statistics(network, context)
    saved = {"policy": network, **(targets or {}), **statistics.saved}
    watched = {"network": lambda obs, _: network.embed(obs)}
    return GradientLearner(saved, [objective], follows, context, prepare=statistics, divide=divide, watched=watched)


TABULAR_ENTROPY = 0.05
"""The entropy's weight where states are told apart by zeros and ones. Each of them has logits nearly of its own, which
become sure of the first actions that succeeded: on a slippery lake three of five seeds of PPO never got away from them.
"""


def suited_settings(
    spec: EnvSpec,
    own: Mapping[str, Any],
    selectors: Sequence[Mapping[str, Any]],
    image_selectors: Sequence[Mapping[str, Any]],
    batch_size: int,
) -> Mapping[str, Any]:
    """What learns on most environments, for both algorithms.

    Args:
        spec: the environment.
        own: settings that only one of them has.
        selectors: ways to draw. With vectors an update takes milliseconds: each step is used eight times.
        image_selectors: the same for images.
        batch_size: sequences per update, for vectors.
    """
    if spec.sees_images:
        algorithm = {"torso": "small", "image_hidden": 256, "learning_rate": 6e-4, "entropy_cost": 0.003}
        return {
            "algorithm": {**algorithm, "center_images": True, **own},
            "learner": {"batch_size": 8, "publish_every": 4},
            "replay": {"selectors": list(image_selectors)},
            "env": {"lanes": 16},
        }
    algorithm = {
        "unroll": 32,
        "learning_rate": 5e-4,
        "normalize_values": True,
        "repeat_exploration": not spec.continuous,
        "normalize_observations": not spec.unit_observations,
        **({"entropy_cost": TABULAR_ENTROPY} if spec.tabular else {}),
    }
    return {
        "algorithm": {**algorithm, **own},
        "learner": {"batch_size": batch_size, "prefetch": 0},
        "replay": {"selectors": list(selectors)},
    }


def sequence_algorithm(
    name: str,
    summary: str,
    config: type[ActorCriticConfig],
    make_learner: Callable[[Any, EnvSpec, LearnerContext], Learner],
    queue: Mapping[str, Any],
    suited: Callable[[EnvSpec], Mapping[str, Any]],
    batch: Mapping[str, Any] | None = None,
    check_replay: Callable[[Any, tuple[str, ...]], None] = refuse_priorities,
    records_value: Callable[[Any], bool] = lambda config: False,
) -> Algorithm:
    """An entry of the registry: what the algorithms differ in.

    Args:
        name: as on the command line.
        summary: one line.
        config: its hyper-parameters.
        make_learner: see `Algorithm`.
        queue: the selector that fresh sequences come from.
        suited: see `Algorithm`.
        batch: settings of the learner that concern its batches.
        check_replay: see `Algorithm`.
        records_value: whether the policy records the value of each observation.
    """

    def make_policy(config: ActorCriticConfig, spec: EnvSpec, context: PolicyContext) -> Policy:
        return ActorCriticPolicy(config, spec, context, value=records_value(config))

    return Algorithm(
        name=name,
        summary=summary,
        config=config,
        check=lambda spec: None,  # any actions
        check_replay=check_replay,
        columns=lambda config, spec: columns(config, spec, value=records_value(config)),
        make_view=make_view,
        make_policy=make_policy,
        make_learner=make_learner,
        feature_column=feature_column,
        steps_per_draw=lambda config: config.unroll,
        served=True,
        synchronous=True,
        suited=suited,
        defaults={
            "actor": {"weights_period": 1},
            "learner": {"publish_every": 1, **(batch or {"batch_size": 32, "prefetch": 2})},
            "replay": {"selectors": [queue], "capacity": 100_000, "min_size": 1, "samples_per_insert": None},
        },
    )


class ActorCriticPolicy:
    """Draws from the network's distribution and records it."""

    def __init__(
        self, config: ActorCriticConfig, spec: EnvSpec, context: PolicyContext, *, value: bool = False
    ) -> None:
        """Args:
        config: hyper-parameters.
        spec: the environment.
        context: which actor this is.
        value: whether to record the value too.
        """
        self.module = make_network(config, spec).eval()
        self._distribution = make_distribution(spec)
        self._bounds = ActionBounds(spec, drop_fixed=False) if spec.continuous else None
        self._value, self._feature = value, context.record_features
        self._device = torch.device("cpu")
        self._generator = torch.Generator().manual_seed(context.seed)
        self._recorded: dict[str, Array] = {}
        self._held: HeldNoise | None = None
        if config.repeat_exploration:
            self._held = HeldNoise(context.lanes, self._distribution.parameters, context.seed)

    def to(self, device: torch.device) -> None:
        """Computes there from now on; arrays stay arrays. For the inference server."""
        self.module.to(device)
        self._device = device
        self._generator = torch.Generator(device).manual_seed(self._generator.initial_seed())

    def initial_state(self, lanes: int) -> Any:
        """Zeros for the LSTM."""
        size = self.module.state_size
        zeros = torch.zeros(lanes, size, device=self._device)
        return (zeros, zeros.clone()) if size else ()

    @torch.inference_mode()
    def features(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F] what this network makes of them."""
        return self.module.embed(torch.from_numpy(obs).to(self._device)).float().cpu().numpy()

    @torch.inference_mode()
    def act(
        self,
        obs: Array,
        state: Any,
        first: npt.NDArray[np.bool_],
        explore: bool,
        lanes: npt.NDArray[np.int64] | None = None,
    ) -> Decision:
        network, tensor = self.module, torch.from_numpy(obs).to(self._device, non_blocking=True)
        embedded = network.embed(tensor)
        recorded: dict[str, Array] = {}
        if self._feature:
            recorded["feature"] = embedded.to(torch.float16).cpu().numpy()
        if state:
            if first.any():
                alive = torch.from_numpy(~first).to(self._device).float().unsqueeze(1)
                state = (state[0] * alive, state[1] * alive)
            recorded["state"] = torch.cat(state, dim=1).cpu().numpy()
            state = network.recur(embedded, (state[0].to(embedded.dtype), state[1].to(embedded.dtype)))
            embedded, state = state[0], (state[0].float(), state[1].float())
        params = network.policy(embedded).float()
        recorded["behaviour"] = params.cpu().numpy()
        if self._value:
            recorded["value"] = network.value(tensor, embedded).float().cpu().numpy()
        if explore and self._held is not None:
            drawn = self._distribution.mode(params + torch.from_numpy(self._held(first, lanes)).to(self._device))
        else:
            drawn = self._distribution.sample(params, self._generator) if explore else self._distribution.mode(params)
        action: Array = drawn.cpu().numpy()
        if self._bounds is not None:
            recorded["raw_action"] = action
            action = self._bounds.to_env(action)
        self._recorded = recorded
        return Decision(action, state)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        return self._recorded

    def reset(self) -> None:
        """Nothing is carried over beside the state."""
