"""Exploration of discrete actions: a ladder of epsilons, and epsilon-greedy over all lanes at once (numpy)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def epsilon_ladder(total: int, base: float = 0.4, exponent: float = 7.0) -> npt.NDArray[np.float64]:
    """Epsilons of many explorers, base^(1 + exponent * i / (N - 1)), constant for the whole training.

    "Distributed Prioritized Experience Replay", https://arxiv.org/abs/1803.00933.

    Args:
        total: N, how many explorers there are (actors times lanes); a single one uses `base`.
        base: the largest epsilon, in (0, 1].
        exponent: how steep the ladder is; at least 0.

    Returns:
        [total] float64 epsilons in (0, 1], from the largest to the smallest.
    """
    if total < 1:
        raise ValueError(f"total must be at least 1, got {total}.")
    if not 0 < base <= 1:
        raise ValueError(f"base must be in (0, 1], got {base}.")
    if not exponent >= 0:
        raise ValueError(f"exponent must be at least 0, got {exponent}.")
    ladder: npt.NDArray[np.float64] = base ** (1.0 + exponent * np.arange(total) / max(total - 1, 1))
    return ladder


def epsilon_greedy(
    greedy_actions: npt.NDArray[np.integer[Any]],
    epsilon: npt.NDArray[np.floating[Any]],
    num_actions: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.integer[Any]]:
    """Replaces each lane's greedy action by a uniformly random one with that lane's probability epsilon.

    The random action may be the greedy one, whose probability is 1 - epsilon + epsilon / num_actions. The generator is
    asked for the same numbers whatever the outcome, so that no lane's outcome changes another's.

    "Reinforcement Learning: An Introduction", 2nd ed., section 2.2.

    Args:
        greedy_actions: [N] integers.
        epsilon: [N] probabilities.
        num_actions: number of actions, at least 1.
        rng: numpy generator, advanced in place.

    Returns:
        [N] actions, of the dtype of `greedy_actions`; a new array.
    """
    if greedy_actions.ndim != 1 or epsilon.shape != greedy_actions.shape:
        raise ValueError(
            f"greedy_actions and epsilon must be [N], got shapes {greedy_actions.shape} and {epsilon.shape}."
        )
    if not np.issubdtype(greedy_actions.dtype, np.integer):
        raise TypeError(f"greedy_actions must be integers, got {greedy_actions.dtype} of {greedy_actions.shape}.")
    if num_actions < 1:
        raise ValueError(f"num_actions must be at least 1, got {num_actions}.")
    lanes = greedy_actions.shape[0]
    explore = rng.random(lanes) < epsilon
    random_actions = rng.integers(num_actions, size=lanes).astype(greedy_actions.dtype, copy=False)
    return np.where(explore, random_actions, greedy_actions)
