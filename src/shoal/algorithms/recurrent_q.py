"""What recurrent Q-learners share beside their policy: the loss of a sequence, and their wiring.

The same learner serves one agent (`r2d2`) and several in one lane. For several agents, give `recurrent_algorithm`
- a network whose q-values have an axis of agents (see `networks.RecurrentQNetwork`),
- `read_steps`: rewards, discounts and masks per agent, from the observations of a batch,
- `make_policy`, where not every agent explores, and which makes one priority per lane of those of all agents,
  and `check`.

A policy records, beside the stream, `state`, the recurrent state before each step and the previous actions behind it,
and `priority`, the error of the step `n_step` rows before. A sequence's first priority is made of those of its rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.batches import RecurrentBatch
from shoal.algorithms.interface import Algorithm, Learner, LearnerContext, Policy, PolicyContext
from shoal.algorithms.kinds import require_kind
from shoal.algorithms.learner import GradientLearner, Loss, Objective
from shoal.algorithms.moments import Statistics
from shoal.algorithms.optimizer import TargetNetwork
from shoal.algorithms.recurrent_policy import RecurrentConfig, RecurrentQPolicy
from shoal.errors import ConfigError
from shoal.networks import RecurrentQNetwork
from shoal.ops import (
    discounts,
    double_q_values,
    huber,
    masked_mean,
    n_step_returns,
    regret,
    rescaled,
    sequence_priority,
    unrescaled,
)
from shoal.replay import Column, RowPriorities, Schema, SequenceView
from shoal.types import EnvSpec


class Steps(NamedTuple):
    """What the rows of a sequence brought, [T, B], or [T, B, agents]."""

    reward: Tensor
    discount: Tensor
    """gamma, or 0 where the episode terminated for good."""
    mask: Tensor
    """1 where there is a step to learn from. A row without one is bootstrapped from, and nothing beyond it is."""


ReadSteps = Callable[[RecurrentBatch, Any, Any], Steps]
"""From the part of a batch to learn from, the algorithm's settings, and its network."""


def one_agent(batch: RecurrentBatch, config: RecurrentConfig, network: RecurrentQNetwork) -> Steps:
    """Rewards and ends as the environment gave them."""
    return Steps(batch.reward, discounts(batch.terminated, config.gamma), batch.mask)


class Errors(NamedTuple):
    """Of the rows to learn from, [T, B], or [T, B, agents]."""

    error: Tensor
    """Target minus value of the action taken; 0 where masked. With gradient."""
    taken: Tensor
    """The value of the action taken."""
    returns: Tensor
    """What it should become, before any rescaling."""
    mask: Tensor


def sequence_errors(
    network: RecurrentQNetwork,
    target: RecurrentQNetwork,
    batch: RecurrentBatch,
    config: RecurrentConfig,
    read_steps: ReadSteps = one_agent,
) -> Errors:
    """n-step (double) Q-learning errors."""
    q = _learned_values(network, batch, config.burn_in)  # [T + 1, B, ..., A]
    learned = batch.after(config.burn_in)
    reward, discount, mask = read_steps(learned, config, network)
    with torch.no_grad():
        q_target = _learned_values(target, batch, config.burn_in)
        value = double_q_values(q if config.double else q_target, q_target)
        value = unrescaled(value) if config.value_rescaling else value
        returns = n_step_returns(value, reward, discount, mask, config.n_step)
        if config.advantage_learning:
            known = unrescaled(q_target) if config.value_rescaling else q_target
            returns = returns + config.advantage_learning * regret(known[:-1], learned.action) * mask
        goal = rescaled(returns) if config.value_rescaling else returns
    taken = q[:-1].gather(-1, learned.action.long().unsqueeze(-1)).squeeze(-1)
    return Errors((goal - taken) * mask, taken, returns, mask)


def sequence_loss(
    network: RecurrentQNetwork,
    target: RecurrentQNetwork,
    batch: RecurrentBatch,
    config: RecurrentConfig,
    read_steps: ReadSteps = one_agent,
) -> Loss:
    """Huber loss of the errors: mean over a sequence's rows, sum over agents."""
    error, taken, returns, mask = sequence_errors(network, target, batch, config, read_steps)
    if network.value_norm is not None:
        network.value_norm.observe(returns, mask)
    loss = huber(error / network.value_scale, config.huber_delta).transpose(0, 1).flatten(1).sum(dim=1) / len(error)
    q_mean = masked_mean(taken.flatten(1), mask.flatten(1))
    return Loss(loss, sequence_priority(error, mask, config.eta), {"q_mean": q_mean, **network.metrics})


def _learned_values(network: RecurrentQNetwork, batch: RecurrentBatch, burn_in: int) -> Tensor:
    """[T + 1, B, ..., A] of the part to learn from; the state comes warm from the part before it."""
    size = batch.state.shape[1] - math.prod(batch.action.shape[2:])  # of the state; the actions before it follow
    obs, first, last = batch.obs, batch.first, batch.last_action(size)
    state = batch.state[:, :size].float()
    if burn_in:
        with torch.no_grad():
            _, state = network.unroll(obs[:burn_in], state, first[:burn_in], last[:burn_in])
    q, _ = network.unroll(obs[burn_in:], state, first[burn_in:], last[burn_in:])
    return q.float()


MakeNetwork = Callable[[Any, EnvSpec], RecurrentQNetwork]
MakePolicy = Callable[[Any, Any, EnvSpec, PolicyContext], Policy]


def recurrent_algorithm(
    name: str,
    summary: str,
    config: type[RecurrentConfig],
    make_network: MakeNetwork,
    *,
    suited: Callable[[EnvSpec], Mapping[str, Any]],
    read_steps: ReadSteps = one_agent,
    make_policy: MakePolicy = RecurrentQPolicy,
    check: Callable[[EnvSpec], None] | None = None,
    make_trim: Callable[[Any], Callable[[Any], Any] | None] = lambda network: None,
) -> Algorithm:
    """A recurrent Q-learner: its algorithms differ in the network, and in how agents are told apart.

    Args:
        name: as on the command line.
        summary: one line.
        config: its hyper-parameters.
        make_network: from those and the environment to the network.
        suited: see `Algorithm`.
        read_steps: what a sequence's rows brought; one agent's by default.
        make_policy: how the network acts.
        check: see `Algorithm`; by default, discrete actions of one agent are asked for.
        make_trim: from the network to what is left out of its batches, see `GradientLearner`.
    """

    def make_learner(config: RecurrentConfig, spec: EnvSpec, context: LearnerContext) -> Learner:
        network = make_network(config, spec).to(context.device)
        target = copy.deepcopy(network)
        objective = Objective(
            parameters=network,
            loss=lambda batch: sequence_loss(network, target, batch, config, read_steps),
            learning_rate=config.schedule(config.learning_rate),
            epsilon=config.adam_epsilon,
            gradient_clip=config.gradient_clip,
        )
        follows = TargetNetwork(target, network, period=config.target_period)
        statistics = Statistics(network, context)
        saved = {"policy": network, "target": target, **statistics.saved}

        def alone(obs: Tensor, _: Tensor) -> object:
            """Observations as if each began an episode."""
            last = torch.full((len(obs), *spec.action_shape), -1, device=obs.device)
            return network.q_values(obs, torch.zeros(len(obs), network.state_size, device=obs.device), last)

        return GradientLearner(
            saved,
            [objective],
            [follows],
            context,
            beta=lambda updates: config.beta,
            prepare=statistics,
            watched={"network": alone},
            trim=make_trim(network),
        )

    def columns(config: RecurrentConfig, spec: EnvSpec) -> tuple[Column, ...]:
        # Half precision: states of older weights are an approximation anyway, and most of what a row holds.
        with torch.device("cpu" if config.network else "meta"):  # a torso of the user's may need real numbers
            size = make_network(config, spec).state_size + math.prod(spec.action_shape)
        return Column("state", "float16", (size,)), Column("priority", "float32")

    def make_view(config: RecurrentConfig, schema: Schema) -> SequenceView:
        rows = RowPriorities(config.n_step, config.eta)
        return SequenceView(
            schema, config.unroll, config.burn_in, at_start=("state",), period=config.period, priorities=rows
        )

    return Algorithm(
        name=name,
        summary=summary,
        config=config,
        check=check or (lambda spec: require_kind(spec, name, "discrete")),
        check_replay=check_replay,
        columns=columns,
        make_view=make_view,
        make_policy=lambda config, spec, context: make_policy(make_network(config, spec), config, spec, context),
        make_learner=make_learner,
        steps_per_draw=lambda config: config.unroll,
        actions="discrete",
        suited=suited,
        defaults={
            "learner": {"batch_size": 64, "prefetch": 2},
            "replay": {"selectors": [{"type": "prioritized", "alpha": 0.9}], "capacity": 200_000, "min_size": 10_000},
        },
    )


def check_replay(config: RecurrentConfig, selectors: tuple[str, ...]) -> None:
    """Refuses queues: they hand out sequences that do not overlap, each once."""
    if wrong := [one for one in selectors if one not in ("prioritized", "uniform", "newest")]:
        raise ConfigError(
            f"{wrong[0]} cannot be used: recurrent Q-learning replays sequences that start every "
            "`period` rows. Use prioritized, uniform or newest."
        )
