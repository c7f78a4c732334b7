"""The bottleneck of a run: actors, learner, inference server or links, whichever the others wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shoal.loops.machine import usable_cores
from shoal.loops.reports import ActorReport, InferenceReport, LearnerReport, MirrorReport, Report
from shoal.loops.settings import RunSettings

_NOTICEABLE = 0.1
"""Waiting, or a difference in waiting, below this share of the time is not worth tuning."""
_BOTH_IDLE = 0.2
"""If both sides wait for more than this share of the time, the cause lies between them."""
_MOST = 0.5


@dataclass
class Share:
    """A part of a whole, both added up; NaN while nothing was added."""

    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float) -> None:
        """Adds to both."""
        self.part += part
        self.whole += whole

    @property
    def value(self) -> float:
        """0 to 1 where the part is one of the whole."""
        return self.part / self.whole if self.whole else math.nan


@dataclass(frozen=True)
class Waits:
    """Who waited for how much of the time."""

    learner: Share = field(default_factory=Share)
    """For experience."""
    actors: Share = field(default_factory=Share)
    """For the learner."""
    served: Share = field(default_factory=Share)
    """The actors, for the inference server; NaN without one."""
    server: Share = field(default_factory=Share)
    """The inference server, for requests."""
    links: Share = field(default_factory=Share)
    """Bytes from other nodes of which more waited there than a parcel holds; NaN on one node."""

    def take(self, report: Report) -> None:
        """Adds what a role reports."""
        match report:
            case ActorReport():
                self.actors.add(report.waited, report.seconds)
                self.served.add(report.served, report.seconds)
            case LearnerReport():
                self.learner.add(report.waited, report.seconds)
            case InferenceReport():
                self.server.add(report.waited, report.seconds)
            case MirrorReport():
                for link in report.links.values():
                    self.links.add(link.nbytes if link.behind else 0, link.nbytes)

    def verdict(self, settings: RunSettings) -> str:
        """The bottleneck of a run with these settings."""
        machine, served = None, self.served.value
        if settings.runtime != "inline":
            acting = settings.actors * (1 - served) + 1 if math.isfinite(served) else settings.actors  # 1: the server
            machine = Machine(usable_cores(), round(acting) + settings.learners * settings.learner.threads)
        waits = self.learner.value, self.actors.value
        server, links = self.server.value, self.links.value
        return verdict(*waits, served_wait=served, server_wait=server, links_full=links, machine=machine)


@dataclass(frozen=True)
class Machine:
    """What there is to work with, for advice that the machine can follow."""

    cores: int
    busy: int
    """Cores that the roles keep busy, the evaluator not counted."""

    def advice(self) -> str:
        """What to do about too few actors."""
        free = self.cores - self.busy
        if free > 0:
            return f"; {free} core{'s' * (free > 1)} free: raise actors"
        busy = "the only core is" if self.cores == 1 else f"all {self.cores} cores are"
        return f"; {busy} taken: more actors would not help"


def verdict(
    learner_wait: float,
    actor_wait: float,
    *,
    served_wait: float = math.nan,
    server_wait: float = math.nan,
    links_full: float = math.nan,
    machine: Machine | None = None,
) -> str:
    """Says in one line which side to strengthen.

    Args:
        learner_wait: share of the time, 0 to 1, that the learner waited for data; NaN when not measured.
        actor_wait: mean share of the time that the actors waited for the learner (a full queue, the rate limiter, a
            barrier); NaN when not measured.
        served_wait: mean share of the time that the actors waited for the inference server; NaN without one.
        server_wait: share of the time that the inference server waited for them; NaN without one.
        links_full: share of the rows from other nodes that came while still more waited there; NaN on one node.
        machine: what it runs on; None: no advice about it.

    Returns:
        A text that begins with one of `actors`, `inference`, `learner`, `links`, `balanced`, `hand-over`, `unknown`.
        The shares of two sides that take turns add up to 1; what they wait beyond that, both were idle at once.
    """
    if not (math.isfinite(learner_wait) and math.isfinite(actor_wait)):
        return "unknown (not measured yet)"
    learner_wait, actor_wait = (min(max(wait, 0.0), 1.0) for wait in (learner_wait, actor_wait))
    if learner_wait > _NOTICEABLE and links_full > _MOST:  # actors may wait, too: for a learner without their rows
        return (
            f"links (the learner waits {100 * learner_wait:.0f} % of its time for data, and rows queue on other nodes: "
            "a faster network, `shoal[compress]` on every node for images, or more actors beside the learner)"
        )
    both_idle = learner_wait + actor_wait - 1.0
    if both_idle > _BOTH_IDLE:
        return (
            f"hand-over (both wait at once for at least {100 * both_idle:.0f} % of the time: look at the rate limiter "
            "and at other programs on this machine)"
        )
    learner, actors = f"{100 * learner_wait:.0f} %", f"{100 * actor_wait:.0f} %"
    if learner_wait - actor_wait > _NOTICEABLE:
        if served_wait > _MOST and server_wait < _NOTICEABLE:
            return (
                f"inference (its server is always busy, the actors wait {100 * served_wait:.0f} % of their time for "
                "it: raise env.lanes for larger batches, or set actor.inference=local)"
            )
        return f"actors (the learner waits {learner} of its time for data{machine.advice() if machine else ''})"
    if actor_wait - learner_wait > _NOTICEABLE:
        return f"learner (the actors wait {actors} of their time for it)"
    if max(learner_wait, actor_wait) > _NOTICEABLE:
        return f"balanced (the learner waits {learner} of its time, the actors {actors})"
    return "balanced (nobody waits: both are busy)"
