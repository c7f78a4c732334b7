"""Ape-X DQN: many actors, one learner, prioritized replay.

"Distributed Prioritized Experience Replay", Horgan et al. 2018, https://arxiv.org/abs/1803.00933: dueling double DQN
with n-step returns. Each lane of each actor explores with its own epsilon; actors compute initial priorities from the
action values they acted with, so no new step has to be scored twice and none enters at a made-up priority.

Deviations from the paper:
1. Adam instead of centred RMSProp.
2. The importance exponent grows from 0.4 to 1 instead of staying at 0.4 (as in prioritized replay's own paper);
   `beta_updates` sets how fast.
3. The ladder of epsilons runs over lanes, not over processes: an actor steps several environments at once.
4. Old steps leave when the ring is full, one by one, not in a sweep every 100 updates.
5. A samples-per-insert limit ties learner and actors together; the paper lets both run free.
6. Huber loss; the paper has the squared error.
7. Sizes for one machine: a replay of 200,000 steps, learning from 10,000 on, a few actors.
8. Dueling MLPs share their last width between the streams; image networks have two full ones, as in the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.epsilon_greedy import EpsilonConfig, EpsilonGreedyPolicy
from shoal.algorithms.interface import (
    Algorithm,
    CenterImages,
    Learner,
    LearnerContext,
    LearningRate,
    NormalizeObservations,
    NormalizeValues,
    Width,
)
from shoal.algorithms.kinds import require_kind
from shoal.algorithms.learner import GradientLearner, Loss, Objective
from shoal.algorithms.moments import Statistics
from shoal.algorithms.optimizer import TargetNetwork
from shoal.algorithms.own_code import own_torso
from shoal.networks import QNetwork, center_images
from shoal.ops import double_q_target, huber, linear_schedule, q_learning_target, td_error
from shoal.replay import Column, NStepView
from shoal.types import EnvSpec


class ValueConfig(EpsilonConfig):
    """Hyper-parameters common to the Ape-X family of Q-learners."""

    learning_rate: LearningRate = 1e-4
    adam_epsilon: float = Field(1.5e-4, gt=0, description="Adam's epsilon.")
    gradient_clip: float = Field(40.0, gt=0, description="Largest norm of the gradient.")
    target_period: int = Field(2_500, ge=1, description="Updates between two copies into the target network.")
    hidden: tuple[Width, ...] = Field((256, 256), description="Layer widths for vector observations.")
    center_images: CenterImages = False
    normalize_observations: NormalizeObservations = False
    normalize_values: NormalizeValues = False
    dueling: bool = Field(True, description="Value and advantage streams.")
    beta_start: float = Field(0.4, ge=0, le=1, description="Exponent of the importance weights at the start.")
    beta_updates: int = Field(100_000, ge=1, description="Updates until that exponent has grown to 1.")


class Config(ValueConfig):
    """Hyper-parameters of Ape-X DQN."""

    double: bool = Field(True, description="Choose the next action with the online network, value it with the target.")
    huber_delta: float = Field(1.0, gt=0, description="Where the loss turns from quadratic to linear.")


def make_network(config: Config, spec: EnvSpec) -> QNetwork:
    """Action values of an observation: [B, *obs_shape] -> [B, A]."""
    return q_network(config, spec)


def q_network(config: ValueConfig, spec: EnvSpec, quantiles: int | None = None) -> QNetwork:
    """The family's network."""
    network = QNetwork(
        spec.obs_shape,
        spec.obs_dtype,
        spec.num_actions,
        config.hidden,
        config.dueling,
        quantiles=quantiles,
        normalize_observations=config.normalize_observations,
        normalize_values=config.normalize_values,
        parts=spec.inputs,
        own=own_torso(config, spec),
    )
    return center_images(network) if config.center_images else network


def observe_returns(network: QNetwork, returns: Tensor) -> None:
    """Shows targets to a network that normalises values."""
    if network.value_norm is not None:
        network.value_norm.observe(returns, torch.ones_like(returns))


def dqn_loss(network: QNetwork, target: QNetwork, batch: TransitionBatch, *, double: bool, huber_delta: float) -> Loss:
    """Huber loss of the (double) Q-learning error, per sample."""
    q_tm1 = network(batch.obs)  # [B, A]
    with torch.no_grad():
        q_t = target(batch.next_obs)
        if double:
            goal = double_q_target(network(batch.next_obs), q_t, batch.reward, batch.discount)
        else:
            goal = q_learning_target(q_t, batch.reward, batch.discount)
    error = td_error(q_tm1, batch.action, goal)
    observe_returns(network, goal)
    return Loss(huber(error / network.value_scale, huber_delta), error, {"q_mean": q_tm1.mean()})


def _suited(spec: EnvSpec, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """What learns on most environments. With vectors and small images the paper's need ten times as many steps."""
    if spec.sees_images and not spec.sees_small_images:  # measured on Pong: docs/algorithms/apex-dqn.md
        return {
            "algorithm": {"center_images": True, "adam_epsilon": 1e-5, "target_period": 1_000},
            "learner": {"batch_size": 128},
            "replay": {"samples_per_insert": 6},
        }
    algorithm = {
        "learning_rate": 5e-4,
        "learning_rate_end": 2.5e-5,  # at the last step: otherwise the greedy policy never stays as good as it was
        "adam_epsilon": 1e-5,
        "gradient_clip": 10.0,
        "target_period": 250,
        "hidden": [128, 128],
        "normalize_observations": not spec.unit_observations and not spec.sees_images,
        "normalize_values": True,
        "repeat_exploration": True,
        # Returns over several steps contain the steps that explored. With many states alike that averages out; where
        # each state is learned by itself, the way beside a cliff is learned as if one fell now and then.
        **({"n_step": 1} if spec.tabular else {}),
        **({"center_images": True} if spec.sees_images else {}),
        **own,
    }
    return {
        "algorithm": algorithm,
        "learner": {"batch_size": 128, "publish_every": 4, "prefetch": 0},
        "replay": {"capacity": 100_000, "min_size": 1_000, "samples_per_insert": 32},  # an update for every four steps
    }


MakeNetwork = Callable[[Any, EnvSpec], QNetwork]
ValueLoss = Callable[[QNetwork, QNetwork, TransitionBatch], Loss]
"""Of the online network, the target network and a batch."""
MakeLoss = Callable[[Any, torch.device], ValueLoss]


def value_algorithm(
    name: str,
    summary: str,
    config: type[ValueConfig],
    make_network: MakeNetwork,
    make_loss: MakeLoss,
    suited: Mapping[str, Any] | None = None,
) -> Algorithm:
    """An Ape-X Q-learner: its algorithms differ in the network, the loss, and what of that suits vectors.

    Args:
        name: as on the command line.
        summary: one line.
        config: its hyper-parameters.
        make_network: from those and the environment to the network; `q_network` is one.
        make_loss: from those and the learner's device to the loss.
        suited: hyper-parameters that suit vectors, where they are not the family's.
    """

    def make_learner(config: ValueConfig, spec: EnvSpec, context: LearnerContext) -> Learner:
        network = make_network(config, spec).to(context.device)
        target, loss = copy.deepcopy(network), make_loss(config, context.device)
        objective = Objective(
            parameters=network,
            loss=lambda batch: loss(network, target, batch),
            learning_rate=config.schedule(config.learning_rate),
            epsilon=config.adam_epsilon,
            gradient_clip=config.gradient_clip,
        )
        follows = TargetNetwork(target, network, period=config.target_period)
        beta = linear_schedule(config.beta_start, 1.0, config.beta_updates)
        statistics = Statistics(network, context)
        saved = {"policy": network, "target": target, **statistics.saved}
        watched = {"network": lambda obs, _: network(obs)}
        return GradientLearner(saved, [objective], [follows], context, beta=beta, prepare=statistics, watched=watched)

    return Algorithm(
        name=name,
        summary=summary,
        config=config,
        check=lambda spec: require_kind(spec, name, "discrete"),
        columns=lambda config, spec: (Column("priority", "float32"),),
        make_view=lambda config, schema: NStepView(schema, config.n_step, config.gamma),
        make_policy=lambda config, spec, context: EpsilonGreedyPolicy(
            make_network(config, spec), config, spec, context
        ),
        make_learner=make_learner,
        actions="discrete",
        suited=partial(_suited, own=suited or {}),
        defaults={
            "learner": {"batch_size": 512, "prefetch": 2},
            "replay": {"selectors": [{"type": "prioritized", "alpha": 0.6}], "capacity": 200_000, "min_size": 10_000},
        },
    )


def make_loss(config: Config, device: torch.device) -> ValueLoss:
    """The loss with its settings."""
    return partial(dqn_loss, double=config.double, huber_delta=config.huber_delta)


ALGORITHM = value_algorithm(
    "apex-dqn", "dueling double DQN, n-step, prioritized replay fed by many actors", Config, make_network, make_loss
)
