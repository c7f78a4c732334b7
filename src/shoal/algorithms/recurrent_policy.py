"""The settings of recurrent Q-learners, and the policy that acts with them and records its state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, model_validator

from shoal.algorithms.epsilon_greedy import EpsilonConfig
from shoal.algorithms.initial_priorities import InitialPriorities
from shoal.algorithms.interface import (
    CenterImages,
    Decision,
    LearningRate,
    NormalizeObservations,
    NormalizeValues,
    Outcome,
    PolicyContext,
    Width,
)
from shoal.algorithms.repeated_actions import RepeatedActions
from shoal.networks import RecurrentQNetwork
from shoal.ops import epsilon_ladder, rescaled, unrescaled
from shoal.types import Array, EnvSpec


class RecurrentConfig(EpsilonConfig):
    """Hyper-parameters common to recurrent Q-learners; the defaults are R2D2's."""

    gamma: float = Field(0.997, ge=0, le=1, description="Discount per step.")
    n_step: int = Field(5, ge=1, le=64, description="Steps of reward before the bootstrap.")
    unroll: int = Field(80, ge=1, le=1024, description="Steps of one sequence.")
    burn_in: int = Field(40, ge=0, le=1024, description="Steps before them that only warm up the recurrent state.")
    period: int = Field(40, ge=1, le=1024, description="Steps from the start of one sequence to that of the next.")
    learning_rate: LearningRate = 1e-4
    adam_epsilon: float = Field(1e-3, gt=0, description="Adam's epsilon.")
    gradient_clip: float = Field(40.0, gt=0, description="Largest norm of the gradient.")
    target_period: int = Field(2_500, ge=1, description="Updates between two copies into the target network.")
    double: bool = Field(True, description="Choose the next action with the online network, value it with the target.")
    advantage_learning: float = Field(0.0, ge=0, lt=1, description="Share of an action's regret in its target.")
    huber_delta: float = Field(1.0, gt=0, description="Where the loss turns from quadratic to linear.")
    value_rescaling: bool = Field(True, description="Learn values behind a function that makes large ones smaller.")
    normalize_values: NormalizeValues = False
    normalize_observations: NormalizeObservations = False
    center_images: CenterImages = False
    hidden: tuple[Width, ...] = Field((256,), description="Layer widths before the cell, for vector observations.")
    eta: float = Field(0.9, ge=0, le=1, description="Share of the largest error in a sequence's priority; rest: mean.")
    beta: float = Field(0.6, ge=0, le=1, description="Exponent of the importance weights.")

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if self.value_rescaling and self.normalize_values:
            raise ValueError(
                "normalize_values = true and value_rescaling = true exclude each other: both make values of one size. "
                "Set one of them to false"
            )
        return self


class RecurrentQPolicy:
    """Takes the best action, or with probability epsilon a random one, every agent for itself. Every lane of every
    actor has its own epsilon (the Ape-X ladder).
    """

    def __init__(
        self,
        network: RecurrentQNetwork,
        config: RecurrentConfig,
        spec: EnvSpec,
        context: PolicyContext,
        *,
        explorers: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Args:
        network: the action values.
        config: hyper-parameters.
        spec: the environment; its actions are one choice, or one of the same kind per agent.
        context: which actor this is.
        explorers: [agents] which of them explore; None: all.
        """
        self.module = network.eval()
        self._shape, self._explorers = spec.action_shape, explorers
        self._num_actions = spec.num_actions or spec.action_nvec[0]
        ladder = epsilon_ladder(context.actors * context.lanes, config.epsilon_base, config.epsilon_exponent)
        self._epsilon = ladder[context.index :: context.actors].reshape(-1, *(1 for _ in self._shape))
        self._rng = np.random.default_rng(context.seed)
        self._repeated = None
        if config.repeat_exploration:
            self._repeated = RepeatedActions(context.lanes * math.prod(self._shape))
        self._rescales, self._share = config.value_rescaling, config.advantage_learning
        self._priorities = InitialPriorities(context.lanes, config.n_step, config.gamma, self._rescaled)
        self._taken = self._best = self._regret = np.zeros(context.lanes, np.float32)
        self._q = torch.zeros(0)
        self._state: Array = np.zeros(0, np.float16)
        self._device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Computes there from now on; arrays stay arrays. For the evaluator."""
        self.module.to(device)
        self._device = device

    def initial_state(self, lanes: int) -> Any:
        """The network's state [N, S], and the previous actions [N, ...]: -1, there are none."""
        state = torch.zeros(lanes, self.module.state_size, device=self._device)
        return state, torch.full((lanes, *self._shape), -1.0, device=self._device)

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        before, last = (torch.as_tensor(part, device=self._device) for part in state)
        if first.any():
            begins = torch.tensor(first, device=self._device)
            before = before.masked_fill(begins.unsqueeze(1), 0.0)
            last = last.masked_fill(begins.view(-1, *(1 for _ in self._shape)), -1.0)
        self._state = torch.cat((before, last.flatten(1) if self._shape else last.unsqueeze(1)), 1).half().cpu().numpy()
        q, after = self.module.q_values(torch.from_numpy(obs).to(self._device), before, last.long())
        self._q = q = q.float().cpu()  # [N, ..., A]
        action = self._choose(q)
        if explore:
            action = self._explore(action, first)
        chosen = torch.from_numpy(action)
        taken, best = q.gather(-1, chosen.unsqueeze(-1)).squeeze(-1), q.amax(dim=-1)
        self._taken = taken.numpy()
        if self._rescales:
            taken, best = unrescaled(taken), unrescaled(best)
        self._best, self._regret = best.numpy(), (self._share * (taken - best)).numpy()
        return Decision(action, (after.float(), chosen.to(self._device).float()))

    def _choose(self, q: torch.Tensor) -> Array:
        """[N, ..., A] -> [N, ...] what it does when it does not explore."""
        best: Array = q.argmax(dim=-1).numpy()
        return best

    def _explore(self, best: Array, first: npt.NDArray[np.bool_]) -> Array:
        explores = self._rng.random(best.shape) < self._epsilon
        drawn = self._rng.integers(self._num_actions, size=best.shape)
        if self._repeated is not None:
            agents = math.prod(self._shape)
            self._repeated.end(np.repeat(first, agents))
            lasting, held = self._repeated(explores.reshape(-1), drawn.reshape(-1), self._rng)
            explores, drawn = lasting.reshape(best.shape), held.reshape(best.shape)
        if self._explorers is not None:
            explores = explores & self._explorers
        return np.where(explores, drawn, best)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        priority = self._priorities.push(self._taken, self._best, outcome, self._regret)
        return {"state": self._state, "priority": priority}

    def reset(self) -> None:
        self._priorities.reset()

    def _rescaled(self, returns: Array) -> Array:
        """What the network predicts for these returns."""
        return rescaled(torch.from_numpy(returns)).numpy() if self._rescales else returns
