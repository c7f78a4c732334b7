"""Observations of several parts (Dict, Tuple) as one row of numbers that says where each part is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten

from shoal.types import Array, ObsPart

Space = spaces.Space[Any]
Path = tuple[Any, ...]


class PackedBox(spaces.Box):
    """The space of packed observations: of bytes if there is an image of bytes among them, else of float32.

    In a row of bytes, a float32 takes four: as floats, the image would take four times the memory. An image that is
    alone keeps its shape.

    Attributes:
        parts: what is where.
    """

    def __init__(self, space: Space) -> None:
        self._leaves = _leaves(space)
        in_bytes = any(_part(*leaf).axes and _fits_bytes(leaf[1]) for leaf in self._leaves)
        parts: list[ObsPart] = []
        at = 0
        for path, one in self._leaves:
            parts.append(replace(_part(path, one), start=at, width=4 if in_bytes and not _fits_bytes(one) else 1))
            at += parts[-1].stored
        self.parts = tuple(parts)
        low, high, dtype = (0, 255, np.uint8) if in_bytes else (-np.inf, np.inf, np.float32)
        super().__init__(low, high, (at,) if self._leaves[0][0] else parts[0].shape, dtype)

    def pack(self, observation: Any) -> Array:
        """One observation as it is stored.

        Raises:
            ValueError: a part has another number of values, or one that is not finite.
        """
        row: Array = np.empty(sum(part.stored for part in self.parts), self.dtype)
        for part, (path, space) in zip(self.parts, self._leaves, strict=True):
            value = observation
            for key in path:
                value = value[key]
            numbers = np.asarray(flatten(space, value))
            if numbers.size != part.size:
                raise ValueError(f"the observation's part {part.name!r} has not the shape {part.shape}")
            if part.width > 1:
                numbers = np.asarray(numbers, np.float32)
                if not np.isfinite(numbers).all():
                    raise ValueError(f"{numbers[~np.isfinite(numbers)][0]} in the observation's part {part.name!r}")
                numbers = numbers.view(np.uint8)
            row[part.start : part.start + part.stored] = numbers
        return row.reshape(self.shape)


class PackObservation(gymnasium.ObservationWrapper[Array, Any, Any]):
    """Each observation packed."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = self._packed = PackedBox(env.observation_space)

    def observation(self, observation: Any) -> Array:
        return self._packed.pack(observation)


def inputs_of(observation: spaces.Box) -> tuple[ObsPart, ...]:
    """What a network sees of observations that are arrays already: the parts of a packed one, or the whole."""
    return observation.parts if isinstance(observation, PackedBox) else (_part((), observation),)


def needs_packing(space: Space) -> bool:
    """Whether there is an image among several parts: flattened into one vector it would train slowly and badly."""
    several = space.is_np_flattenable and not isinstance(space, spaces.Box)
    return several and any(_part(*leaf).axes for leaf in _leaves(space))


def _leaves(space: Space, path: Path = ()) -> list[tuple[Path, Space]]:
    """The spaces inside, each with the keys that lead to it, in the order of Gymnasium's `flatten`."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [(path, space)]
    inner: Any = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return [leaf for key, one in inner for leaf in _leaves(one, (*path, key))]


def _part(path: Path, space: Space) -> ObsPart:
    name = ".".join(map(str, path))
    if isinstance(space, spaces.Box) and space.low.size:
        return ObsPart.of(space.shape, space.dtype.name, (float(space.low.min()), float(space.high.max())), name)
    if isinstance(space, spaces.MultiBinary):
        return ObsPart.of(tuple(space.shape), "int8", (0.0, 1.0), name)
    return ObsPart(name, (flatdim(space),))


def _fits_bytes(space: Space) -> bool:
    if isinstance(space, spaces.Box):
        return space.dtype in (np.uint8, np.bool_)
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)  # ones and zeros
