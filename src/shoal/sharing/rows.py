"""Observations and actions of Stable-Baselines3 as rows of a shard.

A dict observation is packed into one row of bytes, so that it is one column like any other: one copy to write, one
stretch to read.
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
"""Fields of a packed observation begin at multiples of this, so that their values can be read in place."""


class Packing:
    """Where the parts of a dict observation lie in its row."""

    def __init__(self, space: spaces.Dict, shapes: dict[str, tuple[int, ...]]) -> None:
        """Args:
        space: the observation space.
        shapes: shape of each part as it is stored.
        """
        self.nbytes = 0
        placed: dict[str, tuple[int, tuple[int, ...], Any]] = {}
        for key, shape in sorted(shapes.items()):  # as they are described: the order of a space means nothing
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


def transition_schema(
    observation: gymnasium.Space[Any],
    obs_shape: tuple[int, ...],
    action: gymnasium.Space[Any],
    action_dim: int,
    action_dtype: Any,
    packing: Packing | None,
    *,
    with_next: bool,
) -> Schema:
    """The columns of a run that hands over whole transitions.

    Args:
        observation: its observation space.
        obs_shape: shape of a stored observation.
        action: its action space.
        action_dim: numbers in an action.
        action_dtype: their dtype.
        packing: of a dict observation.
        with_next: whether each row holds the next observation itself, rather than the row after it.
    """
    if packing is not None:
        obs = Column("obs", "uint8", (packing.nbytes,))
    else:
        obs = Column("obs", np.dtype(observation.dtype).name, obs_shape)
    # One number is stored as one number, as Shoal's own runs do it.
    shape = () if isinstance(action, spaces.Discrete) else (action_dim,)
    columns = [obs, Column("action", np.dtype(action_dtype).name, shape), Column("reward", "float32")]
    columns += [Column("terminated", "bool"), Column("truncated", "bool"), Column("boundary", "uint8")]
    if with_next:
        columns.append(Column("next_obs", obs.dtype, obs.shape))
    return Schema(tuple(columns))


def describe_sb3(
    env_id: str, observation: gymnasium.Space[Any], action: gymnasium.Space[Any], *, time_outs: bool = True
) -> Description:
    """What the rows of a Stable-Baselines3 run mean: its off-policy algorithms store continuous actions in [-1, 1]."""
    scaling = "unit" if isinstance(action, spaces.Box) else "env"
    told = "told apart" if time_outs else "as ends"
    return Description(env_id, describe_space(observation), describe_space(action), scaling, time_outs=told)


def require_finite(run_id: str, row: int, obs: Any, next_obs: Any, action: Array, reward: Array) -> None:
    """Refuses a step that would ruin every run that draws it."""
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
    # Few numbers by way of a list: numpy's check takes several times as long for them.
    if values.dtype.kind != "f" or (values.size <= _FEW and math.isfinite(sum(values.ravel().tolist()))):
        return True
    return bool(np.count_nonzero(np.isfinite(values)) == values.size)


_FEW = 32
