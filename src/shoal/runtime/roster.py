"""The roster: the roles of a run, as data. Runtimes and supervisor read it and know no role by name, so a new role is
one more entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.loops.assembly import build_actor, build_evaluator, build_inference, build_learner
from shoal.loops.plan import Plan
from shoal.loops.role import Role
from shoal.loops.settings import RunSettings
from shoal.replay import LedgerWord
from shoal.runtime.supervisor import Supervisor

Bounds = Mapping[str, Any]
MIRROR_SECONDS = 5.0
"""Longest piece of the mirrors' work: with the next one they learn where a moved outpost is."""


@dataclass(frozen=True)
class RosterEntry:
    """One kind of role."""

    name: str
    build: Callable[[Plan, int], Role]
    """Builds number so-and-so of its kind, in the process where it will work."""
    next_piece: Callable[[Supervisor], Bounds | None]
    """Bounds of its next piece of work; None: there is none now."""
    count: int | None = None
    """How many there are; None: one, which needs no number in its name."""
    gpu: bool = False
    """Whether it computes on a GPU."""
    cpus: float = 1.0
    """Cores that are reserved for each."""
    outpost: Callable[[int], int | None] = lambda index: None
    """Where each is: at home, beside the learner, or in an outpost on another node."""
    trains: bool = True
    """Whether it works from the start until training ends. Otherwise it starts with its first piece of work, and may
    have one more after training has ended.
    """
    pulse: LedgerWord | None = None
    """A count that grows while it works. Without one, its bounds on Ray say how many `seconds` a piece takes."""

    @property
    def names(self) -> list[str]:
        """What the user knows each of them by."""
        return [self.name] if self.count is None else [f"{self.name} {index}" for index in range(self.count)]


def make_roster(plan: Plan) -> Sequence[RosterEntry]:
    """The roles of a run, in the order in which they start. Inline, those that train take turns in the opposite order:
    first those that produce, then those that consume.
    """
    learners, gpu = plan.settings.learners, plan.device_of_learner().type == "cuda"
    away = {actor: outpost for outpost, actors in enumerate(plan.outposts) for actor in actors}
    learner = RosterEntry("learner", build_learner, _learning, count=None if learners == 1 else learners, gpu=gpu)
    actor = RosterEntry("actor", build_actor, _acting, count=plan.settings.actors, outpost=away.get)
    evaluator = RosterEntry(
        "evaluator",
        build_evaluator,
        _evaluating,
        gpu=plan.evaluation_device.type == "cuda",
        trains=False,
        pulse=LedgerWord.EVALUATED,
    )
    mirrors = RosterEntry("mirrors", _build_mirrors, _mirroring, cpus=0.0)
    inference = [_inference(plan, outpost) for outpost in (None, *range(len(plan.outposts)))]
    served = plan.settings.actor.inference == "served"
    return (
        learner,
        *([mirrors] if plan.outposts else []),
        *([one for one in inference if one is not None] if served else []),
        actor,
        evaluator,
    )


def _inference(plan: Plan, outpost: int | None) -> RosterEntry | None:
    """The inference server of a site, if it has actors."""
    if not replace(plan, outpost=outpost).actors_here:
        return None
    name = "inference" if outpost is None else f"inference of outpost {outpost}"
    gpu = outpost is None and plan.inference_device.type == "cuda"
    return RosterEntry(name, build_inference, _serving, gpu=gpu, outpost=lambda index: outpost)


def _build_mirrors(plan: Plan, index: int) -> Role:
    from shoal.runtime.ray_mirrors import Mirrors  # here: loads Ray

    return Mirrors(plan)


def count_roles(roster: Sequence[RosterEntry]) -> int:
    """How many roles, and on Ray processes, a run has."""
    return sum(len(entry.names) for entry in roster)


def count_beside(settings: RunSettings) -> int:
    """How many roles are on the learner's node: all except actors. Asked before that node, and its GPUs, are known."""
    return settings.learners + 1 + (settings.actor.inference == "served")


def list_roles(roster: Sequence[RosterEntry]) -> str:
    """The roles of a run in words: `learner, 2 actors, evaluator`."""
    return ", ".join(
        entry.name if entry.count is None else f"{entry.count} {entry.name}{'s' * (entry.count > 1)}"
        for entry in roster
    )


def _acting(supervisor: Supervisor) -> Bounds:
    """Actors are many and change slowly: in a run that is no longer young they report half as often, which halves the
    calls of a run whose steps are slow.
    """
    levels = {} if supervisor.curriculum is None else {"levels": supervisor.curriculum.levels}
    if supervisor.inline:
        return {"steps": 1, **levels}
    usual = supervisor.report_seconds
    return {"seconds": 2 * usual if usual >= supervisor.settings.report_seconds else usual, **levels}


def _learning(supervisor: Supervisor) -> Bounds | None:
    if supervisor.inline:
        updates = supervisor.pace.batches_due(supervisor.settings.rows_per_batch)
        return {"updates": updates} if updates else None
    return {"seconds": supervisor.report_seconds}


def _mirroring(supervisor: Supervisor) -> Bounds:
    seconds = min(MIRROR_SECONDS, supervisor.report_seconds)
    return {"seconds": seconds, "outposts": supervisor.outposts}


def _serving(supervisor: Supervisor) -> Bounds:
    return {"seconds": supervisor.report_seconds}


def _evaluating(supervisor: Supervisor) -> Bounds | None:
    if not supervisor.take_evaluation_turn():
        return None
    final = supervisor.ledger.stop
    if final and supervisor.inline:  # where nothing else is shown until it is done
        supervisor.note(supervisor.doing)
    episodes = supervisor.settings.evaluation.episodes
    return {"episodes": episodes, "seconds": supervisor.evaluation_seconds, "final": final}
