"""Policies for continuous actions that explore with noise.

An action is clipped to the bounds before it is handed out, so the stored action is the one that the environment took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.interface import Decision, Outcome, PolicyContext
from shoal.algorithms.repeated_actions import RepeatedActions
from shoal.networks import PolicyNetwork
from shoal.types import Array, EnvSpec

Act = Callable[[Array, np.random.Generator], Array]
"""From a network's output [N, outputs] to actions [N, A] in [-1, 1]."""


class GaussianNoise:
    """Adds noise of each lane's own deviation to a deterministic policy's action.

    With `correlation` the noise of a step is partly that of the step before, at the same deviation: what the
    Ornstein-Uhlenbeck process of https://arxiv.org/abs/1509.02971 is for. Uncorrelated noise averages out.
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

    def __init__(
        self,
        network: PolicyNetwork,
        explore: Act,
        greedy: Act,
        spec: EnvSpec,
        context: PolicyContext,
        repeat: bool = False,
    ) -> None:
        """Args:
        network: maps observations to what `explore` and `greedy` turn into actions.
        explore: how an actor acts.
        greedy: how the evaluator does.
        spec: the environment.
        context: which actor this is.
        repeat: whether the first, random actions last several steps.
        """
        self.module, self._explore, self._greedy = network.eval(), explore, greedy
        self._bounds, self._rng = ActionBounds(spec), np.random.default_rng(context.seed)
        self._repeated = RepeatedActions(context.lanes) if repeat else None

    def initial_state(self, lanes: int) -> Any:
        return ()

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        return Decision(self._bounds.to_env(self.squashed(self.module(torch.from_numpy(obs)), explore)), state)

    def squashed(self, out: Tensor, explore: bool) -> Array:
        """Actions in [-1, 1] from the network's output."""
        numbers = out.float().numpy()
        if not explore:
            return self._greedy(numbers, self._rng)
        if not self.module.learned:
            drawn = self._rng.uniform(-1.0, 1.0, (len(numbers), self._bounds.size))
            return drawn if self._repeated is None else self._repeated(np.ones(len(drawn), bool), drawn, self._rng)[1]
        return self._explore(numbers, self._rng)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        return {}

    def reset(self) -> None:
        """See `Policy.reset`."""
