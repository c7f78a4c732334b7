"""What roles report after a bounded piece of work. A report is also the role's heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.types import Episode


@dataclass(frozen=True)
class ActorReport:
    """What one actor did."""

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


@dataclass(frozen=True)
class InferenceReport:
    """What the inference server did."""

    batches: int
    observations: int
    """Of all lanes that were answered."""
    seconds: float
    waited: float
    """Seconds spent waiting for requests."""
    weights_version: int


@dataclass(frozen=True)
class LearnerReport:
    """What the learner did."""

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
    """What the source of the batches reports: rows, dropped priorities, the length of a queue."""


@dataclass(frozen=True)
class EvaluationReport:
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
