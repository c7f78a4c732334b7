"""Trains on a custom environment: a corridor with a reward at its end.

The environment is registered in a module and named `module:Id`, so that every process of a run can create it.

    python examples/custom_env.py
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import shoal


class Corridor(gymnasium.Env):
    """Walk right to the end. Each step costs 0.01, the end gives 1."""

    def __init__(self, length: int = 8) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._length, self._place = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = int(self.np_random.integers(self._length // 2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action else -1))
        arrived = self._place == self._length - 1
        return self._observe(), 1.0 if arrived else -0.01, arrived, False, {}

    def _observe(self) -> Any:
        return np.eye(self._length, dtype=np.float32)[self._place]


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=50)


def main(runtime: str = "ray", steps: int = 20_000, out: str = "runs") -> shoal.Run:
    """Trains until the mean return is 0.9, close to the shortest path."""
    return shoal.train(
        "custom_env:Corridor-v0",
        algo="apex-dqn",
        steps=steps,
        stop_return=0.9,
        runtime=runtime,
        out=out,
        settings={
            "env.kwargs": {"length": 10},
            "algorithm.learning_rate": 1e-3,
            "algorithm.target_period": 100,
            "algorithm.hidden": [64],
            "learner.batch_size": 64,
            "replay.capacity": 10_000,
            "replay.min_size": 500,
            "evaluation.every_steps": 500,
        },
    )


if __name__ == "__main__":
    print(main())
