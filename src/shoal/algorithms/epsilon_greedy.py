"""Epsilon-greedy actors that compute initial priorities of their own steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn

from shoal.algorithms.initial_priorities import InitialPriorities
from shoal.algorithms.interface import AlgorithmConfig, Decision, Outcome, PolicyContext
from shoal.algorithms.repeated_actions import RepeatedActions, RepeatExploration
from shoal.ops import epsilon_greedy, epsilon_ladder
from shoal.types import Array, EnvSpec


class EpsilonConfig(AlgorithmConfig):
    """What the policy has to know."""

    n_step: int = Field(3, ge=1, le=64, description="Steps of reward before the bootstrap.")
    epsilon_base: float = Field(0.4, gt=0, le=1, description="Exploration of the most curious lane.")
    epsilon_exponent: float = Field(7.0, ge=0, description="How much less the least curious lane explores.")
    repeat_exploration: RepeatExploration = False


class EpsilonGreedyPolicy:
    """Takes the best action, or with probability epsilon a random one. Every lane of every actor has its own epsilon
    (the Ape-X ladder).
    """

    def __init__(
        self,
        network: nn.Module,
        config: EpsilonConfig,
        spec: EnvSpec,
        context: PolicyContext,
    ) -> None:
        """Args:
        network: maps observations to action values [N, A], or to [N, A, quantiles], whose means they are.
        config: hyper-parameters.
        spec: the environment.
        context: which actor this is.
        """
        self.module = network.eval()
        self._num_actions = spec.num_actions
        ladder = epsilon_ladder(context.actors * context.lanes, config.epsilon_base, config.epsilon_exponent)
        self._epsilon = ladder[context.index :: context.actors]  # its share of curious and careful lanes
        self._rng = np.random.default_rng(context.seed)
        self._repeated = RepeatedActions(context.lanes) if config.repeat_exploration else None
        self._priorities = InitialPriorities(context.lanes, config.n_step, config.gamma)
        self._taken: Array = np.zeros(context.lanes, np.float32)
        self._best: Array = np.zeros(context.lanes, np.float32)
        self._device = torch.device("cpu")

    def to(self, device: torch.device) -> None:
        """Computes there from now on; arrays stay arrays. For the evaluator."""
        self.module.to(device)
        self._device = device

    def initial_state(self, lanes: int) -> Any:
        return ()

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        out = self.module(torch.from_numpy(obs).to(self._device))
        values = (out if out.dim() == 2 else out.mean(dim=2)).float().cpu().numpy()  # [N, A]
        action = values.argmax(axis=1)
        self._best = values.max(axis=1)
        if explore:
            if self._repeated is None:
                action = epsilon_greedy(action, self._epsilon, self._num_actions, self._rng)
            else:
                self._repeated.end(first)
                begins = self._rng.random(len(action)) < self._epsilon
                drawn = self._rng.integers(self._num_actions, size=len(action))
                action = np.where(*self._repeated(begins, drawn, self._rng), action)
        self._taken = values[np.arange(len(action)), action]
        return Decision(action, state)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        return {"priority": self._priorities.push(self._taken, self._best, outcome)}

    def reset(self) -> None:
        self._priorities.reset()
