"""Priorities that actors give to their own steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.algorithms.interface import Outcome
from shoal.types import Array


class InitialPriorities:
    """|n-step TD error| of each lane's recent steps, from action values the actor computed anyway (Ape-X).

    The error of the transition that began n rows ago is known when the next action values are: it is recorded in the
    present row, which is also the row that completes the transition for a reader.
    """

    def __init__(
        self, lanes: int, n: int, gamma: float, rescale: Callable[[Array], Array] = lambda value: value
    ) -> None:
        """`rescale` turns returns into what the network predicts."""
        self._n, self._gamma, self._oldest, self._rescale = n, gamma, 0, rescale
        self._taken, self._best, self._regret, self._reward = np.zeros((4, n, lanes), np.float32)
        self._terminated, self._truncated = np.zeros((2, n, lanes), np.bool_)

    def reset(self) -> None:
        """Forgets all steps; what is returned until n new ones came belongs to rows no sample starts at."""
        for history in (self._taken, self._best, self._regret, self._reward, self._terminated, self._truncated):
            history[:] = 0

    def push(self, taken: Array, best: Array, outcome: Outcome, regret: Array | float = 0.0) -> npt.NDArray[np.float32]:
        """Takes one step of all lanes; returns the priority of the step n before it.

        Args:
            taken: value of the action taken, per lane.
            best: value of the best action there; not rescaled, because rewards are added to it.
            outcome: what the environment answered.
            regret: what the learner adds to this step's return (advantage learning).
        """
        order = [(self._oldest + k) % self._n for k in range(self._n)]
        # From the newest step back: where an episode ended, what follows belongs to another one.
        value = best.astype(np.float32)
        for k in range(self._n - 1, -1, -1):
            row = order[k]
            following = self._best[order[k + 1]] if k + 1 < self._n else best
            value = np.where(self._truncated[row], following, value)
            value = np.where(self._terminated[row], np.float32(0.0), value)
            value = self._reward[row] + self._gamma * value
        row = self._oldest
        goal = self._rescale(value + self._regret[row])
        priority: npt.NDArray[np.float32] = np.abs(goal - self._taken[row]).astype(np.float32)
        self._taken[row], self._best[row], self._regret[row] = taken, best, regret
        self._reward[row] = outcome.reward
        self._terminated[row], self._truncated[row] = outcome.terminated, outcome.truncated
        self._oldest = (row + 1) % self._n
        return priority

    def rewarded(self, reward: Array, gone: Array) -> None:
        """Says of the newest step what is known only after it: its rewards, and for whom it was the last one."""
        newest = (self._oldest - 1) % self._n
        self._reward[newest] = reward
        self._terminated[newest] |= gone
