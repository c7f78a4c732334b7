"""What may change when a run is resumed or evaluated, and why other settings may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shoal.config.merge import Overrides, layered, parse_overrides
from shoal.config.validate import raise_all, validated
from shoal.config.values import shown
from shoal.errors import ConfigError
from shoal.loops.settings import RunSettings

_NETWORKS = "the weights, the optimizer and the collected steps belong to it"
_SHARDS = "the replay is laid out for it"
_LEARNING = "it would change what is being learned half-way"
_COUNTS = "the rate limiter counts from the run's first step"

_FIXED: dict[str, str] = {
    "env": _NETWORKS,
    "env.lanes": _SHARDS,
    "algo": _NETWORKS,
    "algorithm": _NETWORKS,
    "actors": _SHARDS,
    "actor.precision": _LEARNING,
    "learner.batch_size": _LEARNING,
    "learner.batch": _LEARNING,
    "replay.capacity": _SHARDS,
    "replay.path": _SHARDS,
    "replay.selectors": _LEARNING,
    "replay.min_size": _COUNTS,
    "replay.samples_per_insert": _COUNTS,
    "curriculum.start": _LEARNING,
    "curriculum.grow": _LEARNING,
    "seed": "the run's random numbers began with it",
}
"""Settings and sections that stay fixed, and why. The others say only how, where and how long a run works."""


_EVALUATED = {"env.kwargs", "env.max_episode_steps", "evaluation", "algorithm.temperature"}


def change_for_resume(settings: RunSettings, overrides: Overrides) -> RunSettings:
    """The settings of a resumed run.

    Raises:
        ConfigError: a change that the run's weights or replay do not allow; says why.
    """
    changed, differences = _changed(settings, overrides)
    raise_all(_refused(differences))
    return changed


def change_for_evaluation(settings: RunSettings, overrides: Overrides) -> RunSettings:
    """The settings of a run as they are to be evaluated: on a larger map, say.

    Raises:
        ConfigError: a change of something else than the environment's arguments and how episodes are played.
    """
    changed, differences = _changed(settings, overrides)
    for name in differences:
        if not _EVALUATED & set(_prefixes(name)):
            raise ConfigError(f"{name} cannot be changed to evaluate: {', '.join(sorted(_EVALUATED))} can.")
    return changed


def _changed(settings: RunSettings, overrides: Overrides) -> tuple[RunSettings, dict[str, tuple[Any, Any]]]:
    """The settings with the overrides, and the old and the new value of each that differs."""
    before = settings.model_dump(mode="json")
    changed = validated(*layered(before, parse_overrides(overrides)))
    old, new = (dict(_leaves(one, "")) for one in (before, changed.model_dump(mode="json")))
    return changed, {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


def _refused(differences: Mapping[str, tuple[Any, Any]]) -> Iterator[ConfigError]:
    for name, (old, new) in differences.items():
        reason = next((_FIXED[key] for key in _prefixes(name) if key in _FIXED), None)
        if reason is not None:
            change = f"{name} cannot change from {shown(old, 300)} to {shown(new, 300)}"
            yield ConfigError(f"{change} in a run that goes on: {reason}. Start a new run with `shoal train`.")


def _prefixes(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
