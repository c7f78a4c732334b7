"""The inline runtime: every role in this process, in turn.

Two runs with one seed give identical metrics (except `time/…`), and a breakpoint stops everything. Use it to debug.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from shoal.errors import ShoalError
from shoal.loops.role import Role
from shoal.runtime.fleet import supervise
from shoal.runtime.roster import RosterEntry
from shoal.runtime.run_folder import Status
from shoal.runtime.supervisor import Supervisor


def run_inline(supervisor: Supervisor, roster: Sequence[RosterEntry]) -> Status:
    """Runs until the supervisor says how it ended."""
    return supervise(supervisor, _InlineFleet(supervisor, roster))


class _Member(NamedTuple):
    entry: RosterEntry
    name: str
    role: Role


class _InlineFleet:
    """All roles in one process."""

    def __init__(self, supervisor: Supervisor, roster: Sequence[RosterEntry]) -> None:
        self._supervisor = supervisor
        plan = supervisor.plan.in_turns()
        self._roles = [
            _Member(entry, name, entry.build(plan, index)) for entry in roster for index, name in enumerate(entry.names)
        ]
        self._turns = [one for entry in reversed(roster) for one in self._roles if one.entry is entry]

    def work(self, *, trains: bool) -> None:
        for one in self._turns:
            if one.entry.trains == trains and (bounds := one.entry.next_piece(self._supervisor)) is not None:
                self._supervisor.take(one.name, one.role.run(**bounds))

    def end_training(self) -> None:
        self._end([one for one in self._roles if one.entry.trains])

    def evaluate(self) -> None:
        self._supervisor.show()
        self.work(trains=False)

    def end(self) -> None:
        failing = sys.exception() is not None
        try:
            self._end([*self._roles])
        except ShoalError:  # ruined weights are not saved; what ruined them is the error to show
            if not failing:
                raise

    def _end(self, members: list[_Member]) -> None:
        """Ends roles, each once. One that fails does not keep the others from ending."""
        with ExitStack() as ending:
            for one in reversed(members):
                self._roles.remove(one)
                ending.callback(one.role.end)
