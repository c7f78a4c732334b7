"""Soundness: checks that rows of other runs can be learned from. One NaN would break the run that draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shoal.types import Array, Transition

Limits = tuple[Any, Any] | None
"""The least and the largest of whole numbers; None for numbers that only have to be finite."""
_WORDS = {"obs": "an observation", "next_obs": "an observation", "action": "an action", "reward": "a reward"}


def limits_of(space: gymnasium.Space[Any]) -> Limits:
    """The range of a space of whole numbers: networks have no inputs or outputs for other values."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.reshape(-1), (space.start + space.nvec - 1).reshape(-1)
    return (0, 1) if isinstance(space, spaces.MultiBinary) else None


class Soundness:
    """Checks the rows of a batch that came from others."""

    def __init__(
        self,
        action: Limits = None,
        obs: Mapping[str, Limits] | None = None,
        unpack: Callable[[Array], Mapping[str, Array]] | None = None,
    ) -> None:
        """Args:
        action: limits of actions.
        obs: limits of observations, by part; the part "" is the whole.
        unpack: from stored observations to their parts; None when there is only one.
        """
        self._action, self._obs, self._unpack = action, obs or {"": None}, unpack

    @staticmethod
    def of(
        observation: gymnasium.Space[Any],
        action: gymnasium.Space[Any],
        unpack: Callable[[Array], Mapping[str, Array]] | None,
    ) -> Soundness:
        """For rows of these spaces; `unpack` is for a dict of observations."""
        parts: Mapping[str, gymnasium.Space[Any]] = {"": observation}
        if isinstance(observation, spaces.Dict):
            parts = observation.spaces
        return Soundness(limits_of(action), {key: limits_of(one) for key, one in parts.items()}, unpack)

    def faults(self, batch: Transition, places: npt.NDArray[np.int64]) -> dict[int, str]:
        """Which of some places of a batch are unusable, and what each of them holds."""
        found: dict[int, str] = {}
        for name, words in _WORDS.items():
            for values, limits in self._parts(name, getattr(batch, name)):
                if values.dtype.kind != "f" and limits is None:
                    continue  # mostly images: every byte is valid
                some = values[places].reshape(len(places), -1)
                fine = np.isfinite(some) if limits is None else (some >= limits[0]) & (some <= limits[1])
                if np.count_nonzero(fine) == fine.size:
                    continue
                for row in np.flatnonzero(~fine.all(axis=1)).tolist():
                    found.setdefault(int(places[row]), f"it wrote {some[row][~fine[row]][0]} in {words}")
        return found

    def _parts(self, name: str, values: Array) -> list[tuple[Array, Limits]]:
        if name not in ("obs", "next_obs"):
            return [(values, self._action if name == "action" else None)]
        if self._unpack is None:
            return [(values, self._obs[""])]
        parts = self._unpack(values)
        return [(parts[key], limits) for key, limits in self._obs.items()]
