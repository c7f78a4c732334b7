"""The bottleneck of a run: actors or learner, whichever the other side waits for."""

from __future__ import annotations

import math

_NOTICEABLE = 0.1
"""Waiting, or a difference in waiting, below this share of the time is not worth tuning."""
_BOTH_IDLE = 0.2
"""If both sides wait for more than this share of the time, the cause lies between them."""


def verdict(learner_wait: float, actor_wait: float) -> str:
    """Says in one line which side to strengthen.

    Args:
        learner_wait: share of the time, 0 to 1, that the learner waited for data; NaN when not measured.
        actor_wait: mean share of the time that the actors waited for the learner (a full queue, the rate limiter, a
            barrier); NaN when not measured.

    Returns:
        A text that begins with one of `actors`, `learner`, `balanced`, `hand-over`, `unknown`. The shares of two sides
        that take turns add up to 1; what they wait beyond that, both were idle at the same time.
    """
    if not (math.isfinite(learner_wait) and math.isfinite(actor_wait)):
        return "unknown (not measured yet)"
    learner_wait, actor_wait = (min(max(wait, 0.0), 1.0) for wait in (learner_wait, actor_wait))
    both_idle = learner_wait + actor_wait - 1.0
    if both_idle > _BOTH_IDLE:
        return (
            f"hand-over (both wait at once for at least {100 * both_idle:.0f} % of the time: look at the rate limiter "
            "and at other programs on this machine)"
        )
    learner, actors = f"{100 * learner_wait:.0f} %", f"{100 * actor_wait:.0f} %"
    if learner_wait - actor_wait > _NOTICEABLE:
        return f"actors (the learner waits {learner} of its time for data)"
    if actor_wait - learner_wait > _NOTICEABLE:
        return f"learner (the actors wait {actors} of their time for it)"
    if max(learner_wait, actor_wait) > _NOTICEABLE:
        return f"balanced (the learner waits {learner} of its time, the actors {actors})"
    return "balanced (nobody waits: both are busy)"
