"""Small real environments and settings that several tests share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.loops.assembly import open_ledger
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import prepare
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.replay import Ledger


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Walk right to the end for +1; a step to the left at the start ends the episode with -1. Solved at 1."""

    observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fail_at: int | None = None, nan_at: int | None = None) -> None:
        self._at, self._steps, self._fail_at, self._nan_at = 0, 0, fail_at, nan_at

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._fail_at:
            raise RuntimeError("the simulator crashed")
        self._at += 1 if action == 1 else -1
        reward = 1.0 if self._at >= 4 else -1.0 if self._at < 0 else 0.0
        if self._steps == self._nan_at:
            reward = float("nan")
        done = self._at >= 4 or self._at < 0
        self._at = max(0, min(4, self._at))
        return self._observe(), reward, done, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self._at]


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """Push a point to 0 with the first action and keep the second at 3. Never terminates; cut after 8 steps.

    The bounds are lopsided, another pair per dimension. Random actions return about -4, the best possible ones -0.1.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 4.0], np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self.np_random.uniform(-1.0, 1.0)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._at = float(np.clip(self._at + 0.25 * (action[0] - 1.0), -1.0, 1.0))
        return self._observe(), -(self._at**2) - 0.1 * float(action[1] - 3.0) ** 2, False, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._at], np.float32)


class Endless(gymnasium.Env[np.ndarray, int]):
    """No episode ends before the file `until` exists; from then on each takes 3 steps. Its `close` raises.

    Steps take long until the file `slow_until` exists, if one is named.
    """

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, until: str = "", slow_until: str = "") -> None:
        self._until, self._slow_until, self._at = until, slow_until, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._slow_until and not Path(self._slow_until).exists():
            time.sleep(0.05)
        self._at += 1
        done = self._at >= 3 and bool(self._until) and Path(self._until).exists()
        return self.np_random.random(2, np.float32), 1.0, done, False, {}

    def close(self) -> None:
        raise RuntimeError("the window is gone already")


class Recall(gymnasium.Env[np.ndarray, int]):
    """A cue is shown once, two steps later the action must equal it: +1, and nothing else. Chance alone gives 0.5."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._steps = int(self.np_random.integers(2)), 0
        return np.array([self._cue, 1 - self._cue, 0.0, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        done = self._steps == 3
        obs = np.array([0.0, 0.0, self._steps == 1, self._steps == 2], np.float32)
        return obs, float(done and action == self._cue), done, False, {}


class Stairs(gymnasium.Env[np.ndarray, int]):
    """An episode takes as many steps as its level is high. It succeeds if its level is lower than `too_high`.

    Levels are whole numbers: `height` and `width`, up to 9. Every episode says how wide it was.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "levels": ("height", "width")}
    observation_space = spaces.Box(0.0, 9.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        height: int = 1,
        too_high: int = 10,
        silent: bool = False,
        fail_at: int | None = None,
        widest: int = 9,
    ) -> None:
        """`widest`: largest width divided by height."""
        self._usual, self._too_high, self._silent, self._fail_at, self._steps = height, too_high, silent, fail_at, 0
        self._widest = widest

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        level = (options or {}).get("level", {"height": self._usual, "width": 1})
        self.height, self.width, self._at = level["height"], level["width"], 0
        assert isinstance(self.height, int) and isinstance(self.width, int)
        if max(self.height, self.width) > 9:
            raise ValueError("higher than the sky")
        if self.width > self._widest * self.height:
            raise ValueError("too wide for its height")
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._at, self._steps = self._at + 1, self._steps + 1
        if self._steps == self._fail_at:
            raise RuntimeError("a step is broken")
        success, done = self.height < self._too_high, self._at >= self.height
        info = {"is_success": success, "episode_metrics": {"steps_up": self._at}} if done and not self._silent else {}
        return self._observe(), float(success), done, False, info

    def _observe(self) -> np.ndarray:
        return np.array([self.height, self._at], np.float32)


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([3, 2]),
    "dict": spaces.Dict({"near": spaces.Box(-1, 1, (2, 2), np.float64), "kind": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.MultiBinary(3), spaces.Dict({"at": spaces.Box(0, 9, (2,), np.int64)}))),
}


class Shapes(gymnasium.Env[Any, int]):
    """Observations of any space, at random. The only good action is the second, which this environment calls 6."""

    def __init__(self, kind: str = "dict") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[kind], spaces.Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(action == 6), False, False, {}


def register() -> None:
    """Makes the environments of this module known to Gymnasium; importing it does it."""
    if "TestRecall-v0" not in gymnasium.registry:
        gymnasium.register("TestRecall-v0", entry_point=Recall)
    if "TestShapes-v0" not in gymnasium.registry:
        gymnasium.register("TestShapes-v0", entry_point=Shapes, max_episode_steps=8)
    if "TestStairs-v0" not in gymnasium.registry:
        gymnasium.register("TestStairs-v0", entry_point=Stairs)
    if "TestReach-v0" not in gymnasium.registry:
        gymnasium.register("TestReach-v0", entry_point=Reach, max_episode_steps=8)
    if "TestEndless-v0" not in gymnasium.registry:
        gymnasium.register("TestEndless-v0", entry_point=Endless)
    if "TestCorridor-v0" not in gymnasium.registry:
        gymnasium.register("TestCorridor-v0", entry_point=Corridor, max_episode_steps=20)


register()


def corridor(**sections: Any) -> RunSettings:
    """Settings for the corridor that run in seconds; sections are merged over them."""
    base: dict[str, Any] = {
        "env": {"id": "tests.fakes:TestCorridor-v0", "lanes": 4},
        "actors": 2,
        "seed": 1,
        "runtime": "inline",
        "algorithm": {"learning_rate": 3e-3, "hidden": [32, 32], "target_period": 20, "adam_epsilon": 1e-8},
        "learner": {"batch_size": 32, "publish_every": 2},
        "replay": {"capacity": 4000, "min_size": 200, "samples_per_insert": 8},
        "evaluation": {"episodes": 4, "every_steps": 400, "lanes": 4},
        "stop": {"steps": 2000},
    }
    for name, value in sections.items():
        base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
    return RunSettings.model_validate(base)


def stairs(**sections: Any) -> RunSettings:
    """Settings for a curriculum of four levels, `height` and `width` from 1 to 2; sections are merged over them."""
    curriculum = {
        "start": {"height": 1, "width": 1},
        "grow": {"height": 1, "width": 1},
        "limit": {"height": 2, "width": 2},
        "window": 10,
    }
    env = {"id": "tests.fakes:TestStairs-v0", **sections.pop("env", {})}
    return corridor(env=env, curriculum={**curriculum, **sections.pop("curriculum", {})}, **sections)


def reach(**sections: Any) -> RunSettings:
    """Settings for `Reach` that run in seconds; sections are merged over them."""
    base: dict[str, Any] = {
        "env": {"id": "tests.fakes:TestReach-v0", "lanes": 4},
        "algo": "td3",
        "actors": 2,
        "seed": 1,
        "runtime": "inline",
        "algorithm": {
            "learning_rate": 3e-3,
            "policy_learning_rate": 3e-3,
            "policy_hidden": [32, 32],
            "critic_hidden": [32, 32],
            "gamma": 0.9,
            "tau": 0.02,
            "target_period": 1,
        },
        "learner": {"batch_size": 64, "publish_every": 2},
        "replay": {
            "capacity": 8000,
            "min_size": 200,
            "samples_per_insert": 32,
            "selectors": [{"type": "uniform"}],
        },
        "evaluation": {"episodes": 16, "every_steps": 400, "lanes": 16},
        "stop": {"steps": 6000},
    }
    for name, value in sections.items():
        base[name] = {**base[name], **value} if isinstance(base.get(name), dict) else value
    return RunSettings.model_validate(base)


def prepared(folder: Path, settings: RunSettings) -> tuple[Plan, Ledger]:
    """What roles need before they can be built: a plan, and the files it names."""
    plan = make_plan(settings, RunPaths(folder / "replay", folder / "checkpoints"))
    plan.paths.replay.mkdir(parents=True)
    prepare(plan, settings.actors + 3, "test")
    return plan, open_ledger(plan)
