"""Actor: steps environments with the newest weights and writes the stream into its shard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.algorithms.interface import Outcome, Policy
from shoal.envs import Env
from shoal.envs.faults import traceback_if_asked
from shoal.errors import EnvError
from shoal.loops.gradient_worker import GradientWorker
from shoal.loops.remote_policy import RemotePolicy, Unanswered
from shoal.loops.reports import ActorReport
from shoal.loops.settings import ActorSettings
from shoal.loops.weights import BoardModule
from shoal.replay import Ledger, ShardWriter
from shoal.replay.pace import Pace
from shoal.types import FINAL, Array, Episode

Levels = Sequence[Mapping[str, float]]
SHORTEST_WAIT = 0.001
"""Seconds before an actor that must wait asks its pace again; doubled while nothing changes."""
ERROR_SECONDS = 3600.0
"""Environment errors are counted over this time: it is their rate that ends a run, not their number."""


class Actor:
    """One vector environment, one policy, one shard."""

    def __init__(
        self,
        index: int,
        make_env: Callable[[int], Env],
        policy: Policy,
        writer: ShardWriter,
        weights: BoardModule | GradientWorker | None,
        ledger: Ledger,
        pace: Pace,
        settings: ActorSettings,
        levels: Levels = (),
    ) -> None:
        """Args:
        index: which actor of the run.
        make_env: makes the environment; its argument counts how often it was recreated.
        policy: how to act.
        writer: the actor's own shard.
        weights: of the policy; None: the inference server has them, and the policy records their version. A gradient
            worker learns from each step, too.
        ledger: the run's counts.
        pace: when to wait for the learner.
        settings: the `actor` section.
        levels: of difficulty, of which each episode is played at one; none: the environment decides.
        """
        self._index, self._make_env, self._policy, self._writer = index, make_env, policy, writer
        self._weights, self._ledger, self._pace, self._settings = weights, ledger, pace, settings
        self._learns = weights if isinstance(weights, GradientWorker) else None
        self._levels = levels
        self._env = self._new_env(0)
        self._stack = self._env.spec.frame_stack
        self._errors = 0
        self._errors_at: list[float] = []
        self._version = 0
        self._ticks = 0
        self._obs: Array
        self._boundary: npt.NDArray[np.uint8]
        self._first: npt.NDArray[np.bool_]
        self._state: Any
        self._begin_stream()

    def run(
        self, *, seconds: float | None = None, steps: int | None = None, levels: Levels | None = None
    ) -> ActorReport:
        """Collects until `seconds` have passed, `steps` vector steps are taken, or the run stops. Episodes that begin
        from now on are played at one of `levels`; None: as before.
        """
        if levels is not None and levels is not self._levels:
            self._levels = levels
            self._env.set_levels(levels)
        began = time.perf_counter()
        deadline = began + seconds if seconds is not None else float("inf")
        taken, waited, ticks, shortest = 0, 0.0, 0, min(SHORTEST_WAIT, self._pace.longest_wait)
        pause, waiting = shortest, False
        episodes: list[Episode] = []
        notes: list[str] = []
        while time.perf_counter() < deadline and (steps is None or ticks < steps) and not self._ledger.stop:
            if not self._pace.may_act():
                if steps is not None or self._ledger.orphaned:
                    break
                paused = time.perf_counter()
                if not waiting:
                    self._writer.waits(waiting := True)
                time.sleep(pause)
                pause = min(2 * pause, self._pace.longest_wait)
                waited += time.perf_counter() - paused
                continue
            if waiting:
                self._writer.waits(waiting := False)
            pause = shortest
            try:
                taken += self._step(episodes)
            except EnvError as error:
                self._recover(error, notes)
            except Unanswered:
                if steps is not None or self._ledger.orphaned:
                    break
                continue
            ticks += 1
        served = self._policy.take_waited() if isinstance(self._policy, RemotePolicy) else math.nan
        elapsed = time.perf_counter() - began
        return ActorReport(self._index, taken, elapsed, waited, tuple(episodes), self._version, tuple(notes), served)

    @property
    def stopping(self) -> bool:
        return self._ledger.stop

    def end(self) -> None:
        """Closes the environment and the shard."""
        self._env.close()
        self._writer.close()

    def _step(self, episodes: list[Episode]) -> int:
        """One step of every lane; returns how many were steps and not resets."""
        if self._weights is not None and self._ticks % self._settings.weights_period == 0:
            self._version = self._weights.refresh()
        self._ticks += 1
        obs, boundary = self._obs, self._boundary
        decision = self._policy.act(obs, self._state, self._first, explore=True)
        result = self._env.step(decision.action)
        outcome = Outcome(result.reward, result.terminated, result.truncated, boundary)
        row: dict[str, Any] = {
            "obs": obs[:, -1] if self._stack > 1 else obs,
            "action": decision.action,
            "reward": result.reward,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "boundary": boundary,
            "weights_version": self._version,
            **self._policy.record(outcome),
        }
        steps = len(boundary) - int(np.count_nonzero(boundary))
        self._writer.append(row, steps=steps, episodes=len(result.finished))
        episodes.extend(result.finished)
        self._state, self._obs = decision.state, result.obs
        self._first = boundary == FINAL
        self._boundary = (result.terminated | result.truncated).astype(np.uint8)  # FINAL is 1
        if self._learns is not None:
            self._learns.add(row | {"obs": obs}, result.obs, self._boundary)
        return steps

    def _new_env(self, errors: int) -> Env:
        env = self._make_env(errors)
        if self._levels:
            env.set_levels(self._levels)
        return env

    def _begin_stream(self) -> None:
        """Resets the environment: the next step does not continue the one before."""
        self._obs = self._env.reset()
        lanes = len(self._obs)
        self._boundary = np.zeros(lanes, np.uint8)
        self._first = np.ones(lanes, np.bool_)
        self._state = self._policy.initial_state(lanes)
        self._policy.reset()

    def _recover(self, error: EnvError, notes: list[str]) -> None:
        """Recreates the environment until it starts, or raises, as configured. The failed step is not written."""
        self._writer.cut()
        if self._learns is not None:
            self._learns.cut()
        failure: EnvError | None = error
        while failure is not None:
            self._errors += 1
            now = time.monotonic()
            self._errors_at = [*(one for one in self._errors_at if now - one < ERROR_SECONDS), now]
            limit, said = self._settings.env_error_limit, str(failure).rstrip(".")
            count = f"error {len(self._errors_at)} of {limit} within an hour"
            if self._settings.on_env_error == "stop" or len(self._errors_at) >= limit:
                raise EnvError(
                    f"{said} (actor {self._index}, {count}; actor.on_env_error = {self._settings.on_env_error})."
                ) from failure
            done = f"recreated the environment ({count})"
            notes.append(f"actor {self._index}: {said}; {done}{traceback_if_asked(failure)}")
            self._env.close()
            try:
                self._env = self._new_env(self._errors)
                self._begin_stream()
                failure = None
            except EnvError as again:
                failure = again
