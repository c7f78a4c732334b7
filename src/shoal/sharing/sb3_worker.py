"""One Stable-Baselines3 run, from its settings to its model: what a process of `shoal share` does.

The caller passes functions for reporting and stopping. The run does not know where its numbers go.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

from shoal.envs.faults import close_quietly
from shoal.sharing.sb3_contribute import buffer_of, share_metrics
from shoal.sharing.sb3_models import make_evaluation_env, make_model
from shoal.sharing.sb3_settings import Sb3Settings
from shoal.sharing.sb3_summary import Sb3Summary

Write = Callable[[int, Mapping[str, float], float], None]
"""Takes steps, numbers by name, and seconds since the start."""
MODEL, STATISTICS = "model.zip", "vecnormalize.pkl"
_LINE_SECONDS = 2.0
_KEPT = "train/"
"""What is kept of Stable-Baselines3's log; the rest is computed here for every line."""


class _Stopped(Exception):
    """Ends an evaluation early."""


class _Logger(Logger):
    """Keeps the newest value of everything that is logged: Stable-Baselines3 drops it when it writes its table."""

    def dump(self, step: int = 0) -> None:
        self.name_to_count.clear()  # means start again


class _Reporter(BaseCallback):
    """Writes a line every two seconds, evaluates the policy from time to time, and stops the run when asked."""

    def __init__(self, settings: Sb3Settings, eval_env: VecEnv, write: Write, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._settings, self._eval_env, self._write, self._stopped = settings, eval_env, write, stopped
        self._next_evaluation = settings.evaluation.every_steps
        self._evaluated_at = -1
        self._evaluation_seconds = 0.0
        self._eval = (math.nan, math.nan)
        self._began = self._next_line = time.monotonic()
        self.interrupted = False

    def _on_training_start(self) -> None:
        self.model.set_logger(_Logger(None, []))
        self._began = self._next_line = time.monotonic()

    def _on_step(self) -> bool:
        if self._stopped():
            self.interrupted = True
        elif self.num_timesteps >= self._next_evaluation:
            self._next_evaluation += self._settings.evaluation.every_steps
            self.evaluate()
        elif time.monotonic() >= self._next_line:
            self.line({})
        return not self.interrupted

    def evaluate(self) -> None:
        """Plays deterministic episodes and writes their returns."""
        if self._evaluated_at == self.num_timesteps:
            return
        began = time.monotonic()
        train = self.model.get_env()
        if isinstance(self._eval_env, VecNormalize) and train is not None:
            sync_envs_normalization(train, self._eval_env)
        try:
            mean, std = evaluate_policy(
                self.model, self._eval_env, self._settings.evaluation.episodes, callback=self._look
            )
        except _Stopped:
            self.interrupted = True
            return
        finally:
            self._evaluation_seconds += time.monotonic() - began
        self._evaluated_at, self._eval = self.num_timesteps, (float(mean), float(std))  # type: ignore[arg-type]
        self.line({"eval/mean_reward": self._eval[0], "eval/std_reward": self._eval[1]})

    def line(self, extra: Mapping[str, float]) -> None:
        """Writes everything that is known now."""
        self._next_line = time.monotonic() + _LINE_SECONDS
        logged = {name: value for name, value in self.model.logger.name_to_value.items() if name.startswith(_KEPT)}
        values = {"time/fps": self.steps_per_second}
        if episodes := self.model.ep_info_buffer:
            values["rollout/ep_rew_mean"] = float(np.mean([one["r"] for one in episodes]))
            values["rollout/ep_len_mean"] = float(np.mean([one["l"] for one in episodes]))
        if (buffer := buffer_of(self.model)) is not None:
            values |= share_metrics(buffer)
        values |= {name: float(value) for name, value in logged.items() if isinstance(value, int | float | np.number)}
        self._write(self.num_timesteps, {**values, **extra}, self.seconds)

    @property
    def seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._began

    @property
    def steps_per_second(self) -> float:
        """The mean so far, without evaluations."""
        return self.num_timesteps / max(1e-9, self.seconds - self._evaluation_seconds)

    def summary(self) -> Sb3Summary:
        """The run's results so far."""
        returns = [one["r"] for one in self.model.ep_info_buffer or ()]
        buffer = buffer_of(self.model)
        foreign = math.nan if buffer is None else buffer.get_stats()["foreign_fraction"]
        return Sb3Summary(
            status="interrupted" if self.interrupted else "finished",
            env_steps=self.num_timesteps,
            episodes=int(getattr(self.model, "_episode_num", 0)),
            wall_seconds=self.seconds,
            train_return_mean=float(np.mean(returns)) if returns else math.nan,
            eval_return_mean=self._eval[0],
            eval_return_std=self._eval[1],
            steps_per_second=self.steps_per_second,
            foreign_fraction=float(foreign),
        )

    def _look(self, local: dict[str, Any], everywhere: dict[str, Any]) -> None:
        if self._stopped():
            raise _Stopped


def train(settings: Sb3Settings, folder: Path, write: Write, stopped: Callable[[], bool]) -> Sb3Summary:
    """Trains until it ends or is stopped, and saves the model.

    Args:
        settings: the run's; the environment variables of `shoal.sharing` say what it shares.
        folder: where `model.zip` goes, and VecNormalize's statistics.
        write: takes a line of metrics.
        stopped: asked after every step.
    """
    with contextlib.ExitStack() as stack:
        model = make_model(settings)
        stack.callback(close_quietly, model.get_env())
        eval_env = make_evaluation_env(settings)
        stack.callback(close_quietly, eval_env)
        reporter = _Reporter(settings, eval_env, write, stopped)
        model.learn(settings.total_timesteps, callback=reporter)
        if reporter.interrupted:
            reporter.line({})
        else:
            reporter.evaluate()
        model.save(folder / MODEL)
        if (statistics := model.get_vec_normalize_env()) is not None:
            statistics.save(str(folder / STATISTICS))
        return reporter.summary()
