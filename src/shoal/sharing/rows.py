"""Observations and actions of Stable-Baselines3 as rows of a shard.

A dict observation is packed into one row of bytes. So it is one column like any other, written and read with one copy.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.errors import EnvError
from shoal.replay import Column, Schema
from shoal.sharing.description import Description, describe_space
from shoal.types import Array

ALIGN = 8
"""Parts of a packed observation start at multiples of this many bytes, so that they can be read in place."""


class Packing:
    """The layout of a dict observation in its row."""

    def __init__(self, space: spaces.Dict, shapes: dict[str, tuple[int, ...]]) -> None:
        """Args:
        space: the observation space.
        shapes: shape of each part as it is stored.
        """
        self.nbytes = 0
        placed: dict[str, tuple[int, tuple[int, ...], Any]] = {}
        for key, shape in sorted(shapes.items()):  # the order of a space's keys means nothing
            dtype = np.dtype(space.spaces[key].dtype)
            placed[key] = (self.nbytes, shape, dtype)
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            self.nbytes += -(-size // ALIGN) * ALIGN
        self.fields = {key: placed[key] for key in shapes}

    def pack(self, obs: dict[str, Array], out: Array) -> Array:
        """Fills [N, nbytes] rows."""
        for key, part in self.unpack(out).items():
            part[...] = np.asarray(obs[key]).reshape(part.shape)
        return out

    def unpack(self, rows: Array) -> dict[str, Array]:
        """The parts of [..., nbytes] rows, in place."""
        parts = {}
        for key, (start, shape, dtype) in self.fields.items():
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            flat = rows[..., start : start + size].view(dtype)
            parts[key] = flat.reshape(*rows.shape[:-1], *shape)
        return parts


Kind = tuple[Any, tuple[int, ...]]
"""A dtype and a shape."""


def transition_schema(obs: Kind, action: Kind, *, with_next: bool) -> Schema:
    """The columns of a run that hands over whole transitions.

    Args:
        obs: a stored observation.
        action: a stored action.
        with_next: whether each row holds the next observation itself, rather than the row after it.
    """
    kinds = {"obs": obs, "action": action, "reward": (np.float32, ()), "terminated": (np.bool_, ())}
    kinds |= {"truncated": (np.bool_, ()), "boundary": (np.uint8, ())}
    if with_next:
        kinds["next_obs"] = obs
    return Schema(tuple(Column(name, np.dtype(dtype).name, shape) for name, (dtype, shape) in kinds.items()))


def describe_sb3(
    env_id: str, observation: gymnasium.Space[Any], action: gymnasium.Space[Any], *, time_outs: bool = True
) -> Description:
    """What the rows of a Stable-Baselines3 run mean: its off-policy algorithms store continuous actions in [-1, 1]."""
    scaling = "unit" if isinstance(action, spaces.Box) else "env"
    told = "told apart" if time_outs else "as ends"
    return Description(env_id, describe_space(observation), describe_space(action), scaling, time_outs=told)


def require_finite(run_id: str, row: int, obs: Any, next_obs: Any, action: Array, reward: Array) -> None:
    """Refuses a step with NaN or an infinity: every run that draws it would break."""
    if _finite(obs) and _finite(next_obs) and _finite(action) and _finite(reward):
        return
    for what, values in (("observation", obs), ("observation", next_obs), ("action", action), ("reward", reward)):
        for array in values.values() if isinstance(values, dict) else (values,):
            if not _finite(array):
                wrong = array[~np.isfinite(array)][0]
                raise EnvError(
                    f"The environment of {run_id or 'this run'} has {wrong} in its {what} in row {row}: "
                    "nobody may learn from it."
                )


def _finite(values: Any) -> bool:
    if isinstance(values, dict):
        return all(map(_finite, values.values()))
    # A list is several times as fast as numpy for few numbers.
    if values.dtype.kind != "f" or (values.size <= _FEW and math.isfinite(sum(values.ravel().tolist()))):
        return True
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)


_FEW = 32
