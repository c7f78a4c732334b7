"""Evaluator: plays episodes with the newest weights, without exploration, and saves the best weights."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from shoal.algorithms.interface import Policy
from shoal.algorithms.state import module_tensors
from shoal.envs import Env
from shoal.envs.faults import traceback_if_asked
from shoal.errors import CheckpointError, EnvError
from shoal.loops.checkpoint import CheckpointState, load_best, save_best
from shoal.loops.reports import EvaluationReport, mean_episode_metrics
from shoal.loops.weights import BoardModule
from shoal.replay import Ledger, LedgerWord
from shoal.types import Episode


def play(env: Env, policy: Policy, episodes: int, stop: Callable[[], bool] = lambda: False) -> list[Episode]:
    """Plays episodes without exploration to their end, each lane its share: long episodes count as much as short ones.

    Returns fewer when `stop` became true meanwhile. Those are the short episodes: their mean is biased.
    """
    share = np.full(env.lanes, episodes // env.lanes)
    share[: episodes % env.lanes] += 1
    finished: list[Episode] = []
    obs, state = env.reset(), policy.initial_state(env.lanes)
    first, ended = np.ones(env.lanes, np.bool_), np.zeros(env.lanes, np.bool_)
    while share.any() and not stop():
        decision = policy.act(obs, state, first, explore=False)
        result = env.step(decision.action)
        for episode in result.finished:
            if share[episode.lane] > 0:
                share[episode.lane] -= 1
                finished.append(episode)
        obs, state = result.obs, decision.state
        first, ended = ended, result.terminated | result.truncated
    return finished


def bound_note(lengths: Iterable[int], bound: int | None) -> str | None:
    """A note about episodes that reached `evaluation_bound`, if any did."""
    reached = 0 if bound is None else sum(length >= bound for length in lengths)
    if not reached:
        return None
    episodes = "1 episode was" if reached == 1 else f"{reached} episodes were"
    return (
        f"{episodes} cut at evaluation.max_episode_steps = {bound}, with the return until then: the environment has no "
        "time limit of its own, or a longer one. Set it in the run's config.yaml to cut earlier or later."
    )


class Evaluator:
    """Evaluates the newest weights beside training.

    When its environment fails, that evaluation is left out, with a note, and the next one recreates the environment.
    """

    def __init__(
        self,
        make_env: Callable[[int], Env],
        policy: Policy,
        weights: BoardModule,
        ledger: Ledger,
        checkpoints: Path,
        bound: int | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        make_env: makes the environment; its argument counts how often it was recreated.
        policy: how to act; it does not explore here.
        weights: of the policy.
        ledger: the run's counts.
        checkpoints: where the best weights are kept.
        bound: steps at which evaluation cuts an episode; None where the environment's own limit comes first.
        at_end: called before the final weights are evaluated, when no other role needs the machine.
        """
        self._at_end = at_end
        self._make_env, self._policy = make_env, policy
        self._env: Env | None = make_env(0)
        self._bound, self._bound_noted = bound, False
        self._errors = 0
        self._weights, self._ledger, self._checkpoints = weights, ledger, checkpoints
        try:
            self._best = float(load_best(checkpoints).info["eval_return"])
        except CheckpointError:
            self._best = -float("inf")

    def run(self, episodes: int, seconds: float = math.inf, final: bool = False) -> EvaluationReport | None:
        """Evaluates the newest weights.

        Args:
            episodes: how many to play.
            seconds: an evaluation that takes longer is left out.
            final: whether training has ended. If not, the evaluation is left out when training ends meanwhile: the
                final weights are evaluated next.

        Returns:
            None when nothing was published yet or the run was halted.
        """
        if final:
            self._at_end()
        began, env_steps = time.perf_counter(), self._ledger.env_steps
        version = self._weights.refresh()
        if version == 0:
            return None

        def failed(note: str) -> EvaluationReport:
            return EvaluationReport((), (), env_steps, version, time.perf_counter() - began, notes=(note,))

        def stop() -> bool:
            self._ledger.add(LedgerWord.EVALUATED, 1)
            late = time.perf_counter() - began >= seconds
            return late or (self._ledger.halt if final else self._ledger.stop)

        try:
            if self._env is None:
                self._env = self._make_env(self._errors)
            finished = play(self._env, self._policy, episodes, stop)
        except EnvError as error:
            self._errors += 1
            self.end()
            done = f"this evaluation is left out, the next one recreates the environment{traceback_if_asked(error)}"
            return failed(f"evaluator: {str(error).rstrip('.')}; {done}")
        if len(finished) < episodes:
            if self._ledger.halt:
                return None
            ended = f"{len(finished)} of {episodes} episodes had ended when"
            then = (
                "time was up: `shoal eval` with --checkpoint last evaluates these weights" if final else "training did"
            )
            return failed(f"the evaluation at {env_steps:,} steps is left out: {ended} {then}")
        returns = tuple(episode.episode_return for episode in finished)
        mean = float(np.mean(returns))
        best = mean > self._best
        if best:
            self._best = mean
            info = {"eval_return": mean, "env_steps": env_steps, "weights_version": version}
            tensors = module_tensors(self._policy.module, "policy.")
            save_best(self._checkpoints, CheckpointState(self._ledger.updates, tensors, info))
        lengths = tuple(episode.length for episode in finished)
        note = None if self._bound_noted else bound_note(lengths, self._bound)
        self._bound_noted |= note is not None
        notes = (f"evaluator: {note}",) if note else ()
        told = mean_episode_metrics(episode.metrics for episode in finished)
        return EvaluationReport(returns, lengths, env_steps, version, time.perf_counter() - began, best, notes, told)

    @property
    def stopping(self) -> bool:
        return self._ledger.halt

    def end(self) -> None:
        """Closes the environment."""
        if self._env is not None:
            self._env.close()
            self._env = None
