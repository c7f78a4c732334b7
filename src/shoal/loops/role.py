"""Role: what the runtimes know of an actor, a learner, an evaluator or an inference server. All of it is on this page.

role = entry.build(plan, index)         # in the process it lives in; see `runtime.roster`
while not role.stopping:
    supervisor.take(name, role.run(**bounds))
role.end()
"""

from __future__ import annotations

from typing import Any, Protocol

from shoal.loops.reports import Report


class Role(Protocol):
    """Works in bounded pieces, so that the caller keeps control."""

    def run(self, *args: Any, **bounds: Any) -> Report | None:
        """Works until a bound is reached or the run stops. The bounds are the role's own: seconds, steps, updates.

        Returns what was done, or None if there is nothing to tell.
        """

    @property
    def stopping(self) -> bool:
        """Whether the run has told this role to end."""

    def end(self) -> None:
        """Publishes, saves and closes what it holds. Called once; not at all if its process is killed."""
