"""Recurrent DQN for several agents that talk to each other.

"Distributed Heuristic Multi-Agent Path Finding with Communication", Ma et al. 2021, https://arxiv.org/abs/2106.11365
(DHC): all agents share one network with a GRU. In every step neighbours exchange messages, by attention, and the state
after that is what each agent remembers. `communication: causal` has agents ask only those who change their decision:
"Learning Selective Communication for Multi-Agent Path Finding", Ma et al. 2021, https://arxiv.org/abs/2109.05413 (DCC).

A row holds what the original's episode buffer held: observations of all agents, who hears whom and what each agent got
(all three in `obs`), actions, the state of all agents, and action values with `record_q_values`.

Deviations from DHC:
1. All agents are learned from, and all explore; the original learns from agent 0, the only one that explores
   (`train`, `explore`). A step of sixteen agents is sixteen steps to learn from, and costs the same to collect.
2. All steps of a sequence are learned from; the original unrolls a sequence for each step, and learns from its last.
3. Double Q-learning (`double`).
4. Priorities are of sequences, as R2D2's; new ones come from each agent's own error n steps ahead. The original's adds
   the value of the same step, undiscounted, by mistake.
5. An episode that is cut by its time limit is bootstrapped from its last observation. An agent that leaves before its
   team is treated as one whose episode terminated.
6. The state is kept in half precision, as the original's. It is bounded by 1, so that loses a two-thousandth at most.
7. The causal mask has DHC's attention behind it, not DCC's two layers of request and reply, and is computed by the
   learner again, with its own weights.
8. Vectors, and images of 36x36 and more, go through the package's torsos.
9. An agent's own cell also goes past the convolutions: it says which moves shorten the way.
10. What an agent is told adds to its state, at first nothing; in the original, a second GRU makes a new state of it.
11. Actions may be drawn by the softmax of values (`temperature`): greedy teams get stuck in circles.
12. Targets may hold a share of an action's regret (`advantage_learning`): the best move and the next best differ by
    less than a network errs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from shoal.algorithms.batches import RecurrentBatch
from shoal.algorithms.initial_priorities import InitialPriorities
from shoal.algorithms.interface import Decision, Learner, LearnerContext, LearningRate, Outcome, PolicyContext, Width
from shoal.algorithms.own_code import own_torso
from shoal.algorithms.recurrent_policy import RecurrentConfig, RecurrentQPolicy
from shoal.algorithms.recurrent_q import Steps, recurrent_algorithm
from shoal.errors import ConfigError
from shoal.networks import CommunicationNetwork, TeamParts, center_images
from shoal.replay import Column
from shoal.types import Array, EnvSpec

Agents = Literal["first", "all"]


class Config(RecurrentConfig):
    """Hyper-parameters of the recurrent DQN with communication; the defaults are DHC's where it says."""

    communication: Literal["neighbours", "causal", "none"] = Field(
        "neighbours", description="Whom agents listen to: all they may hear, those who change their decision, nobody."
    )
    train: Agents = Field("all", description="The agents that are learned from.")
    explore: Agents = Field("all", description="The agents that take random actions.")
    temperature: float = Field(0.0, ge=0, description="Actions are drawn by softmax of values over this; 0: the best.")
    record_q_values: bool = Field(False, description="Rows also hold the action values, in a column q_values.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    n_step: int = Field(2, ge=1, le=64, description="Steps of reward before the bootstrap.")
    unroll: int = Field(16, ge=1, le=1024, description="Steps of one sequence.")
    burn_in: int = Field(0, ge=0, le=1024, description="Steps before them that only warm up the recurrent state.")
    period: int = Field(8, ge=1, le=1024, description="Steps from the start of one sequence to that of the next.")
    learning_rate: LearningRate = 1e-4
    adam_epsilon: float = Field(1e-8, gt=0, description="Adam's epsilon.")
    target_period: int = Field(2_000, ge=1, description="Updates between two copies into the target network.")
    value_rescaling: bool = Field(False, description="Learn values behind a function that makes large ones smaller.")
    beta: float = Field(0.4, ge=0, le=1, description="Exponent of the importance weights.")
    hidden: tuple[Width, ...] = Field((128,), description="Layer widths before the GRU, where agents see vectors.")
    channels: int = Field(128, ge=1, le=4096, description="Of the convolutions, where agents see small images.")
    blocks: int = Field(3, ge=0, le=32, description="Residual blocks of two convolutions each.")
    cell_size: int = Field(256, ge=1, le=4096, description="Width of the GRU: what an agent remembers.")
    rounds: int = Field(2, ge=1, le=16, description="Messages that agents exchange in one step.")
    heads: int = Field(2, ge=1, le=64, description="Heads of the attention.")
    head_size: int = Field(64, ge=1, le=1024, description="Width of each of them, and of a message.")
    dueling: bool = Field(True, description="Value and advantage streams.")

    @model_validator(mode="after")
    def _agents_share_statistics(self) -> Self:
        if self.normalize_observations:
            raise ValueError(
                "normalize_observations = true cannot be used: statistics would be of each agent's place in the team, "
                "and a network that they belong to would not play with another number of agents. Set it to false"
            )
        return self


def make_network(config: Config, spec: EnvSpec) -> CommunicationNetwork:
    """Action values of all agents of a team."""
    parts = TeamParts(spec.obs_parts)
    dtype = "uint8" if spec.obs_dtype == "uint8" and parts.in_bytes else "float32"
    alone = replace(spec, obs_shape=parts.one.shape, obs_dtype=dtype, obs_parts=(), agents=0)
    if config.communication == "causal" and "position" not in parts:
        raise ConfigError(
            f"communication = causal is for path finding, where agents see each other on a map; {spec.env_id} does not "
            "say where agents are. Use communication=neighbours, or env.kwargs.positions=true for path finding."
        )
    network = CommunicationNetwork(
        spec.obs_parts,
        spec.action_nvec[0],
        width=config.cell_size,
        hidden=config.hidden,
        channels=config.channels,
        blocks=config.blocks,
        rounds=0 if config.communication == "none" else config.rounds,
        heads=config.heads,
        head_size=config.head_size,
        causal=config.communication == "causal",
        dueling=config.dueling,
        normalize_values=config.normalize_values,
        own=own_torso(config, alone),
    )
    return center_images(network) if config.center_images else network


class CommunicationPolicy(RecurrentQPolicy):
    """Acts for all agents of each lane, and gives a lane's steps the priorities of its agents."""

    def __init__(self, network: CommunicationNetwork, config: Config, spec: EnvSpec, context: PolicyContext) -> None:
        explorers = None if config.explore == "all" else np.arange(spec.agents) == 0
        super().__init__(network, config, spec, context, explorers=explorers)
        self._parts, self._eta, self._agents = network.parts, config.eta, spec.agents
        self._learned = slice(None) if config.train == "all" else slice(1)
        self._priorities = InitialPriorities(context.lanes * spec.agents, config.n_step, config.gamma, self._rescaled)
        self._present: npt.NDArray[np.bool_] = np.ones((context.lanes, spec.agents), np.bool_)
        self._there = np.zeros((config.n_step, context.lanes, spec.agents), np.bool_)  # in the last rows, a ring
        self._row = 0
        self._records_q, self._temperature = config.record_q_values, config.temperature

    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        seen = self._parts(torch.from_numpy(obs))
        self._present = seen.mask.diagonal(dim1=1, dim2=2).numpy()
        if explore:
            self._priorities.rewarded(seen.reward.numpy().reshape(-1), ~self._present.reshape(-1))
        return super().act(obs, state, first, explore)

    def _choose(self, q: torch.Tensor) -> Array:
        if not self._temperature:
            return super()._choose(q)
        # The largest of values with Gumbel's noise is a draw by their softmax.
        drawn: Array = (q.numpy() + self._temperature * self._rng.gumbel(size=q.shape)).argmax(axis=-1)
        return drawn

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        each = Outcome._make(np.repeat(one, self._agents) for one in outcome)
        errors = self._priorities.push(self._taken.reshape(-1), self._best.reshape(-1), each, self._regret.reshape(-1))
        there = self._there[self._row].copy()  # when the step was made that these errors are of
        self._there[self._row], self._row = self._present, (self._row + 1) % len(self._there)
        errors = (errors.reshape(-1, self._agents) * there)[:, self._learned]
        number = np.maximum(there[:, self._learned].sum(axis=1), 1)
        priority = self._eta * errors.max(axis=1) + (1.0 - self._eta) * errors.sum(axis=1) / number
        recorded = {"state": self._state, "priority": priority.astype(np.float32)}
        return recorded | ({"q_values": self._q.numpy()} if self._records_q else {})

    def reset(self) -> None:
        super().reset()
        self._there[:] = False


def read_steps(batch: RecurrentBatch, config: Config, network: CommunicationNetwork) -> Steps:
    """What each agent got, from the row after the step. One that is gone in that row has terminated."""
    seen = network.parts(batch.obs.flatten(0, 1))
    present = seen.mask.diagonal(dim1=1, dim2=2).unflatten(0, batch.obs.shape[:2]).float()  # [T + 1, B, agents]
    reward = seen.reward.float().unflatten(0, batch.obs.shape[:2])[1:]
    discount = config.gamma * present[1:] * (~batch.terminated).float().unsqueeze(2)
    mask = batch.mask.unsqueeze(2) * present[:-1]
    if config.train == "first":
        mask = torch.cat((mask[..., :1], torch.zeros_like(mask[..., 1:])), dim=2)
    return Steps(reward, discount, mask)


class OnlyThoseWhoPlay:
    """Cuts batches to the agents that are in them: a curriculum begins with one of sixteen, and the others would be
    computed, too. To one of a few sizes, and never to a smaller one than before: a CUDA graph fits one size.
    """

    def __init__(self, parts: TeamParts) -> None:
        self._parts, self._agents = parts, 1

    def __call__(self, batch: RecurrentBatch) -> RecurrentBatch:
        """Agents that are not there contribute nothing to a loss, so it stays the same."""
        agents = self._parts.agents
        if self._agents == agents:
            return batch
        there = self._parts.part(batch.obs.flatten(0, 1), "mask").diagonal(dim1=1, dim2=2).amax(0) > 0.5  # [agents]
        last = int(there.nonzero().max()) + 1 if there.any() else 1
        cut = self._agents = max(self._agents, next(size for size in self._parts.sizes if size >= last))
        state, before = batch.state.split((batch.state.shape[1] - agents, agents), dim=1)
        state = state.unflatten(1, (agents, -1))[:, :cut].flatten(1)
        return batch._replace(
            obs=self._parts.cut(batch.obs, cut),
            action=batch.action[..., :cut],
            state=torch.cat((state, before[:, :cut]), dim=1),
        )


def _suited(spec: EnvSpec) -> Mapping[str, Any]:
    """What learns on two cores: a small network and many small updates; the paper's are for a GPU."""
    algorithm = {
        "learning_rate": 1e-3,
        "learning_rate_end": 1e-4,
        "schedule_updates": 10_000,
        "adam_epsilon": 1e-5,
        "gradient_clip": 10.0,
        "n_step": 3,
        "normalize_values": True,
        "cell_size": 64,
        "head_size": 32,
        "epsilon_exponent": 5.0,
    }
    if spec.sees_images:  # maps are learned by heart if few are replayed often
        return {
            "algorithm": {**algorithm, "target_period": 50, "channels": 16, "blocks": 1, "unroll": 8, "period": 4},
            "learner": {"batch_size": 32, "publish_every": 4, "prefetch": 0},
            "replay": {"capacity": 50_000, "min_size": 2_000, "samples_per_insert": 8},
        }
    return {  # the time steps of an update take longer than their numbers: larger batches cost little
        "algorithm": {**algorithm, "target_period": 150},
        "learner": {"batch_size": 64, "publish_every": 4, "prefetch": 0},
        "replay": {"capacity": 100_000, "min_size": 1_000, "samples_per_insert": 32},
    }


_DEFAULTS: Mapping[str, Any] = {
    "learner": {"batch_size": 64, "prefetch": 2},
    "replay": {"selectors": [{"type": "prioritized", "alpha": 0.6}], "capacity": 200_000, "min_size": 20_000},
}


def _columns(config: Config, spec: EnvSpec) -> tuple[Column, ...]:
    made = _BASE.columns(config, spec)
    asked = Column("q_values", "float32", (spec.agents, spec.action_nvec[0]))
    return (*made, asked) if config.record_q_values else made


def _make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    if config.communication == "causal" and context.compile:
        raise ConfigError(
            "learner.compile = true cannot be used with communication = causal: how many agents are erased, and so the "
            "size of a batch, differs from update to update. Set one of them otherwise."
        )
    return _BASE.make_learner(config, spec, context)


_BASE = recurrent_algorithm(
    "comm-dqn",
    "recurrent DQN for several agents that talk to their neighbours by attention",
    Config,
    make_network,
    suited=_suited,
    read_steps=read_steps,
    make_policy=CommunicationPolicy,
    check=lambda spec: None,  # `agents` says all
    make_trim=lambda network: OnlyThoseWhoPlay(network.parts),
)
ALGORITHM = replace(_BASE, agents=True, columns=_columns, make_learner=_make_learner, defaults=_DEFAULTS)
