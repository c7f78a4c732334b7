"""Checks across settings: values that contradict each other, or do not fit the environment or the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from shoal.algorithms.compiled import require_compiler
from shoal.errors import ConfigError
from shoal.loops.plan import Plan, make_limiter, make_plan, require_room_for_queue, require_servable
from shoal.loops.precision import require_bfloat16
from shoal.loops.settings import RunSettings
from shoal.replay.settings import ReplaySettings

DEFAULT_STEPS = 1_000_000
"""Steps of a run without a stop condition."""


def settings_fit_together(settings: RunSettings) -> list[ConfigError]:
    """All contradictions within the settings."""
    replay, batch_size = settings.replay, settings.learner.most_draws
    found = []
    if replay.min_size > replay.capacity:
        found.append(
            f"replay.min_size = {replay.min_size} is more than replay.capacity = {replay.capacity}: "
            "learning would never begin."
        )
    if batch_size > replay.capacity:
        found.append(f"learner.batch_size = {batch_size} is more than replay.capacity = {replay.capacity} holds.")
    found += _refusals("replay.selectors", lambda: replay.shares(batch_size))
    types = tuple(part.type for part in replay.selectors)
    found += _refusals("replay.selectors", lambda: settings.definition.check_replay(settings.algorithm, types))
    if replay.samples_per_insert is not None:
        found += _queue_refusals(replay, replay.samples_per_insert)
    if settings.share.registry and (
        len(replay.selectors) > 1 or settings.definition.steps_per_draw(settings.algorithm) > 1
    ):
        found.append(
            f"share.registry cannot be used with {settings.algo} and these replay.selectors: runs share transitions "
            "that a single selector draws."
        )
    least = settings.learner.batch.min
    if least is not None and least > batch_size:
        found.append(f"learner.batch.min = {least} is more than the largest batch, {batch_size}.")
    found += _refusals("replay", lambda: make_limiter(settings))
    found += _refusals("actor.inference", lambda: require_servable(settings))
    try:
        torch.device("cpu" if settings.learner.device == "auto" else settings.learner.device)
    except RuntimeError:
        device = settings.learner.device
        found.append(f"learner.device = {device!r} cannot be used: it must be auto, cpu, cuda or cuda:N.")
    return [ConfigError(text) for text in found]


def check_environment(settings: RunSettings) -> Plan:
    """The run's plan. Refuses settings that do not fit the environment or this machine.

    Raises:
        UnknownName: no environment has this id.
        ConfigError: the algorithm cannot learn it, its replay is too small, the device is missing.
        EnvError: it could not be made.
    """
    plan = make_plan(settings)
    span = plan.span
    least = (2 * (span.before + span.after) + 16) * plan.lanes
    if settings.replay.capacity < least:
        raise ConfigError(
            f"replay.capacity = {settings.replay.capacity} is too small for actors = {settings.actors} times "
            f"env.lanes = {settings.env.lanes}, which need {least} steps: raise it, or lower one of them."
        )
    if not span.crosses_episodes and any(part.is_queue for part in settings.replay.selectors):
        raise ConfigError(
            f"replay.selectors has a queue, but {settings.algo} learns from transitions and queues hand out sequences: "
            "use uniform, newest or prioritized."
        )
    require_room_for_queue(plan)
    device = plan.learner_device  # refused here if it is missing
    if settings.learner.compile and device.type == "cpu":
        require_compiler()
    if settings.actor.inference == "served":
        _ = plan.inference_device
    _ = plan.evaluation_device
    if settings.actor.precision == "bfloat16":
        require_bfloat16("actor.precision = bfloat16", "float32")
    if settings.learner.autocast and device.type == "cpu":
        require_bfloat16("learner.autocast = true", "false")
    return plan


def with_default_stop(settings: RunSettings, reward_threshold: float | None) -> RunSettings:
    """Adds a stop condition to a run without one: the environment's reward threshold, and a million steps at most."""
    stop = settings.stop
    if (stop.steps, stop.seconds, stop.mean_return) != (None, None, None):
        return settings
    ends = stop.model_copy(update={"steps": DEFAULT_STEPS, "mean_return": reward_threshold})
    return settings.model_copy(update={"stop": ends})


def _queue_refusals(replay: ReplaySettings, ratio: float) -> Iterator[str]:
    """A queue hands out each step a fixed number of times: for more draws, actors and learner would wait for ever."""
    if replay.queue is not None:
        yield (
            f"replay.samples_per_insert = {ratio:g} cannot be used with a queue, which decides by itself how often a "
            "step is drawn: set it to null, and the ratios of replay.selectors to what you want."
        )
        return
    for part in replay.selectors:
        most = (part.passes if part.type == "circular" else 1) / part.ratio
        if part.is_queue and ratio > most:
            yield (
                f"replay.samples_per_insert = {ratio:g} cannot be reached with {part.type} at ratio = {part.ratio:g}, "
                f"which draws a step {most:g} times at most: lower it to that or less, or set it to null."
            )


def _refusals(name: str, attempt: Callable[[], object]) -> Iterator[str]:
    try:
        attempt()
    except ConfigError as error:
        yield f"{name}: {error}"
