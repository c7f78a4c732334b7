"""RemotePolicy: the policy of an actor without a network. It asks the inference server and waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from shoal.algorithms.interface import Decision, Outcome
from shoal.loops.mailbox import Mailbox, pause
from shoal.types import Array

PATIENCE = 0.2
"""Seconds an actor waits for an answer before it checks whether its run was stopped."""


class Unanswered(Exception):
    """No answer yet. Not an error: the server is being restarted, or the run ends. Call `act` again to wait longer."""


class RemotePolicy:
    """A policy whose network and recurrent state live in the inference server."""

    def __init__(self, mailbox: Mailbox, patience: float = PATIENCE) -> None:
        """Args:
        mailbox: the actor's own.
        patience: seconds to wait for an answer before `act` raises `Unanswered`.
        """
        self._mailbox, self._patience = mailbox, patience
        self.module = nn.Module()  # empty: the server has the weights
        self._number: int | None = None
        self._waited = 0.0
        self._version = np.zeros(mailbox.lanes, np.uint32)

    def initial_state(self, lanes: int) -> Any:
        """Empty: the server keeps the state, and resets it where `first` is set."""
        return ()

    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        """The server's answer; it always explores.

        Raises:
            Unanswered: the server did not answer in time. The request stays: the next call waits for the same answer.
        """
        if self._number is None:
            self._number = self._mailbox.ask(obs, first)
        asked, looks = time.monotonic(), 0
        while not (answered := self._mailbox.has_answer(self._number)):
            if time.monotonic() > asked + self._patience:
                break
            pause(looks)
            looks += 1
        self._waited += time.monotonic() - asked
        if not answered:
            raise Unanswered
        self._number = None
        return Decision(self._mailbox.answer["action"].copy(), state)

    def take_waited(self) -> float:
        """Seconds it waited for answers since this was last asked."""
        waited, self._waited = self._waited, 0.0
        return waited

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        """What the server's policy recorded, and the version of its weights. Valid until the next `act`."""
        self._version[:] = self._mailbox.version
        recorded = {name: column for name, column in self._mailbox.answer.items() if name != "action"}
        return recorded | {"weights_version": self._version}

    def reset(self) -> None:
        self._number = None
