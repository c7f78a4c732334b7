"""The cores of this machine, and how many of them an evaluation may use."""

from __future__ import annotations

import os

from shoal.loops.settings import RunSettings

MOST_THREADS = 8


def usable_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def emulator_threads(settings: RunSettings, cores: int) -> int:
    """Emulator threads of an evaluation (Atari). They help on a busy machine too: the work stays the same, and the
    evaluation gets a larger part of the cores while it lasts.
    """
    wanted = settings.evaluation.threads
    return max(settings.env.threads, min(MOST_THREADS, cores)) if wanted == "auto" else wanted


def torch_threads(settings: RunSettings, cores: int, *, alone: bool = False) -> int:
    """Torch threads of an evaluation: as many as the other roles leave free, because threads that wait for each other
    on a busy core are several times slower than one.

    Args:
        settings: the run's settings.
        cores: of the machine.
        alone: whether the other roles have ended.
    """
    if settings.runtime == "inline":  # its roles share their threads
        return settings.actor.threads
    if settings.evaluation.threads != "auto":
        return settings.evaluation.threads
    others = settings.actors + settings.learners * settings.learner.threads + (settings.actor.inference == "served")
    return max(1, min(MOST_THREADS, cores - (0 if alone else others)))
