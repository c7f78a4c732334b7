"""A run as a Python object: its results, and the policy it learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from shoal.algorithms.interface import Policy, PolicyContext
from shoal.algorithms.state import load_module
from shoal.config.load import load_config
from shoal.config.merge import Overrides
from shoal.config.resume import change_for_evaluation
from shoal.config.trust import require_trust
from shoal.envs import ActionMap, EnvSettings, ObservationMap, describe_env, make_env, make_plain_env
from shoal.envs.faults import close_quietly
from shoal.errors import CheckpointError, ConfigError
from shoal.loops.checkpoint import BEST, CheckpointState, load_best, load_checkpoint
from shoal.loops.evaluator import play
from shoal.loops.machine import emulator_threads, usable_cores
from shoal.loops.reports import mean_episode_metrics
from shoal.metrics_file import read_metrics
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.summary import Summary, read_summary
from shoal.types import EnvSpec, Episode

Space = gymnasium.spaces.Space[Any]
Which = Literal["best", "last"]


@dataclass(frozen=True)
class Evaluation:
    """Episodes, without exploration, with the weights of one checkpoint."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    checkpoint: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of what the environment says of the episodes, by name; `success_rate`, if it says `is_success`."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation over the episodes."""
        return float(np.std(self.returns))


class Run:
    """A run: its settings, its results, and the policy it learned.

    Attributes:
        path: its folder.
        settings: its settings.
        trusted: whether modules that its folder names may be imported, even if somebody else made the folder.
    """

    def __init__(
        self, path: Path, checkpoint: Which | None = None, *, trust: bool = False, overrides: Overrides = ()
    ) -> None:
        """Use `load`.

        Args:
            path: a run folder.
            checkpoint: whose weights to use: the best in evaluation, or the last; None: the best if there is one.
            trust: import what the folder names, even if somebody else made it.
            overrides: other arguments of the environment, such as `env.kwargs.size=40`, and other ways to evaluate.
        """
        self.folder = RunFolder.open(path)
        self.path = self.folder.path
        self._saved, self._overrides = load_config(self.path, trust=trust), overrides
        self.settings = change_for_evaluation(self._saved, overrides) if overrides else self._saved
        self.trusted = trust
        self._which = checkpoint
        self._policy_for = lru_cache(maxsize=2)(self.make_policy)  # one that explores and one that does not

    def __repr__(self) -> str:
        summary = self.summary
        state = "not ended" if summary is None else f"{summary.status}, {summary.env_steps:,} steps"
        return f"Run({str(self.path)!r}: {self.settings.algo} on {self.settings.env.id}, {state})"

    @property
    def summary(self) -> Summary | None:
        """Its result; None while it runs for the first time, or when it was killed."""
        return read_summary(self.folder.summary_json)

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of its metrics, oldest first."""
        return read_metrics(self.folder.metrics_jsonl)

    def predict(
        self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """Chooses actions as `evaluate` does, for your own loop. The signature is Stable-Baselines3's.

            action, state = run.predict(obs, state, episode_start)

        Args:
            obs: one observation as the environment returns it (Dict, Tuple, Discrete and others are flattened here), or
                a batch as a Gymnasium vector environment returns it, with the batch first. For Atari games the stack of
                the newest frames, as `make_env` returns it.
            state: what the previous call returned; None at the start. Only a network with an LSTM has a state.
            episode_start: whether an episode begins with this observation, so that the state is reset; one bool for
                all, or one per observation. None: True if `state` is None.
            deterministic: as `evaluate` plays: the best action, or a draw where `algorithm.temperature` is set; False
                explores as the run's actors did.

        Returns:
            One action for one observation, a batch for a batch, as the environment's `step` takes it; and the state for
            the next call: arrays [N, size]. Without an LSTM, `state` is returned unchanged.

        Raises:
            ConfigError: the observation, the state or `episode_start` has the wrong shape or type.
        """
        batch, single = self._observations(obs)
        number = len(batch)
        lanes = 1 if deterministic else number  # a policy that does not explore takes any batch
        policy = self._policy_for(lanes)
        initial = policy.initial_state(number)
        first = _starts(state is None if episode_start is None else episode_start, number)
        decision = policy.act(batch, _carried(state, initial), first, explore=not deterministic)
        action = self._to_env(decision.action)
        if initial:
            state = tuple(part.numpy() for part in decision.state)
        return (action[0] if single else action), state

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """One environment as `evaluate` plays it, with the run's arguments and a time limit, for a loop with `predict`.

        It is Gymnasium's own. An Atari game observes the stack of preprocessed frames that the policy takes.
        """
        return make_plain_env(self.env_settings)

    def evaluate(self, episodes: int = 100, *, seed: int | None = None) -> Evaluation:
        """Plays episodes of the true task without exploration: rewards are not clipped, lost lives end nothing.

        Args:
            episodes: how many.
            seed: of the environments; the run's own by default.
        """
        if episodes < 1:
            raise ConfigError(f"episodes = {episodes} cannot be used: it must be a whole number of at least 1.")
        lanes = self.settings.evaluation.lanes_for(episodes)
        policy, threads = self.make_policy(lanes), emulator_threads(self.settings, usable_cores())
        settings = self.env_settings.model_copy(update={"threads": threads})
        env = make_env(settings, lanes, self.settings.seed if seed is None else seed, training=False)
        try:
            finished: list[Episode] = play(env, policy, episodes)
        finally:
            env.close()
        returns = tuple(episode.episode_return for episode in finished)
        told = mean_episode_metrics(episode.metrics for episode in finished)
        return Evaluation(returns, tuple(episode.length for episode in finished), self.checkpoint.name, told)

    def make_policy(self, lanes: int = 1) -> Policy:
        """A policy with the run's weights, for `lanes` environments at once."""
        context = PolicyContext(lanes=lanes, seed=self.settings.seed)
        policy = self.settings.definition.make_policy(self.settings.algorithm, self.spec, context)
        load_module(policy.module, self._weights.tensors, "policy.")
        return policy

    @cached_property
    def env_settings(self) -> EnvSettings:
        """Its environment as `evaluate` plays it. Making one may import a module that the folder names.

        Raises:
            ConfigError: somebody else made the folder, and it is not trusted.
        """
        if not self.trusted:
            require_trust(self.path, self._saved, given=self._overrides)
        return self.settings.evaluation_env

    @cached_property
    def spec(self) -> EnvSpec:
        """Its environment's spaces and limits."""
        return describe_env(self.env_settings)

    @property
    def checkpoint(self) -> Path:
        """The file whose weights are used."""
        assert self._weights.path is not None
        return self._weights.path

    @property
    def skipped(self) -> tuple[str, ...]:
        """A sentence for each damaged checkpoint that was skipped in favour of this one."""
        return self._weights.skipped

    @cached_property
    def _weights(self) -> CheckpointState:
        skipped: tuple[str, ...] = ()
        if self._which != "last":
            try:
                return load_best(self.folder.checkpoints)
            except CheckpointError as error:
                if self._which == "best":
                    raise
                skipped = (str(error),) if (self.folder.checkpoints / BEST).exists() else ()
        newest = load_checkpoint(self.folder.checkpoints)
        return replace(newest, skipped=skipped + newest.skipped)

    @cached_property
    def _spaces(self) -> tuple[Space, Space]:
        env = self.make_env()
        close_quietly(env)
        return env.observation_space, env.action_space

    @cached_property
    def _observations(self) -> ObservationMap:
        return ObservationMap(self._spaces[0], self.spec)

    @cached_property
    def _to_env(self) -> ActionMap:
        return ActionMap(self._spaces[1])


def _starts(given: Any, number: int) -> npt.NDArray[np.bool_]:
    starts = np.asarray(given)
    if starts.shape not in ((), (number,)):
        raise ConfigError(f"episode_start has shape {starts.shape}: one truth for all, or ({number},), is expected.")
    return np.broadcast_to(starts.astype(np.bool_), (number,))


def _carried(state: Any, initial: Any) -> Any:
    """The caller's state as the policy takes it; the policy's initial state if there is none."""
    if state is None or not initial:
        return initial
    expected = [tuple(part.shape) for part in initial]
    given = [np.shape(part) for part in state] if isinstance(state, tuple | list) else repr(state)
    if given != expected:
        raise ConfigError(
            f"state must be arrays of shape {expected} for this many observations, got {given}: hand back the state "
            "that predict returned, or None to begin."
        )
    return tuple(torch.as_tensor(np.asarray(part, np.float32)) for part in state)
