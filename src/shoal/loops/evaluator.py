"""Evaluator: plays greedy episodes with the newest weights and keeps the best ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.algorithms.interface import Policy
from shoal.algorithms.state import module_tensors
from shoal.envs import Env
from shoal.errors import CheckpointError, EnvError
from shoal.loops.checkpoint import CheckpointState, load_best, save_best
from shoal.loops.reports import EvaluationReport
from shoal.loops.weights import FlatModule, WeightBoard
from shoal.replay import Ledger
from shoal.types import Episode


def play(env: Env, policy: Policy, episodes: int, stop: Ledger | None = None) -> list[Episode]:
    """Plays greedy episodes to their end, every lane its share, so that long episodes count as much as short ones.

    Returns fewer when the run was told to stop meanwhile.
    """
    share = np.full(env.lanes, episodes // env.lanes)
    share[: episodes % env.lanes] += 1
    finished: list[Episode] = []
    obs, state = env.reset(), policy.initial_state(env.lanes)
    first, ended = np.ones(env.lanes, np.bool_), np.zeros(env.lanes, np.bool_)
    while share.any() and not (stop is not None and stop.halt):
        decision = policy.act(obs, state, first, explore=False)
        result = env.step(decision.action)
        for episode in result.finished:
            if share[episode.lane] > 0:
                share[episode.lane] -= 1
                finished.append(episode)
        obs, state = result.obs, decision.state
        first, ended = ended, result.terminated | result.truncated
    return finished


class Evaluator:
    """Judges the newest weights, apart from training."""

    def __init__(
        self, make_env: Callable[[int], Env], policy: Policy, board: WeightBoard, ledger: Ledger, checkpoints: Path
    ) -> None:
        """Args:
        make_env: makes an environment of its own; its argument counts the times it was made anew.
        policy: how to act; greedily here.
        board: where weights come from.
        ledger: the run's counts.
        checkpoints: where the best weights are kept.
        """
        self._make_env, self._env, self._policy = make_env, make_env(0), policy
        self._errors = 0
        self._board, self._ledger = board, ledger
        self._weights, self._checkpoints = FlatModule(policy.module), checkpoints
        try:
            self._best = float(load_best(checkpoints).info["eval_return"])
        except CheckpointError:
            self._best = -float("inf")

    def run(self, episodes: int) -> EvaluationReport | None:
        """Plays so many episodes; None when there was nothing to judge or the run stopped meanwhile."""
        began, env_steps = time.perf_counter(), self._ledger.env_steps
        version = self._weights.load(self._board)
        if version == 0:
            return None
        try:
            finished = play(self._env, self._policy, episodes, self._ledger)
        except EnvError as error:
            self._errors += 1
            with contextlib.suppress(Exception):  # it is broken already, and is thrown away
                self._env.close()
            self._env = self._make_env(self._errors)
            note = f"evaluator: {error}; this evaluation is left out and the environment made anew"
            return EvaluationReport((), (), env_steps, version, time.perf_counter() - began, notes=(note,))
        if len(finished) < episodes:
            return None
        returns = tuple(episode.episode_return for episode in finished)
        mean = float(np.mean(returns))
        best = mean > self._best
        if best:
            self._best = mean
            info = {"eval_return": mean, "env_steps": env_steps, "weights_version": version}
            tensors = module_tensors(self._policy.module, "policy.")
            save_best(self._checkpoints, CheckpointState(self._ledger.updates, tensors, info))
        lengths = tuple(episode.length for episode in finished)
        return EvaluationReport(returns, lengths, env_steps, version, time.perf_counter() - began, best)

    @property
    def stopping(self) -> bool:
        """Whether the run has told the evaluator to end."""
        return self._ledger.halt

    def end(self) -> None:
        """Closes the environment."""
        self._env.close()
