"""From Gymnasium's spaces to the arrays of a policy, and from a policy's actions to the environment's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.envs.parts import PackedBox, inputs_of
from shoal.envs.registry import find_registration, is_atari
from shoal.envs.settings import EnvSettings
from shoal.errors import ConfigError, EnvError
from shoal.types import Array, EnvSpec

Space = spaces.Space[Any]


def policy_dtype(space: spaces.Box) -> np.dtype[Any]:
    """uint8 and float32 stay, booleans become uint8; everything else (float64, integers) becomes float32."""
    dtype = np.dtype(np.uint8) if space.dtype == np.bool_ else space.dtype
    return dtype if dtype in (np.uint8, np.float32) else np.dtype(np.float32)


def describe(
    settings: EnvSettings, observation: Space, action: Space, metadata: Mapping[str, Any] | None = None
) -> EnvSpec:
    """The EnvSpec of an environment with these (already flattened) spaces.

    Args:
        settings: which environment.
        observation, action: its spaces.
        metadata: its `metadata`. An environment whose `reset` takes a level of difficulty, such as
            `options={"level": {"size": 20}}`, names the numbers of a level there: `"levels": ["size"]`.

    Raises:
        ConfigError: no algorithm can use one of the spaces.
    """
    env_id = settings.id
    if not isinstance(observation, spaces.Box):
        raise ConfigError(f"Environment {env_id!r}: the observation space {observation} cannot become an array.")
    num_actions, low, high, shape = 0, (), (), tuple(action.shape or ())
    nvec = tuple(int(number) for number in _options(action).ravel())
    if isinstance(action, spaces.Discrete):
        num_actions = int(action.n)
    elif nvec:
        shape = (len(nvec),)
    elif isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating):
        low, high = tuple(action.low.ravel().tolist()), tuple(action.high.ravel().tolist())
    else:
        raise ConfigError(
            f"Environment {env_id!r}: the action space {action} is not supported; Discrete, MultiDiscrete, MultiBinary "
            "and Box of floats are."
        )
    inputs = inputs_of(observation)
    agents = observation.agents if isinstance(observation, PackedBox) else 0
    return EnvSpec(
        env_id=env_id,
        obs_shape=tuple(observation.shape),
        obs_dtype=policy_dtype(observation).name,
        frame_stack=settings.frame_stack if is_atari(env_id) else 1,
        num_actions=num_actions,
        action_shape=shape,
        action_low=low,
        action_high=high,
        reward_threshold=find_registration(env_id).reward_threshold,
        unit_observations=bool((observation.low >= -1).all() and (observation.high <= 1).all()),
        binary_observations=_binary(observation),
        action_nvec=nvec,
        obs_parts=inputs if agents or any(part.axes for part in inputs) else (),
        agents=agents,
        levels=tuple((metadata or {}).get("levels", ())),
    )


def _binary(observation: spaces.Box) -> bool:
    whole = observation.dtype == np.bool_ or np.issubdtype(observation.dtype, np.integer)
    return bool(whole and observation.low.size and (observation.low == 0).all() and (observation.high == 1).all())


def _options(action: Space) -> Array:
    """How many options each of several choices has; empty for other spaces."""
    if isinstance(action, spaces.MultiBinary):
        return np.full(action.shape, 2, np.uint64)
    return np.asarray(getattr(action, "nvec", ()), np.uint64)  # MultiDiscrete's


class ActionMap:
    """From a policy's actions to the environment's: checks choices, adds `start`, and reshapes several; clips and casts
    Box.
    """

    def __init__(self, space: Space) -> None:
        """`space` is that of one lane: Discrete, MultiDiscrete, MultiBinary or Box."""
        self._bounds: tuple[Array, Array] | None = None
        self._dtype: np.dtype[Any] = np.dtype(np.int64)
        if isinstance(space, spaces.Box):
            self._dtype, self._bounds = space.dtype, (space.low, space.high)
        elif isinstance(space, spaces.Discrete):
            self._size, self._start = int(space.n), int(space.start)
        self._several = space if _options(space).size else None

    def __call__(self, actions: Array) -> Array:
        """Takes [N, ...] or one action; returns `actions` itself when nothing changes.

        Raises:
            EnvError: a discrete action is out of range.
        """
        if self._bounds is not None:
            low, high = self._bounds
            clipped: Array = np.minimum(np.maximum(actions, low), high)
            return clipped.astype(self._dtype, copy=False)
        if actions.dtype != self._dtype:
            actions = actions.astype(self._dtype)
        if self._several is not None:
            return self._choices(actions, self._several)
        # As unsigned, a negative action is huge: one pass checks both ends. ale-py would play a no-op instead.
        if actions.view(np.uint64).max() >= self._size:
            raise EnvError(f"An action of {actions.tolist()} is outside 0..{self._size - 1}.")
        return actions + self._start if self._start else actions

    def _choices(self, actions: Array, space: Space) -> Array:
        options = _options(space)
        if (actions.view(np.uint64) >= options.ravel()).any():
            raise EnvError(f"An action of {actions.tolist()} is outside 0..{(options.ravel() - 1).tolist()}.")
        played = actions.reshape(*actions.shape[:-1], *options.shape) + getattr(space, "start", 0)
        return played.astype(space.dtype)


class _Checked(spaces.MultiDiscrete):
    def contains(self, x: Any) -> bool:
        return True


def skip_second_check(vector: Any) -> None:
    """Turns off a vector environment's own check of discrete actions, a sixth of CartPole's step: ActionMap checks."""
    space = vector.action_space
    if type(space) is spaces.MultiDiscrete:
        vector.action_space = _Checked(space.nvec, dtype=space.dtype.type, start=space.start)
