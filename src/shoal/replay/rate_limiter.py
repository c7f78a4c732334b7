"""When to insert and when to sample.

The ratio of samples to inserts, not the speed of the machine, decides what a run learns: with it the same scenario
gives the same result on 2 cores and on 200. `error = (inserts - min_size) * samples_per_insert - samples` is kept
within the tolerance: above it the actors wait, below it the learner does.

A batch sometimes needs more than the minimum: a long view looks ahead over many rows, a queue needs its next sequences.
A learner that may draw and cannot grants the actors what it lacks (`pace`); otherwise both sides would wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import ConfigError


@dataclass(frozen=True)
class RateLimiter:
    """Says when. Pure: the counts come from the shards' headers and the run's ledger.

    Attributes:
        min_size: steps to insert before the first sample.
        samples_per_insert: how often a step is sampled on average; None for no limit either way.
        tolerance: allowed error, in samples.
    """

    min_size: int
    samples_per_insert: float | None
    tolerance: float

    def __post_init__(self) -> None:
        ratio = self.samples_per_insert
        if ratio is None:
            return
        if ratio <= 0:
            raise ConfigError(f"samples_per_insert is {ratio}; use a positive number, or null for no limit.")
        if self.tolerance < max(1.0, ratio):
            raise ConfigError(
                f"The rate limiter's tolerance is {self.tolerance}; below max(1, samples_per_insert) = "
                f"{max(1.0, ratio)} actors and learner could block each other for ever. Raise replay.tolerance."
            )

    def error(self, inserts: int, samples: int) -> float:
        """How many samples the learner is behind (positive) or ahead (negative)."""
        return (inserts - self.min_size) * (self.samples_per_insert or 0.0) - samples

    def may_sample(self, inserts: int, samples: int) -> bool:
        """Whether the learner may draw its next batch."""
        if inserts < self.min_size or inserts == 0:
            return False
        return self.samples_per_insert is None or self.error(inserts, samples) > -self.tolerance

    def may_insert(self, inserts: int, samples: int, granted: int = 0) -> bool:
        """Whether an actor may write its next step; up to `granted` inserts it may in any case."""
        if self.samples_per_insert is None or inserts < max(self.min_size, granted):
            return True
        return self.error(inserts, samples) < self.tolerance

    def achieved(self, inserts: int, samples: int) -> float:
        """The ratio reached so far, counted from the first sample on."""
        return samples / max(1, inserts - self.min_size)
