"""An environment that breaks after some steps, for tests of what the user is told then."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np


class Broken(gymnasium.Env[Any, Any]):
    """Raises in its 60th step."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 60:
            raise RuntimeError("the pole fell off")
        return np.zeros(2, np.float32), 1.0, False, self._steps % 10 == 0, {}


class Unbuildable(Broken):
    """Can be made by the driver, but not in a process of Ray's."""

    def __init__(self) -> None:
        if "default_worker" in sys.argv[0]:
            raise OSError("no such pole on this node")
        super().__init__()


gymnasium.register("Unbuildable-v0", Unbuildable)
gymnasium.register("Broken-v0", Broken)
