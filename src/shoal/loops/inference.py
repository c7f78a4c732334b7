"""InferenceServer: one network for all actors. It takes all pending observations as one batch.

New requests arrive while a batch is computed, so a slower network gets larger batches. The recurrent state of every
lane lives here; the actor's `first` flags reset it. A restarted server has lost these states: lanes continue from
zeros, and what is recorded for the learner says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from shoal.algorithms.interface import Outcome, ServedPolicy
from shoal.loops.mailbox import Mailbox, pause
from shoal.loops.reports import InferenceReport
from shoal.loops.settings import ActorSettings
from shoal.loops.weights import BoardModule
from shoal.replay import Ledger
from shoal.types import Array

_NOTHING_YET = Outcome(np.empty(0, np.float32), np.empty(0, np.bool_), np.empty(0, np.bool_), np.empty(0, np.uint8))


class Movable(Protocol):
    """A policy that can compute on a GPU: it takes and gives numpy arrays, whatever its device."""

    def to(self, device: torch.device) -> None:
        """Moves the network to a device."""


class InferenceServer:
    """One policy behind the mailboxes of all actors."""

    def __init__(
        self,
        policy: ServedPolicy,
        mailboxes: Sequence[Mailbox],
        weights: BoardModule,
        ledger: Ledger,
        settings: ActorSettings,
        allocate: Callable[[tuple[int, ...], Any], Array] = np.zeros,
    ) -> None:
        """Args:
        policy: how to act; for all lanes of all actors.
        mailboxes: one per actor, of one layout.
        weights: of the policy.
        ledger: the run's counts.
        settings: the `actor` section.
        allocate: makes the arrays for batches (pinned memory for a GPU).
        """
        self._policy, self._mailboxes, self._weights = policy, mailboxes, weights
        self._ledger, self._settings = ledger, settings
        self._lanes, obs = mailboxes[0].lanes, mailboxes[0].obs
        self._obs = allocate((len(mailboxes) * self._lanes, *obs.shape[1:]), obs.dtype)
        self._first = np.zeros(len(self._obs), np.bool_)
        self._states = [policy.initial_state(self._lanes) for _ in mailboxes]
        self._batches = 0

    def run(self, *, seconds: float | None = None, batches: int | None = None) -> InferenceReport:
        """Answers requests until the run stops.

        Args:
            seconds: the longest time to work.
            batches: the most batches to answer; returns when no request is pending.
        """
        began = time.perf_counter()
        deadline = began + seconds if seconds is not None else float("inf")
        before, served, waited, looks = self._batches, 0, 0.0, 0
        while (now := time.perf_counter()) < deadline and not self._ledger.stop:
            if batches is not None and self._batches - before >= batches:
                break
            if ready := self._ready():
                served += self._serve(ready)
                looks = 0
                continue
            if batches is not None or self._ledger.orphaned:
                break
            pause(looks)
            looks += 1
            waited += time.perf_counter() - now
        elapsed = time.perf_counter() - began
        return InferenceReport(self._batches - before, served, elapsed, waited, self._weights.version)

    @property
    def stopping(self) -> bool:
        return self._ledger.stop

    def end(self) -> None:
        """Nothing to close."""

    def _ready(self) -> dict[int, int]:
        """The waiting actors, each with the number of its request."""
        ready = self._requests()
        if ready and self._settings.inference_wait_us:
            deadline = time.perf_counter() + self._settings.inference_wait_us * 1e-6
            while len(ready) < len(self._mailboxes) and time.perf_counter() < deadline:
                time.sleep(0)
                ready = self._requests()
        return ready

    def _requests(self) -> dict[int, int]:
        numbers = ((index, mailbox.request()) for index, mailbox in enumerate(self._mailboxes))
        return {index: number for index, number in numbers if number is not None}

    def _serve(self, ready: dict[int, int]) -> int:
        """Answers requests with one call of the policy; returns the number of observations."""
        if self._batches % self._settings.weights_period == 0:
            self._weights.refresh()
        self._batches += 1
        lanes, places = self._lanes, {}
        for place, index in enumerate(ready):
            rows = slice(place * lanes, (place + 1) * lanes)
            self._obs[rows], self._first[rows] = self._mailboxes[index].obs, self._mailboxes[index].first
            places[index] = rows
        size = len(ready) * lanes
        state = tuple(torch.cat(parts) for parts in zip(*(self._states[index] for index in ready), strict=True))
        asking = np.concatenate([index * lanes + np.arange(lanes) for index in ready])
        decision = self._policy.act(self._obs[:size], state, self._first[:size], explore=True, lanes=asking)
        answer = {"action": decision.action, **self._policy.record(_NOTHING_YET)}
        for index, number in ready.items():
            rows = places[index]
            self._states[index] = tuple(part[rows] for part in decision.state)
            own = {name: column[rows] for name, column in answer.items()}
            self._mailboxes[index].reply(number, own, self._weights.version)
        return size
