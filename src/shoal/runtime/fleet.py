"""Fleet: all roles of a run, wherever they live, and the one order in which they work and end."""

from __future__ import annotations

from typing import Protocol

from shoal.replay import LedgerWord
from shoal.replay.ledger import HALT, WIND_DOWN
from shoal.runtime.run_folder import Status
from shoal.runtime.supervisor import Supervisor


class Fleet(Protocol):
    """What a runtime implements."""

    def work(self, *, trains: bool) -> None:
        """Lets the roles that train, or the others, do their next pieces of work; hands over their reports."""

    def end_training(self) -> None:
        """Ends the roles that train, which have been told to stop."""

    def evaluate(self) -> None:
        """Lets the other roles do their last pieces of work."""

    def end(self) -> None:
        """Ends every role that is left. Called also when the run has failed."""


def supervise(supervisor: Supervisor, fleet: Fleet) -> Status:
    """Works until the supervisor says how the run ended, and ends it."""
    try:
        while (status := supervisor.status()) is None:
            fleet.work(trains=True)
            supervisor.record_if_due()
            if supervisor.inline or supervisor.status() is None:  # else what begins beside training is cut at once
                fleet.work(trains=False)
            supervisor.tick()
        if status == "finished":
            supervisor.ledger[LedgerWord.STOP] = WIND_DOWN  # cuts an evaluation under way
            fleet.end_training()  # the final weights are published
            supervisor.doing = "evaluating the final weights"
            fleet.evaluate()
            supervisor.doing = ""
            supervisor.tick()
            status = supervisor.status() or status
        return status
    finally:
        supervisor.ledger[LedgerWord.STOP] = HALT
        fleet.end()
        supervisor.record()
