"""Random actions that last several steps, and noise that does.

"Temporally-Extended Epsilon-Greedy Exploration", Dabney et al. 2020, https://arxiv.org/abs/2006.01782. Single random
actions cancel each other out and do not leave the neighbourhood; a push that lasts does. Random actions of one step
never reached the goal of MountainCarContinuous in 40,000 steps, lasting ones did 35 times.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from shoal.types import Array

RepeatExploration = Annotated[
    bool,
    Field(description="Random actions last several steps, mostly few and sometimes many: finds distant goals."),
]
LONGEST = 128
"""Steps."""
LONGEST_NOISE = 64
"""Steps that noise lasts at most. Of lengths that are spread evenly over their logarithm, those up to 64 reached the
goal of MountainCar most often: 50 times in 100,000 steps of a uniform policy; up to 32: 34 times, up to 128: 28 times,
`RepeatedActions`' own law: 10 times, single actions: never.
"""
NOISY_EPISODES = 0.5
"""The share of episodes in which noise lasts. In the others it is new at every step, as the papers have it."""


class RepeatedActions:
    """Which lanes explore, and with what. An action lasts n steps with a probability proportional to 1 / n^2."""

    def __init__(self, lanes: int) -> None:
        self._left = np.zeros(lanes, np.int64)
        self._held: Array | None = None

    def __call__(
        self, begins: npt.NDArray[np.bool_], drawn: Array, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.bool_], Array]:
        """Args:
            begins: [N] lanes that begin to explore, if they are not exploring.
            drawn: [N, ...] random actions to begin with.
            rng: asked for the same numbers whatever the outcome.

        Returns:
            [N] lanes that explore in this step, and [N, ...] what they do.
        """
        lengths = np.minimum(rng.zipf(2.0, len(begins)), LONGEST)
        begins = begins & (self._left == 0)
        self._held = drawn.copy() if self._held is None else self._held
        self._held[begins], self._left[begins] = drawn[begins], lengths[begins]
        explores = self._left > 0
        self._left[explores] -= 1
        return explores, self._held

    def end(self, lanes: npt.NDArray[np.bool_]) -> None:
        """These lanes stop: their episode has ended."""
        self._left[lanes] = 0


class HeldNoise:
    """Noise that lasts several steps, for policies that take the largest of logits plus Gumbel noise.

    Over all noise, each action is a draw from the policy, and that is what is recorded. An approximation: the noise has
    also led to the state, so given the state, a repeated action is likelier than recorded. The exploration ends by
    itself when the policy becomes sure. For continuous actions: "Colored Noise in PPO", Hollenstein et al. 2024,
    https://arxiv.org/abs/2312.11091.
    """

    def __init__(self, lanes: int, size: int, seed: int) -> None:
        """`size` is the number of logits."""
        self._noise = np.zeros((lanes, size), np.float32)
        self._left = np.zeros(lanes, np.int64)
        self._lasts = np.zeros(lanes, bool)
        self._rng = np.random.default_rng(seed)

    def __call__(self, first: npt.NDArray[np.bool_], lanes: npt.NDArray[np.int64] | None = None) -> Array:
        """Args:
            first: [N] lanes whose episode begins.
            lanes: [N] which ones these are; None: all.

        Returns:
            [N, size] noise.
        """
        at, rng, number = slice(None) if lanes is None else lanes, self._rng, len(first)
        self._lasts[at] = np.where(first, rng.random(number) < NOISY_EPISODES, self._lasts[at])
        lengths = np.where(self._lasts[at], np.exp(rng.uniform(0.0, np.log(LONGEST_NOISE), number)), 1)
        fresh = first | (self._left[at] == 0)
        drawn = rng.gumbel(size=(number, self._noise.shape[1]))
        self._noise[at] = np.where(fresh[:, None], drawn, self._noise[at])
        self._left[at] = np.where(fresh, lengths.astype(np.int64), self._left[at]) - 1
        return self._noise[at]
