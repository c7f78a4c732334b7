"""Small environments that cannot be solved without memory: to see whether an agent remembers.

`registry.py` registers them as `shoal/TMaze-v0` and `shoal/RepeatPrevious-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shoal.errors import ConfigError

Floats = npt.NDArray[np.float32]
Step = tuple[Floats, float, bool, bool, dict[str, Any]]
LEFT, RIGHT, FORWARD = 0, 1, 2


class TMaze(gymnasium.Env[Floats, np.int64]):
    """See a sign, walk down a corridor, and turn to the side of the sign: +1 for the right side, -1 for the other.

    Observation: sign to the left, sign to the right (both 0 after the start), in the corridor, at the junction. Running
    into a wall (turning in the corridor, walking on at the junction) costs 0.1. Without memory the best mean return is
    0. After "Reinforcement Learning with Long Short-Term Memory", Bakker 2001.
    """

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 10) -> None:
        """`length` is the number of steps from the sign to the junction; an episode is cut after ten times as many."""
        if length < 1:
            raise ConfigError(f"env.kwargs.length = {length} cannot be used: a corridor has at least 1 cell.")
        self._length = length
        self._at, self._steps, self._side = 0, 0, LEFT

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._steps, self._side = 0, 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: int | np.int64) -> Step:
        self._steps += 1
        at_junction, turns = self._at == self._length, action != FORWARD
        turned = at_junction and turns
        self._at += not at_junction and not turns
        reward = (1.0 if action == self._side else -1.0) if turned else -0.1 * (at_junction or turns)
        return self._observe(), reward, turned, not turned and self._steps >= 10 * self._length, {}

    def _observe(self) -> Floats:
        sign = [float(self._at == 0 and self._side == side) for side in (LEFT, RIGHT)]
        return np.array([*sign, self._at < self._length, self._at == self._length], np.float32)


class RepeatPrevious(gymnasium.Env[Floats, np.int64]):
    """Name the symbol that was shown `delay` steps ago: +1 if right, -1 if wrong, nothing in the first `delay` steps.

    Observation: the symbol of this step, one-hot. Without memory the best mean return is below 0 from 3 symbols on.
    "POPGym: Benchmarking Partially Observable Reinforcement Learning", https://arxiv.org/abs/2303.01859.
    """

    def __init__(self, delay: int = 4, symbols: int = 4, steps: int = 64) -> None:
        """`steps` is the length of an episode."""
        if delay < 1 or symbols < 2 or steps <= delay:
            given = f"delay = {delay}, symbols = {symbols}, steps = {steps}"
            raise ConfigError(f"env.kwargs: {given} cannot be used: at least 1, at least 2, and more than delay.")
        self.observation_space = spaces.Box(0.0, 1.0, (symbols,), np.float32)
        self.action_space = spaces.Discrete(symbols)
        self._delay, self._symbols, self._length = delay, symbols, steps
        self._shown = np.zeros(steps + 1, np.int64)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown, self._steps = self.np_random.integers(self._symbols, size=self._length + 1), 0
        return self._observe(), {}

    def step(self, action: int | np.int64) -> Step:
        asked = self._steps - self._delay
        reward = 0.0 if asked < 0 else 1.0 if action == self._shown[asked] else -1.0
        self._steps += 1
        return self._observe(), reward, self._steps == self._length, False, {}

    def _observe(self) -> Floats:
        return np.asarray(np.arange(self._symbols) == self._shown[self._steps], np.float32)
