"""Defaults that depend on what is known before the start: the environment's kind, and the machine's cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


Look = Callable[[Any], EnvSpec | None]
"""From an `env` section to what it describes; None if that is not known."""


def look_at(env: Any) -> EnvSpec | None:
    """Makes the environment once. None if that fails, which the start of the run will explain."""
    try:
        return describe_env(EnvSettings.model_validate(env if isinstance(env, Mapping) else {"id": env}))
    except (ShoalError, ValidationError):
        return None


def look_without_import(env: Any) -> EnvSpec | None:
    """As `look_at`, but imports no module that the environment's id or wrappers name."""
    try:
        named = EnvSettings.model_validate(env if isinstance(env, Mapping) else {"id": env})
    except ValidationError:
        return None
    return None if named.modules else look_at(env)


def suited_to(
    spec: EnvSpec, algorithm: Algorithm, *, named: bool, papers: bool = False, batch: Any = None
) -> Mapping[str, Any]:
    """The layer of settings that suit an environment and this machine, with the reasons.

    Args:
        spec: the environment.
        algorithm: the run's.
        named: whether the user named it.
        papers: whether what is not set keeps the papers' numbers.
        batch: the user's `learner.batch_size`, if it is set: the ratios of suited selectors must divide it.
    """
    kind, reasons = described(spec), []
    if not named:
        reasons.append(f"algo = {algorithm.name}: the surest for {kind}.")
    suited = {} if papers else dict(algorithm.suited(spec))
    if isinstance(batch, int) and batch > 0 and len(parts := suited.get("replay", {}).get("selectors", ())) == 2:
        suited["replay"] = {**suited["replay"], "selectors": _divided(parts, batch)}
    if suited:
        reasons.append(f"Settings not given suit {kind}; defaults=paper takes the paper's.")
    if not papers and spec.sees_images and (actors := actors_for_images(usable_cores())) != 2:
        suited["actors"] = actors
        reasons.append(f"actors = {actors}, because this machine has {usable_cores()} cores.")
    return {**suited, "reasons": reasons}


def _divided(parts: Sequence[Mapping[str, Any]], batch: int) -> list[Mapping[str, Any]]:
    """Two selectors with the nearest ratios that divide a batch; the first one gets at least one draw."""
    first = max(1, round(parts[0]["ratio"] * batch))
    draws = (first, batch - first)
    return [{**part, "ratio": number / batch} for part, number in zip(parts, draws, strict=True) if number]


def actors_for_images(cores: int) -> int:
    """Images take most of the time: all cores that the learner and the evaluator leave free."""
    return max(1, min(MOST_ACTORS, max(2 if cores > 1 else 1, cores - FREE_CORES)))
