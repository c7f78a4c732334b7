"""Numbers that change with training progress."""

from __future__ import annotations

from collections.abc import Callable

Schedule = Callable[[int], float]
"""From a step to the value there."""


def linear_schedule(start: float, stop: float, steps: int) -> Schedule:
    """A straight line, as beta in "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952.

    Args:
        start: value at step 0 and before.
        stop: value at `steps` and after, exactly.
        steps: length of the line; 0 is `stop` at once.

    Returns:
        A function of the step.
    """
    return polynomial_schedule(start, stop, steps, 1.0)


def polynomial_schedule(start: float, stop: float, steps: int, power: float = 1.0) -> Schedule:
    """stop + (1 - step / steps)^power (start - stop), as the learning rate of IMPALA.

    "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures",
    https://arxiv.org/abs/1802.01561, where power is 1 and stop is 0.

    Args:
        start: value at step 0 and before.
        stop: value at `steps` and after, exactly.
        steps: length of the curve; 0 is `stop` at once.
        power: positive; 1 is a straight line, larger ones fall fast and end flat.

    Returns:
        A function of the step.
    """
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}.")
    if not power > 0:
        raise ValueError(f"power must be positive, got {power}.")

    def value(step: int) -> float:
        if max(step, 0) >= steps:
            return float(stop)
        if step <= 0:
            return float(start)
        return float(stop + (1.0 - step / steps) ** power * (start - stop))

    return value
