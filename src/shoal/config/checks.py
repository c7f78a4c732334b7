"""Checks across settings: values that contradict each other, or do not fit the environment or the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch

from shoal.algorithms import ALGORITHMS
from shoal.envs import try_levels
from shoal.errors import ConfigError, EnvError
from shoal.loops.curriculum import label
from shoal.loops.plan import Plan, learner_draws, make_limiter, make_plan, require_room_for_queue, require_servable
from shoal.loops.requirements import is_placed_later, require_machine
from shoal.loops.settings import RunSettings
from shoal.loops.trial import try_own_code
from shoal.replay.settings import ReplaySettings
from shoal.replay.shares import divides
from shoal.runtime.storage_copy import require_writable

DEFAULT_STEPS = 1_000_000
"""Steps of a run without a stop condition."""
MOST_LEVELS = 10_000
"""Of a curriculum."""
_LEVEL = ("start", "grow", "limit")


def settings_fit_together(settings: RunSettings) -> list[ConfigError]:
    """All contradictions within the settings."""
    replay, batch_size = settings.replay, settings.most_draws
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
    if replay.rollout is not None:
        found += _rollout_refusals(settings)
    elif replay.samples_per_insert is not None:
        found += _queue_refusals(replay, replay.samples_per_insert)
    found += _push_refusals(settings)
    found += _curriculum_refusals(settings)
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
    device = settings.learner.device
    for one in (device,) if isinstance(device, str) else device:
        try:
            torch.device("cpu" if one == "auto" else one)
        except RuntimeError:
            found.append(f"learner.device = {one!r} cannot be used: it must be auto, cpu, cuda or cuda:N.")
    found += _learners_refusals(settings)
    return [ConfigError(text) for text in found]


def check_environment(settings: RunSettings) -> Plan:
    """The run's plan. Refuses settings that do not fit the environment or, without a cluster, this machine.

    Raises:
        UnknownName: no environment has this id.
        ConfigError: the algorithm cannot learn it, its replay is too small, the device is missing.
        EnvError: it could not be made.
    """
    plan = make_plan(settings)
    try_own_code(plan)
    span = plan.span
    least = (2 * (span.before + span.after) + 16) * plan.lanes
    if settings.replay.capacity < least:
        raise ConfigError(
            f"replay.capacity = {settings.replay.capacity} is too small for actors = {settings.actors} times "
            f"env.lanes = {settings.env.lanes}, which need {least} steps, because a draw reads up to "
            f"{span.before + span.after + 1} neighbouring ones: raise it, or lower one of them, or the length of draws."
        )
    if plan.spec.agents and settings.env.reward_clip not in ("auto", None):
        raise ConfigError(
            f"env.reward_clip = {settings.env.reward_clip:g} cannot be used with several agents, who learn from what "
            "each of them got: set it to null, and clip in the environment."
        )
    if not span.crosses_episodes and any(part.is_queue for part in settings.replay.selectors):
        raise ConfigError(
            f"replay.selectors has a queue, but {settings.algo} learns from transitions and queues hand out sequences: "
            "use uniform, newest or prioritized."
        )
    require_room_for_queue(plan)
    _require_levels(plan)
    if not is_placed_later(settings):
        require_machine(plan)
        require_writable(settings.checkpoints.path)
    return plan


def with_default_stop(settings: RunSettings, reward_threshold: float | None) -> RunSettings:
    """Adds a stop condition to a run without one: the environment's reward threshold, and a million steps at most."""
    stop = settings.stop
    if (stop.steps, stop.seconds, stop.mean_return) != (None, None, None) or stop.curriculum:
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


def _learners_refusals(settings: RunSettings) -> Iterator[str]:
    """What several learners exclude."""
    learners, device = settings.learners, settings.learner.device
    if not isinstance(device, str) and (len(device) != learners or len({one.split(":")[0] for one in device}) > 1):
        yield (
            f"learner.device = [{', '.join(device)}] must name one device of one kind for each of learners = "
            f"{learners}: for instance [{', '.join(f'cuda:{one}' for one in range(learners))}], or cpu for all."
        )
    if learners == 1:
        return
    if settings.runtime == "inline":
        yield f"learners = {learners} need a process each, and runtime = inline has only one: use ray, or learners=1."
    if settings.share.registry:
        yield f"share.registry cannot be used with learners = {learners}: set learners=1 in runs that share replay."
    if learners > settings.actors:
        yield (
            f"learners = {learners} is more than actors = {settings.actors}, and each learner reads the shards of its "
            f"own actors: use actors={learners} or more, or learners={settings.actors} or fewer."
        )
        return
    if (
        settings.learner.compile
        and settings.algo != "ppo"
        and getattr(settings.algorithm, "normalize_advantages", False)
    ):
        yield (
            "learner.compile cannot be used with several learners and algorithm.normalize_advantages = true, which "
            "asks the other learners in the middle of the loss: set one of them to false, or learners=1."
        )
    ratios = [part.ratio for part in settings.replay.selectors]
    if not all(map(partial(divides, ratios), learner_draws(settings, size := settings.most_draws))):
        fits = (n for n in range(size, 16 * size) if all(map(partial(divides, ratios), learner_draws(settings, n))))
        nearest = next(fits, None)
        yield (
            f"learner.batch_size = {size} does not divide among learners = {learners}, whose parts must divide by the "
            f"ratios of replay.selectors: use {nearest or 'rounder ratios'}, or learners=1."
        )


def _rollout_refusals(settings: RunSettings) -> Iterator[str]:
    """What a barrier between actors and learner excludes."""
    if not settings.definition.synchronous:
        able = ", ".join(name for name, one in ALGORITHMS.items() if one.synchronous)
        yield (
            f"replay.selectors: rollout hands out sequences, and {settings.algo} learns from transitions: use uniform "
            f"or prioritized, or one of {able}."
        )
        return
    if len(settings.replay.selectors) > 1:
        yield "replay.selectors: a rollout is all that an update learns from: remove the other selectors."
    learner = settings.learner
    values = {
        "learner.batch_size": (learner.batch_size, "lanes", "an update takes one sequence of every lane"),
        "learner.batch.min": (learner.batch.min, None, "the rollout's own `share` says how few are enough"),
        "learner.batch.max": (learner.batch.max, None, "an update takes one sequence of every lane"),
        "learner.prefetch": (learner.prefetch, 0, "the next rollout must not begin before this one is learned from"),
        "learner.publish_every": (learner.publish_every, 1, "every rollout needs new weights"),
        "actor.weights_period": (settings.actor.weights_period, 1, "every rollout needs new weights"),
        "replay.samples_per_insert": (settings.replay.samples_per_insert, None, "each is learned from in one update"),
        "replay.min_size": (settings.replay.min_size, 1, "the first one is enough to begin"),
    }
    for name, (value, needed, why) in values.items():
        if value != needed:
            remedy = f"set it to {'null' if needed is None else needed}, or name an algorithm that replays older steps"
            yield f"{name} = {value} cannot be used with rollouts, because {why}: {remedy}."


def _push_refusals(settings: RunSettings) -> Iterator[str]:
    """What gradients that actors compute exclude."""
    if settings.definition.pushes is None:
        return
    rules, rollout = settings.definition.pushes(settings.algorithm, settings.actors), settings.replay.rollout
    if rules.on_full == "wait" and rules.k > settings.actors:
        yield (
            f"algorithm.k = {rules.k} is more than actors = {settings.actors}, and with on_full = wait each has only "
            "one gradient at a time: lower it, or set on_full to newest."
        )
    values = {
        "learner.device": (settings.learner.device in ("auto", "cpu"), "auto", "actors compute the gradients"),
        "actor.precision": (
            settings.actor.precision == "float32",
            "float32",
            "actors learn with the weights they act with",
        ),
        "replay.selectors.lag": (rollout is None or rollout.lag == 0, 0, "on_full says whether actors wait"),
        "replay.selectors.share": (rollout is None or rollout.share == 1, 1, "k says how many are enough"),
        "share.registry": (not settings.share.registry, "null", "no experience is drawn"),
        "learners": (settings.learners == 1, 1, "one server applies the gradients of all actors"),
    }
    for name, (fits, needed, why) in values.items():
        if not fits:
            yield f"{name} cannot be changed with {settings.algo}, because {why}: set it to {needed}."


def _curriculum_refusals(settings: RunSettings) -> Iterator[str]:
    """Numbers of a level that do not match, or never reach their limit."""
    start, grow, limit = settings.curriculum.start, settings.curriculum.grow, settings.curriculum.limit
    if not start and (grow or limit or settings.stop.curriculum):
        yield "curriculum.start is missing: name the first level, such as {agents: 1, size: 10}."
        return
    if not set(start) == set(grow) == set(limit):
        named = (f"{key} has {', '.join(one) or 'none'}" for key, one in zip(_LEVEL, (start, grow, limit), strict=True))
        yield f"curriculum: {', '.join(_LEVEL)} must name the same numbers: {'; '.join(named)}."
        return
    levels = 1.0
    for name in start:
        way = limit[name] - start[name]
        if way * grow[name] <= 0 and way:
            yield (
                f"curriculum.grow.{name} = {grow[name]:g} never leads from start = {start[name]:g} to limit = "
                f"{limit[name]:g}: change its sign, or the limit."
            )
            return
        levels *= 1 + way / grow[name] if way else 1
    if levels > MOST_LEVELS:
        yield f"curriculum: {levels:,.0f} levels are more than {MOST_LEVELS:,}: let them grow faster (curriculum.grow)."


def _require_levels(plan: Plan) -> None:
    """Refuses a curriculum that the environment cannot play."""
    curriculum, known, env_id = plan.settings.curriculum, plan.spec.levels, plan.spec.env_id
    if not curriculum.start:
        return
    if not known:
        raise ConfigError(
            f"curriculum: {env_id} has no levels of difficulty. Remove the section, or give the environment "
            '`metadata["levels"]`, the names of the numbers that its `reset` takes in options["level"].'
        )
    if unknown := sorted(set(curriculum.start) - set(known)):
        raise ConfigError(f"curriculum.start: a level of {env_id} has no {unknown[0]}; it has {', '.join(known)}.")
    # A level that cannot be played would fail after hours; most agents on the smallest map is neither start nor limit.
    for numbers in product(*({curriculum.start[name], curriculum.limit[name]} for name in curriculum.start)):
        level = dict(zip(curriculum.start, numbers, strict=True))
        try:
            try_levels(plan.settings.env, (level,))
        except (ConfigError, EnvError) as error:
            raise ConfigError(f"curriculum: the level {label(level)} does not fit env.kwargs: {error}") from error


def _refusals(name: str, attempt: Callable[[], object]) -> Iterator[str]:
    try:
        attempt()
    except ConfigError as error:
        yield f"{name}: {error}"
