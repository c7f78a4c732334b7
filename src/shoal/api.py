"""Shoal from Python: train, load, look at what came out, use it.

run = shoal.train("CartPole-v1", algo="apex-dqn", actors=2, stop_return=475)
print(run.summary.status, run.evaluate(episodes=100).mean)

policy = shoal.load("runs/latest")
action = policy.predict(obs)
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.algorithms.interface import Policy, Seat
from shoal.algorithms.state import load_module
from shoal.config import (
    change_for_resume,
    check_environment,
    dump_yaml,
    load_config,
    load_target,
    with_default_stop,
)
from shoal.envs import describe_env, make_env
from shoal.errors import CheckpointError, ConfigError
from shoal.files import atomic_write
from shoal.loops.checkpoint import BEST, CheckpointState, load_best, load_checkpoint
from shoal.loops.evaluator import play
from shoal.loops.settings import RunSettings
from shoal.runtime.execution import execute
from shoal.runtime.metrics import WandbSettings, read_metrics
from shoal.runtime.repair import known_counts
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.summary import Summary, read_summary
from shoal.sharing import connect_registry
from shoal.types import Array, EnvSpec, Episode

Which = Literal["best", "last"]


@dataclass(frozen=True)
class Evaluation:
    """Greedy episodes with the weights of one checkpoint."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    checkpoint: str

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))


class Run:
    """A run's folder: what was asked, what came out, and the policy it learned.

    Attributes:
        path: its folder.
        settings: what it was made with.
    """

    def __init__(self, path: Path, checkpoint: Which | None = None) -> None:
        """Use `load`.

        Args:
            path: a run folder.
            checkpoint: whose weights to use: the best in evaluation, or the last; None: the best if there is one.
        """
        self.folder = RunFolder.open(path)
        self.path = self.folder.path
        self.settings = load_config(self.path)
        self._which = checkpoint
        self._policies: dict[int, Policy] = {}

    def __repr__(self) -> str:
        summary = self.summary
        state = "not ended" if summary is None else f"{summary.status}, {summary.env_steps:,} steps"
        return f"Run({str(self.path)!r}: {self.settings.algo} on {self.settings.env.id}, {state})"

    @property
    def summary(self) -> Summary | None:
        """What came out of it; None while it runs for the first time, or when it was killed."""
        return read_summary(self.folder.summary_json)

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of its metrics, oldest first."""
        return read_metrics(self.folder.metrics_jsonl)

    def predict(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Chooses actions.

        Args:
            obs: one observation, or a batch of them with the batch first.
            deterministic: the best action known; False explores as the run's actors did.

        Returns:
            One action for one observation, a batch for a batch.

        Raises:
            ConfigError: the observation has another shape or type than the environment's.
        """
        batch, single = self._batch(obs)
        lanes = 1 if deterministic else len(batch)  # a greedy policy takes any batch
        if lanes not in self._policies:
            self._policies[lanes] = self.make_policy(lanes)
        policy = self._policies[lanes]
        state = policy.initial_state(len(batch))
        action = policy.act(batch, state, np.ones(len(batch), np.bool_), explore=not deterministic).action
        return action[0] if single else action

    def evaluate(self, episodes: int = 100, *, seed: int | None = None) -> Evaluation:
        """Plays greedy episodes of the true task: no reward is clipped, no lost life ends an episode.

        Args:
            episodes: how many.
            seed: of the environments; the run's own by default.
        """
        if episodes < 1:
            raise ConfigError(f"episodes = {episodes} cannot be used: it must be a whole number of at least 1.")
        lanes = min(self.settings.evaluation.lanes, episodes)
        policy = self.make_policy(lanes)
        env = make_env(
            self.settings.evaluation_env, lanes, self.settings.seed if seed is None else seed, training=False
        )
        try:
            finished: list[Episode] = play(env, policy, episodes)
        finally:
            env.close()
        returns = tuple(episode.episode_return for episode in finished)
        return Evaluation(returns, tuple(episode.length for episode in finished), self.checkpoint.name)

    def make_policy(self, lanes: int = 1) -> Policy:
        """A policy with the run's weights, for so many environments at once."""
        seat = Seat(lanes=lanes, seed=self.settings.seed)
        policy = self.settings.definition.make_policy(self.settings.algorithm, self.spec, seat)
        load_module(policy.module, self._weights.tensors, "policy.")
        return policy

    @cached_property
    def spec(self) -> EnvSpec:
        """What its environment looks like."""
        return describe_env(self.settings.env)

    @property
    def checkpoint(self) -> Path:
        """The file whose weights are used."""
        assert self._weights.path is not None
        return self._weights.path

    @property
    def skipped(self) -> tuple[str, ...]:
        """A line for each checkpoint that would have been used before this one but is damaged."""
        return self._weights.skipped

    @cached_property
    def _weights(self) -> CheckpointState:
        if self._which != "last":
            try:
                return load_best(self.folder.checkpoints)
            except CheckpointError as error:
                if self._which == "best":
                    raise
                corrupt = (str(error),) if (self.folder.checkpoints / BEST).exists() else ()
            newest = load_checkpoint(self.folder.checkpoints)
            return replace(newest, skipped=corrupt + newest.skipped)
        return load_checkpoint(self.folder.checkpoints)

    def _batch(self, obs: Any) -> tuple[Array, bool]:
        given, shape = np.asarray(obs), self.spec.obs_shape
        single = given.shape == shape
        if not single and (given.shape[1:] != shape or given.ndim != len(shape) + 1 or not len(given)):
            batch_shape = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
            raise ConfigError(
                f"The observation has shape {given.shape}; {self.settings.env.id} has {shape}, a batch {batch_shape}."
            )
        if not np.can_cast(given.dtype, self.spec.obs_dtype, "same_kind"):
            raise ConfigError(f"The observation is of {given.dtype}; {self.settings.env.id} has {self.spec.obs_dtype}.")
        batch = np.ascontiguousarray(given, self.spec.obs_dtype)
        if batch.dtype.kind == "f" and not np.isfinite(batch).all():
            raise ConfigError("The observation holds NaN or infinity; no action follows from it.")
        return (batch[None], True) if single else (batch, False)


def train(
    env_or_scenario: str | Path,
    *,
    algo: str | None = None,
    actors: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    stop_return: float | None = None,
    seed: int | None = None,
    runtime: Literal["inline", "ray"] | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    wandb: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Trains to the end and returns the run. What is None keeps the scenario's value, or the default.

    Args:
        env_or_scenario: a Gymnasium id (`"CartPole-v1"`, `"my_package:MyEnv-v0"`), or a scenario's path or name.
        algo: the algorithm; apex-dqn unless the scenario says otherwise.
        actors: actor processes.
        steps, seconds, stop_return: when to end: at whichever comes first. With none of them, and none in a scenario,
            at the return where the environment counts as solved, and after a million steps at the latest.
        seed: of everything random.
        runtime: ray (a process per role) or inline (this process, reproducible).
        device: of the learner: auto, cpu, cuda, cuda:1, …
        out: where run folders are made; `runs` by default.
        quiet: show no progress.
        wandb: also log to Weights & Biases.
        settings: anything else, by dotted name: `{"learner.batch_size": 256}`.

    Raises:
        ConfigError: something asked for cannot be used; nothing was started.
        ShoalError: the run failed; its folder says more.
    """
    named = {
        "algo": algo,
        "actors": actors,
        "stop.steps": steps,
        "stop.seconds": seconds,
        "stop.mean_return": stop_return,
        "seed": seed,
        "runtime": runtime,
        "learner.device": device,
    }
    given = {name: value for name, value in named.items() if value is not None}
    ready, folder = begin(load_target(str(env_or_scenario), {**(settings or {}), **given}), out)
    execute(ready, folder, quiet=quiet, wandb=wandb_settings(ready, folder) if wandb else None)
    return Run(folder.path)


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    stop_return: float | None = None,
    quiet: bool = False,
    wandb: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Goes on with a run that was interrupted or failed, or that has a new end. Arguments as in `train`."""
    named = {"stop.steps": steps, "stop.seconds": seconds, "stop.mean_return": stop_return}
    given = {name: value for name, value in named.items() if value is not None}
    ready, folder = begin_again(run.path if isinstance(run, Run) else Path(run), {**(settings or {}), **given})
    execute(ready, folder, resume=True, quiet=quiet, wandb=wandb_settings(ready, folder) if wandb else None)
    return Run(folder.path)


def load(run: str | Path, *, checkpoint: Which | None = None) -> Run:
    """Opens a run.

    Args:
        run: its folder, such as `runs/latest`.
        checkpoint: whose weights to use: `"best"` in evaluation, or `"last"`; None: the best if there is one.
    """
    if checkpoint not in (None, "best", "last"):
        raise ConfigError(f"checkpoint = {checkpoint!r} cannot be used: it must be best or last.")
    return Run(Path(run), checkpoint)


def begin(settings: RunSettings, out: str | Path | None = None) -> tuple[RunSettings, RunFolder]:
    """Checks that a run can be made, and makes its folder with `config.yaml`: nothing is left of what is refused."""
    spec = check_environment(settings)
    if settings.share.registry is not None:
        connect_registry(settings.share.registry)  # refuses a folder that is none
    settings = with_default_stop(settings, spec.reward_threshold)
    folder = RunFolder.create(None if out is None else Path(out), settings.env.id, settings.algo, datetime.now())
    try:
        _write_config(folder, settings)
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        parent = folder.path.parent
        raise ConfigError(f"Cannot make runs in {parent}: {error.strerror}. Choose another --out.") from error
    return settings, folder


def begin_again(path: Path, overrides: Any = ()) -> tuple[RunSettings, RunFolder]:
    """Checks that a run can go on with these changes, and writes them to its `config.yaml`."""
    folder = RunFolder.open(path)
    before = load_config(folder.path)
    settings = change_for_resume(before, overrides)
    with folder.lock():  # refuses a run that is still alive
        summary = _readable_summary(folder)  # of a run whose driver was killed there is none
        made = known_counts(folder).steps if summary is None else summary.env_steps
        _require_way_to_go(before, settings, summary, made)
        check_environment(settings)
        if settings != before:
            _write_config(folder, settings)
    return settings, folder


def wandb_settings(settings: RunSettings, folder: RunFolder) -> WandbSettings:
    """How a run shows up in Weights & Biases: under its folder's name, also when it is resumed."""
    return WandbSettings(name=folder.path.name, run_id=folder.path.name, config=settings.model_dump(mode="json"))


def _write_config(folder: RunFolder, settings: RunSettings) -> None:
    atomic_write(folder.config_yaml, dump_yaml(settings).encode())


def _readable_summary(folder: RunFolder) -> Summary | None:
    """A damaged one says nothing: the run sets it aside when it goes on."""
    with contextlib.suppress(ConfigError):
        return read_summary(folder.summary_json)
    return None


def _require_way_to_go(before: RunSettings, settings: RunSettings, summary: Summary | None, made: int) -> None:
    """Refuses to resume a run that would end at once."""
    stop = settings.stop
    if stop.steps is not None and made >= stop.steps:
        raise ConfigError(
            f"The run has made {made} steps and ends at stop.steps = {stop.steps}: "
            f"raise it, for instance --steps {2 * (stop.steps if 2 * stop.steps > made else made)}."
        )
    if summary is not None and summary.status == "solved" and stop == before.stop:
        raise ConfigError(
            f"The run is solved: it reached stop.mean_return = {stop.mean_return:g}. "
            "To go on, raise it with --stop-return, or set stop.mean_return=null and --steps."
        )
