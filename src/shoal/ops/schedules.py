"""Numbers that change with training progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearSchedule:
    """From `start` to `stop` in a straight line over `steps`, then `stop` for ever.

    Attributes:
        start: value at step 0 and before.
        stop: value at `steps` and after, exactly.
        steps: length of the line; 0 is `stop` at once.
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps}.")

    def __call__(self, step: int) -> float:
        """The value at `step`."""
        done = max(step, 0)
        if done >= self.steps:
            return float(self.stop)  # start + 1.0 * (stop - start) need not round to stop
        return self.start + done / self.steps * (self.stop - self.start)


def linear_schedule(start: float, stop: float, steps: int) -> LinearSchedule:
    """A schedule from `start` to `stop` over `steps`, as beta in "Prioritized Experience Replay".

    https://arxiv.org/abs/1511.05952

    Args:
        start: value at step 0.
        stop: value from `steps` on.
        steps: length of the line; 0 is `stop` at once.

    Returns:
        A callable, step -> value; picklable and comparable.
    """
    return LinearSchedule(start, stop, steps)


@dataclass(frozen=True)
class PolynomialSchedule:
    """From `start` to `stop` as a power of what is left of `steps`, then `stop` for ever.

    Attributes:
        start: value at step 0 and before.
        stop: value at `steps` and after, exactly.
        steps: length of the curve; 0 is `stop` at once.
        power: 1 is a straight line; above, the curve falls fast and ends flat; below, the other way round. Positive.
    """

    start: float
    stop: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps}.")
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}.")

    def __call__(self, step: int) -> float:
        """The value at `step`."""
        left = self.steps - max(step, 0)
        if left <= 0:
            return float(self.stop)
        return float(self.stop + (left / self.steps) ** self.power * (self.start - self.stop))


def polynomial_schedule(start: float, stop: float, steps: int, power: float = 1.0) -> PolynomialSchedule:
    """A schedule stop + (1 - step / steps)^power (start - stop), as the learning rate of IMPALA and its kin.

    "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    https://arxiv.org/abs/1802.01561, where power is 1 and stop is 0.

    Args:
        start: value at step 0.
        stop: value from `steps` on.
        steps: length of the curve; 0 is `stop` at once.
        power: positive; 1 is a straight line.

    Returns:
        A callable, step -> value; picklable and comparable.
    """
    return PolynomialSchedule(start, stop, steps, power)
