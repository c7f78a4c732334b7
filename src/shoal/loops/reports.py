"""What roles report after a bounded piece of work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from shoal.envs.episode_metrics import mean_metrics
from shoal.loops.health import Health
from shoal.types import Episode


def mean_episode_metrics(told: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """What environments say of episodes, by name, each averaged over the episodes that it was said of. The mean of
    `is_success` is the `success_rate`.
    """
    means = mean_metrics(told)
    return {"success_rate" if name == "is_success" else name: value for name, value in means.items()}


class Report:
    """What every report may say. It is also the role's sign of life."""

    notes: tuple[str, ...] = ()
    """For the user."""
    notes_recur: ClassVar[bool] = False
    """Whether notes of one kind come again and again: then the first is shown and the others are counted."""

    @property
    def logged(self) -> Mapping[str, float]:
        """For the next line of metrics, by metric name. If it is empty, that of the report before stays. Where several
        roles report a metric, their mean is written.
        """
        return {}


@dataclass(frozen=True)
class ActorReport(Report):
    """Steps and episodes of one actor since its last report."""

    index: int
    steps: int
    seconds: float
    waited: float
    """Seconds spent waiting for the rate limiter."""
    episodes: tuple[Episode, ...]
    weights_version: int
    """Of the weights it holds; 0 when the inference server has them."""
    notes: tuple[str, ...] = ()
    """Environment errors the actor recovered from."""
    served: float = math.nan
    """Seconds spent waiting for the inference server; NaN: it has a network of its own."""
    notes_recur = True

    @property
    def logged(self) -> Mapping[str, float]:
        """The share of its time that it waited for the inference server, if there is one."""
        share = self.served / self.seconds if self.seconds else math.nan
        return {} if math.isnan(share) else {"time/actor_inference_fraction": share}


@dataclass(frozen=True)
class InferenceReport(Report):
    """Requests answered since the last report."""

    batches: int
    observations: int
    """Of all lanes that were answered."""
    seconds: float
    waited: float
    """Seconds spent waiting for requests."""
    weights_version: int

    @property
    def logged(self) -> Mapping[str, float]:
        """Mean batch, and the share of its time that the server waited."""
        return {
            "time/inference_batch": self.observations / self.batches if self.batches else math.nan,
            "time/inference_wait_fraction": self.waited / self.seconds,
        }


@dataclass(frozen=True)
class LearnerReport(Report):
    """Updates since the last report, and what they read."""

    updates: int
    seconds: float
    waited: float
    """Seconds spent waiting for experience."""
    metrics: Mapping[str, float]
    """Means over the updates."""
    staleness: float
    """Mean age of the drawn steps' weights, in published versions."""
    weights_version: int
    notes: tuple[str, ...] = ()
    """Checkpoints that could not be used; peers that were refused."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """What was read from other runs, by metric name."""
    replay: Mapping[str, float] = field(default_factory=dict)
    """What the source of the batches reports: rows, dropped priorities, the length of a queue; what a gradient server
    took, whose names have a prefix of their own."""

    health: Health | None = None
    """The newest look at the learner's networks and draws."""
    rank: int = 0
    """Which of several learners this is. Their updates are the same, and counted once: the first one's."""
    exchanged: float = math.nan
    """Seconds spent in exchanges with the other learners; NaN: there are none."""

    @property
    def logged(self) -> Mapping[str, float]:
        """What its last updates read; nothing if there were none."""
        if not self.updates or self.rank:
            return {}
        replay = {name if "/" in name else f"replay/{name}": value for name, value in self.replay.items()}
        health = self.health.logged if self.health else {}
        share = self.exchanged / self.seconds
        exchange = {} if math.isnan(share) else {"time/exchange_fraction": share}
        return {"train/staleness": self.staleness, **replay, **self.shared, **health, **exchange}


@dataclass(frozen=True)
class LinkReport:
    """One outpost's link since the last report."""

    rows: int
    nbytes: int
    calls: int
    behind: int
    """Rows that home does not have yet, as far as is known."""
    lost: int
    """Rows that were overwritten before they could be mirrored, ever."""
    restarts: int
    """Of its courier."""
    lag: float
    """Longest time between two parcels, in seconds."""
    silent: float
    """Seconds since it answered, if that is worrying; else 0."""
    rows_per_second: float = 0.0

    def unsent(self, silent: float) -> int:
        """About how many rows the outpost has and home has not, after so many seconds of silence."""
        return self.behind + round(self.rows_per_second * (self.lag + silent))


@dataclass(frozen=True)
class MirrorReport(Report):
    """What came from the outposts since the last report."""

    seconds: float
    links: Mapping[int, LinkReport]
    """By outpost."""
    notes: tuple[str, ...] = ()

    @property
    def logged(self) -> Mapping[str, float]:
        """Of all links together."""
        links = self.links.values()
        return {
            "nodes/rows_behind": float(sum(link.behind for link in links)),
            "nodes/rows_lost": float(sum(link.lost for link in links)),
            "nodes/lag_seconds": max((link.lag for link in links), default=0.0),
            "nodes/mb_per_second": sum(link.nbytes for link in links) / 1e6 / max(self.seconds, 1e-9),
            "nodes/calls_per_second": sum(link.calls for link in links) / max(self.seconds, 1e-9),
        }


@dataclass(frozen=True)
class EvaluationReport(Report):
    """What the evaluator saw."""

    returns: tuple[float, ...]
    """Empty when the evaluation failed or was cut; the notes say why."""
    lengths: tuple[int, ...]
    env_steps: int
    """Environment steps of the run when its weights were taken."""
    weights_version: int
    seconds: float
    best: bool = False
    """Whether this was the best evaluation so far."""
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of what the environment says of the episodes, `success_rate` among them."""
    notes_recur = True
