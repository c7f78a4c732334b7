"""Defaults that depend on what is known before the start: the environment's kind, and the machine's cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from pydantic import ValidationError

from shoal.algorithms import Algorithm
from shoal.algorithms.choice import described
from shoal.envs import EnvSettings, describe_env
from shoal.errors import ShoalError
from shoal.loops.machine import usable_cores
from shoal.types import EnvSpec

FREE_CORES = 2
"""Of those that actors leave free where they take all: for the learner and the rest."""
MOST_ACTORS = 14
IMAGE_BYTES = 2 << 30
"""What a replay of images takes at most, unless its capacity is set."""
FEWEST_ROWS = 20_000
_STEP_SIZES = ("learning_rate", "learning_rate_end", "schedule_updates")


Look = Callable[[Any], EnvSpec | None]
"""From an `env` section to what it describes; None if that is not known."""


def look_at(env: Any, *, imports: bool = True) -> EnvSpec | None:
    """Makes the environment once. None if that fails, which the start of the run will explain."""
    with suppress(ShoalError, ValidationError):
        named = EnvSettings.model_validate(env if isinstance(env, Mapping) else {"id": env})
        return describe_env(named) if imports or not named.modules else None
    return None


look_without_import = partial(look_at, imports=False)
"""As `look_at`, but imports no module that the environment's id or wrappers name."""


def suited_to(spec: EnvSpec, algorithm: Algorithm, asked: Mapping[str, Any], *, named: bool) -> Mapping[str, Any]:
    """The layer of settings that suit an environment and this machine, with the reasons.

    Args:
        spec: the environment.
        algorithm: the run's.
        asked: what is set, by the scenario and above it.
        named: whether the algorithm is.
    """
    kind, reasons, papers = described(spec), [], asked.get("defaults") == "paper"
    if not named:
        reasons.append(f"algo = {algorithm.name}: the surest for {kind}.")
    suited = {} if papers else dict(algorithm.suited(spec))
    batch = _set(asked, "learner", "batch_size")
    if isinstance(batch, int) and batch > 0 and len(parts := suited.get("replay", {}).get("selectors", ())) == 2:
        suited["replay"] = {**suited["replay"], "selectors": _divided(parts, batch)}
    if "learning_rate_end" in (own := suited.get("algorithm", {})) and "schedule_updates" not in own:
        suited["algorithm"] = _until_the_end(suited, asked)
    if suited:
        reasons.append(f"Settings not given suit {kind}; defaults=paper takes the paper's.")
    cores = usable_cores()
    actors = actors_for_images(cores)
    if not papers and spec.sees_images and asked.get("actors") is None and actors != 2:
        suited["actors"] = actors
        reasons.append(f"actors = {actors}, because this machine has {cores} core{'s' * (cores > 1)}.")
    rows, usual = _rows_of_images(spec), _set(algorithm.defaults, "replay", "capacity") or 0
    if not papers and rows < usual and _set(asked, "replay", "capacity") is None:
        suited["replay"] = {**suited.get("replay", {}), "capacity": rows}
        reasons.append(f"replay.capacity = {rows:,}: {IMAGE_BYTES >> 30} GiB of these images.")
    return {**suited, "reasons": reasons}


def with_all_cores(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """`actors: auto`, as a number and a reason: an actor for every core that the other roles leave free, of this
    machine or of the cluster at the run's address.
    """
    learners, address = asked.get("learners"), asked.get("address")
    beside, served = (learners if isinstance(learners, int) else 1) + 1, _set(asked, "actor", "inference") == "served"
    if isinstance(address, str):
        from shoal.runtime.ray_tasks import count_free_cores  # here: loads Ray

        cores, nodes = count_free_cores(address)
        where, beside = f"{nodes} nodes with {cores} free cores", beside + served * nodes
    else:
        cores = usable_cores()
        where = f"this machine with {cores} cores"
    actors = max(1, cores - beside)
    reasons = [*asked.get("reasons", ()), f"actors = {actors}: all of {where}, less {beside} for the other roles."]
    return {"actors": actors, "reasons": reasons, "actors_join": asked.get("actors_join", isinstance(address, str))}


def _set(asked: Mapping[str, Any], section: str, name: str) -> Any:
    given = asked.get(section)
    return given.get(name) if isinstance(given, Mapping) else None


def _until_the_end(suited: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The algorithm's settings, with a step size that falls until the run's last step if that is known."""

    def chosen(section: str, name: str) -> Any:
        given = asked.get(section)
        return given[name] if isinstance(given, Mapping) and name in given else suited.get(section, {}).get(name)

    own, steps = suited["algorithm"], _set(asked, "stop", "steps")
    ratio, batch = chosen("replay", "samples_per_insert"), chosen("learner", "batch_size")
    fixed = any(_set(asked, "algorithm", name) is not None for name in _STEP_SIZES)
    known = all(isinstance(one, int | float) and one > 0 for one in (steps, ratio, batch))
    if fixed or not known or (updates := int(steps * ratio / batch)) < 1:
        return {name: value for name, value in own.items() if name != "learning_rate_end"}
    return {**own, "schedule_updates": updates}


def _rows_of_images(spec: EnvSpec) -> float:
    """Rows of images that a replay takes at most if its size is not set: an Atari frame has 7 KB, others megabytes."""
    row = math.prod(spec.frame_shape) * np.dtype(spec.obs_dtype).itemsize
    return max(FEWEST_ROWS, IMAGE_BYTES // row) if spec.sees_images else math.inf


def _divided(parts: Sequence[Mapping[str, Any]], batch: int) -> list[Mapping[str, Any]]:
    """Two selectors with the nearest ratios that divide a batch; the first one gets at least one draw."""
    first = max(1, round(parts[0]["ratio"] * batch))
    draws = (first, batch - first)
    return [{**part, "ratio": number / batch} for part, number in zip(parts, draws, strict=True) if number]


def actors_for_images(cores: int) -> int:
    """Images take most of the time: all cores that the learner and the evaluator leave free."""
    return max(1, min(MOST_ACTORS, max(2 if cores > 1 else 1, cores - FREE_CORES)))
