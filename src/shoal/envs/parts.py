"""Observations of several parts (Dict, Tuple) as one row of numbers that says where each part is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten

from shoal.types import Array, ObsPart

Space = spaces.Space[Any]


def parts_of(space: Space, name: str = "", start: int = 0) -> list[ObsPart]:
    """The parts of an observation, in the order of Gymnasium's `flatten`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: list[ObsPart] = []
        for key, one in _inner(space):
            begin = parts[-1].start + parts[-1].size if parts else start
            parts += parts_of(one, f"{name}.{key}" if name else str(key), begin)
        return parts
    if isinstance(space, spaces.Box) and space.low.size:
        bounds = float(space.low.min()), float(space.high.max())
        return [ObsPart.of(space.shape, space.dtype.name, bounds, name, start)]
    if isinstance(space, spaces.MultiBinary):
        return [ObsPart.of(tuple(space.shape), "int8", (0.0, 1.0), name, start)]
    return [ObsPart(name, (flatdim(space),), start)]


class PackedBox(spaces.Box):
    """The space of a row; `parts` says what is where. An image that is alone keeps its shape."""

    def __init__(self, space: Space) -> None:
        self.parts = tuple(parts_of(space))
        whole = len(self.parts) == 1 and not self.parts[0].name
        shape = self.parts[0].shape if whole else (sum(part.size for part in self.parts),)
        low, high, dtype = (0, 255, np.uint8) if _fits_bytes(space) else (-np.inf, np.inf, np.float32)
        super().__init__(low, high, shape, dtype)


class PackObservation(gymnasium.ObservationWrapper[Array, Any, Any]):
    """Each observation as one row: bytes if all parts fit into them, else float32."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = PackedBox(env.observation_space)

    def observation(self, observation: Any) -> Array:
        space = self.observation_space
        row: Array = np.empty(space.shape or (), space.dtype)
        if len(_write(self.env.observation_space, observation, row.reshape(-1))):
            raise ValueError(f"observation of fewer than the {row.size} numbers of its space")
        return row


def needs_packing(space: Space) -> bool:
    """Whether there is an image among several parts: flattened into one vector it would train slowly and badly."""
    several = space.is_np_flattenable and not isinstance(space, spaces.Box)
    return several and any(part.axes for part in parts_of(space))


def _write(space: Space, value: Any, row: Array) -> Array:
    """Writes one value to the row's beginning and returns the rest of the row."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, one in _inner(space):
            row = _write(one, value[key], row)
        return row
    flat = flatten(space, value)
    row[: len(flat)] = flat
    return row[len(flat) :]


def _inner(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, Space]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _fits_bytes(space: Space) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return all(_fits_bytes(one) for _, one in _inner(space))
    if isinstance(space, spaces.Box):
        return space.dtype in (np.uint8, np.bool_)
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)  # ones and zeros
