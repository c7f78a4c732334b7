"""Observations of several parts (Dict, Tuple) as one row of numbers that says where each part is."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim, flatten

from shoal.envs.settings import EnvSettings
from shoal.errors import ConfigError
from shoal.types import Array, ObsPart

Space = spaces.Space[Any]
Path = tuple[Any, ...]


class PackedBox(spaces.Box):
    """The space of packed observations: of bytes if there is an image of bytes among them, or if several agents observe
    bytes; else of float32.

    In a row of bytes, a float32 takes four: as floats, the image would take four times the memory. An image that is
    alone keeps its shape.

    Attributes:
        parts: what is where.
        agents: how many agents observe this; 0: it is not a team's.
    """

    def __init__(self, space: Space) -> None:
        self._leaves = _leaves(space)
        self.agents = count_agents(space)
        looked_at = [_team_part(*leaf) if self.agents else _part(*leaf) for leaf in self._leaves]
        images = [part.axes or (self.agents and part.name == "agents") for part in looked_at]
        in_bytes = any(_fits_bytes(one) for image, (_, one) in zip(images, self._leaves, strict=True) if image)
        parts: list[ObsPart] = []
        at = 0
        for part, (_, one) in zip(looked_at, self._leaves, strict=True):
            parts.append(replace(part, start=at, width=4 if in_bytes and not _fits_bytes(one) else 1))
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
    """Whether there is an image among several parts: flattened into one vector it would train slowly and badly. And
    whether there are several agents, whose algorithms look for the parts.
    """
    if count_agents(space):
        return True
    return not isinstance(space, spaces.Box) and any(_part(*leaf).axes for leaf in _leaves(space))


def unreadable(space: Space) -> list[tuple[Path, Space]]:
    """The parts that no network can read, such as the words of a mission."""
    return [leaf for leaf in _leaves(space) if not _is_numbers(leaf[1])]


def refuse_unreadable(settings: EnvSettings, space: Space) -> None:
    """Refuses observations with such a part.

    Raises:
        ConfigError: it names the part, and the wrapper that leaves it out.
    """
    if not (found := unreadable(space)):
        return
    remedy = "put a wrapper around it that makes numbers of that (env.wrappers)"
    without = {path[:1] for path, _ in found}
    rest = [key for key in space if (key,) not in without] if isinstance(space, spaces.Dict) else []
    if all(len(path) == 1 for path, _ in found) and rest and all(isinstance(key, str) for key in rest):
        last = {"name": "FilterObservation", "args": {"filter_keys": rest}}
        wrappers = json.dumps([*(one.model_dump() for one in settings.wrappers), last], default=str)
        remedy = f"leave that out with {shlex.quote(f'env.wrappers={wrappers}')}, or {remedy}"
    why = f"its observations cannot become an array, because of {named(*found[0])}"
    raise ConfigError(f"Environment {settings.id!r}: {why}: {remedy}.")


def named(path: Path, space: Space) -> str:
    """A part of an observation, for a message."""
    return f"part {'.'.join(map(str, path))!r}, {type(space).__name__}" if path else type(space).__name__


def _is_numbers(space: Space) -> bool:
    try:
        return bool(space.is_np_flattenable) and not isinstance(space, spaces.Text)
    except NotImplementedError:  # a space of the environment's own, such as Minigrid's of missions
        return False


def count_agents(space: Space) -> int:
    """How many agents observe this space, if it is a team's (see `team.py`); else 0."""
    if not isinstance(space, spaces.Dict) or not {"agents", "mask", "reward"} <= set(space):
        return 0
    agents, mask, reward = (one.shape or () for one in (space["agents"], space["mask"], space["reward"]))
    return reward[0] if len(reward) == 1 and mask == reward * 2 and agents[:1] == reward else 0


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


def _team_part(path: Path, space: Space) -> ObsPart:
    """A part of what a team observes: images only where each agent sees one. A mask of many agents is none."""
    assert isinstance(space, spaces.Box)
    part = ObsPart(path[0], space.shape)
    if part.name != "agents":
        return part
    one = _part((), spaces.Box(space.low[0], space.high[0], dtype=space.dtype.type))
    return replace(part, axes=f"S{one.axes}" if one.axes else "", scale=one.scale)


def _fits_bytes(space: Space) -> bool:
    if isinstance(space, spaces.Box):
        return space.dtype in (np.uint8, np.bool_)
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)  # ones and zeros
