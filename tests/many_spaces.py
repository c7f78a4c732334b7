"""Tiny environments of many kinds, named by the path of their class."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 12
FORMS: dict[str, spaces.Space[Any]] = {
    "hwc": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
    "chw": spaces.Box(0, 255, (3, SIDE, SIDE), np.uint8),
    "grey": spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
    "float": spaces.Box(0, 1, (SIDE, SIDE, 1), np.float32),
    "large": spaces.Box(0, 255, (40, 44, 3), np.uint8),
    "binary": spaces.MultiBinary((2, SIDE, SIDE)),
}
FORMS |= {
    "dict": spaces.Dict(eye=FORMS["hwc"], turned=spaces.Box(-1, 1, (1,), np.float32)),
    "bytes": spaces.Dict(eye=FORMS["hwc"], turned=spaces.Discrete(2)),
    "tuple": spaces.Tuple((FORMS["grey"], spaces.Discrete(2), FORMS["chw"])),
}


class Lookout(gymnasium.Env[Any, int]):
    """A bright square is in one of four corners: name it, +1. If `turned` is set, the opposite corner is right. Each
    episode has 8 steps; chance alone gives 2.
    """

    action_space = spaces.Discrete(4)

    def __init__(self, form: str = "dict") -> None:
        self.observation_space = FORMS[form]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = float(action == (3 - self._corner if self._turned else self._corner))
        return self._observe(), reward, self._steps == 8, False, {}

    def _observe(self) -> Any:
        space = self.observation_space
        self._corner = int(self.np_random.integers(4))
        self._turned = int(self.np_random.integers(2)) if isinstance(space, spaces.Dict | spaces.Tuple) else 0
        if isinstance(space, spaces.Dict):
            as_box = isinstance(space["turned"], spaces.Box)
            turned: Any = np.full(1, 2.0 * self._turned - 1.0, np.float32) if as_box else self._turned
            return {"eye": self._picture(space["eye"]), "turned": turned}
        if isinstance(space, spaces.Tuple):
            return self._picture(space[0]), self._turned, self._picture(space[2])
        return self._picture(space)

    def _picture(self, space: Any) -> np.ndarray:
        picture = np.zeros(space.shape, space.dtype)
        sides = [at for at, side in enumerate(space.shape) if side > 3]
        place = [slice(None)] * picture.ndim
        for bit, at in enumerate(sides):
            half = space.shape[at] // 2
            place[at] = slice(half + 1, None) if self._corner >> bit & 1 else slice(0, half - 1)
        picture[tuple(place)] = getattr(space, "high", np.ones(1)).max()
        return picture


class Switches(gymnasium.Env[np.ndarray, np.ndarray]):
    """Shows which position each switch should have; +1 for the fraction that is set so. 8 steps; chance gives about 3.

    `form` is the action's: multi (with other starts than 0), binary, or table (two rows).
    """

    FORMS: dict[str, spaces.Space[Any]] = {  # noqa: RUF012
        "multi": spaces.MultiDiscrete([3, 2, 2, 4], start=[1, 0, 0, -1]),
        "binary": spaces.MultiBinary(4),
        "table": spaces.MultiBinary((2, 2)),
    }

    def __init__(self, form: str = "multi") -> None:
        self.action_space = self.FORMS[form]
        nvec = getattr(self.action_space, "nvec", np.full(self.action_space.shape or (), 2))
        self._nvec, self._start = nvec.ravel(), np.ravel(getattr(self.action_space, "start", 0))
        self.observation_space = spaces.Box(0, 1, (int(self._nvec.sum()),), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        reward = float(np.mean(action.ravel() - self._start == self._goal))
        return self._observe(), reward, self._steps == 8, False, {}

    def _observe(self) -> np.ndarray:
        self._goal = self.np_random.integers(self._nvec)
        return np.concatenate([np.eye(n, dtype=np.float32)[at] for n, at in zip(self._nvec, self._goal, strict=True)])
