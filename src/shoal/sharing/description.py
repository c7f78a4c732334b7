"""Description: what the rows of a buffer mean. Two buffers share only if their descriptions are alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from shoal.errors import ConfigError


@dataclass(frozen=True)
class Description:
    """All that must be alike for two runs to learn from each other's rows."""

    env_id: str
    """Empty when nobody said: then only the spaces are compared."""
    observation: str
    action: str
    action_scaling: str
    """`unit`: continuous actions are stored scaled to [-1, 1], as Stable-Baselines3 does. `env`: as the environment
    takes them. Discrete actions are always `env`.
    """
    reward: str = "raw"
    """Or how it was changed before it was stored, such as `clipped to 1`."""
    time_outs: str = "told apart"
    """Or `as ends`: then an episode that ran out of time looks like one that failed."""

    def difference(self, other: Description) -> str:
        """Why rows of `other` cannot be used here; empty when they can."""
        for name, what in _COMPARED:
            here, there = getattr(self, name), getattr(other, name)
            if here != there and not (name == "env_id" and not (here and there)):
                return f"its {what} is {one_line(there)}, here it is {here}"
        return ""


def environment_id(env_id: str, unusual: Mapping[str, Any]) -> str:
    """An environment's id with its arguments and unusual settings: they make it another environment."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in sorted(unusual.items()))
    return f"{env_id}({arguments})" if arguments else env_id


def one_line(text: object) -> str:
    """Text that others chose, short and printable: it ends up on terminals and in logs."""
    return "".join(one if one.isprintable() else "?" for one in " ".join(str(text).split()))[:300]


_COMPARED = (
    ("env_id", "environment"),
    ("observation", "observation space"),
    ("action", "action space"),
    ("action_scaling", "scaling of actions"),
    ("reward", "reward"),
    ("time_outs", "handling of time-outs"),
)


def describe_space(space: gymnasium.Space[Any]) -> str:
    """A space in words: equal words, equal meaning of a stored value."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {describe_space(one)}" for key, one in sorted(space.spaces.items())) + "}"
    if isinstance(space, spaces.Discrete):
        start = f", start={space.start}" if space.start else ""
        return f"Discrete({space.n}{start}{_unusual(space)})"
    if isinstance(space, spaces.MultiDiscrete):
        start = f", start={space.start.tolist()}" if np.any(space.start) else ""
        return f"MultiDiscrete({space.nvec.tolist()}{start}{_unusual(space)})"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary({space.n})"
    if isinstance(space, spaces.Box):
        return f"Box({_bounds(space)}, {list(space.shape)}, {space.dtype})"
    raise ConfigError(f"A space of type {type(space).__name__} cannot be shared; use Box, Discrete or Dict.")


def _unusual(space: gymnasium.Space[Any]) -> str:
    """The dtype, where it is not the one such spaces have."""
    return "" if space.dtype == np.int64 else f", {space.dtype}"


def _bounds(space: gymnasium.spaces.Box) -> str:
    """Both bounds, short where all entries are alike, else by a checksum."""
    words = []
    for bound in (space.low, space.high):
        values = np.unique(bound)
        if len(values) == 1:
            words.append(f"{float(values[0]):g}")
        elif bound.size <= 8:
            words.append("[" + " ".join(f"{float(value):g}" for value in bound.reshape(-1)) + "]")
        else:
            words.append("#" + hashlib.sha256(np.ascontiguousarray(bound).tobytes()).hexdigest()[:8])
    return ", ".join(words)
