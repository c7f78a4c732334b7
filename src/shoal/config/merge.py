"""Merges the layers of settings: the algorithm's defaults, what suits the environment, the scenario, the command line.
Later ones win."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.algorithms import get_algorithm
from shoal.algorithms.choice import choose_algorithm
from shoal.config.environment import Look, suited_to, with_all_cores
from shoal.config.fields import Fields, Key, dotted
from shoal.config.values import parse_yaml, shown
from shoal.errors import ConfigError
from shoal.loops.settings import RunSettings

Overrides = Sequence[str] | Mapping[str, Any]
"""`["learner.batch_size=256"]` as typed, or `{"learner.batch_size": 256}` from Python."""
DEFAULT_ALGO = "apex-dqn"


def parse_overrides(overrides: Overrides) -> list[tuple[str, Any]]:
    """Names and values, in order."""
    if isinstance(overrides, str):
        raise ConfigError(f"Settings are a list such as ['learner.batch_size=256'], got the text {overrides!r}.")
    if isinstance(overrides, Mapping):
        return list(overrides.items())
    pairs = []
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{text!r} is no setting: write KEY=VALUE, for instance learner.batch_size=256.")
        pairs.append((name.strip(), parse_yaml(value, f"The value of {name.strip()}")))
    return pairs


def layered(
    scenario: Mapping[str, Any], overrides: Sequence[tuple[str, Any]], look: Look | None = None
) -> tuple[Fields[RunSettings], dict[str, Any], list[ConfigError]]:
    """Merges the layers of a run's settings.

    Args:
        scenario: the values of a file.
        overrides: the values above them.
        look: how to look at the environment, to choose defaults that suit it. None for a run that exists: its settings
            are complete, and may be somebody else's.

    Returns:
        the settings there are, the values given for them (not yet validated), and the overrides that name none.
    """
    named = chosen_algo(scenario, overrides)
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"algo = {shown(named)} cannot be used: it must be a name that `shoal algorithms` lists.")
    algo: str = named or DEFAULT_ALGO
    suited: Mapping[str, Any] = {}
    if look is not None:  # the reasons of a run whose config.yaml was copied were for its own environment
        scenario = {key: value for key, value in scenario.items() if key != "reasons"}
    fields = Fields.of(algo)
    asked = overridden(_unfolded(scenario, fields), overrides, fields)[0]
    papers = asked.get("defaults") == "paper"
    spec = None if look is None or (papers and named) else look(asked.get("env"))
    if spec is not None:
        algo = named or choose_algorithm(spec)
        fields = Fields.of(algo)
        suited = suited_to(spec, get_algorithm(algo), asked, named=named is not None)
    definition = get_algorithm(algo)
    below = merged(merged(definition.defaults, suited), merged(_unfolded(scenario, fields), {"algo": algo}))
    data, problems = overridden(below, overrides, fields)
    if goal_left_out(scenario, data.get("env")) is not None:
        below["stop"] = {key: value for key, value in below["stop"].items() if key != "mean_return"}
        data, problems = overridden(below, overrides, fields)
    if data.get("actors") == "auto" and look is not None:
        data |= with_all_cores(data)
    return fields, data, problems


def goal_left_out(scenario: Mapping[str, Any], env: Any) -> Any:
    """The target return of a scenario whose environment was replaced: it does not apply to another environment. None
    when there is no target or it stays.
    """
    stop, own, other = scenario.get("stop"), id_of(scenario.get("env")), id_of(env)
    replaced = own is not None and other is not None and own != other
    return stop.get("mean_return") if replaced and isinstance(stop, Mapping) else None


def id_of(env: Any) -> Any:
    return env.get("id") if isinstance(env, Mapping) else env


def overridden(
    below: Mapping[str, Any], overrides: Sequence[tuple[str, Any]], fields: Fields[Any]
) -> tuple[dict[str, Any], list[ConfigError]]:
    """The values with the overrides on them, and the overrides that name none."""
    data = merged(below, {})
    problems: list[ConfigError] = []
    for name, value in overrides:
        try:
            key: Key = ("env", "id") if name == "env" and not isinstance(value, Mapping) else fields.resolve(name)
            _set(data, key, value, fields)
        except ConfigError as error:
            problems.append(error)
    return data, problems


def _unfolded(scenario: Mapping[str, Any], fields: Fields[Any]) -> dict[str, Any]:
    """Replaces a plain value for a section by the setting it stands for, so that other values of the section stay. An
    empty heading sets nothing.
    """
    scenario = {key: value for key, value in scenario.items() if value is not None or key not in fields.sections}
    shorts = {key: fields.shorthand(key) for key in scenario}
    return {
        key: {short: value}
        if (short := shorts[key]) and value is not None and not isinstance(value, Mapping)
        else value
        for key, value in scenario.items()
    }


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two layers: mappings are joined, anything else is replaced. The arguments stay unchanged."""
    result = {key: copy.deepcopy(value) for key, value in below.items()}
    for key, value in above.items():
        if key == "env" and isinstance(value, str):
            value = {"id": value}
        under = result.get(key)
        joined = isinstance(under, Mapping) and isinstance(value, Mapping)
        result[key] = merged(under, value) if joined else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def chosen_algo(scenario: Mapping[str, Any], overrides: Sequence[tuple[str, Any]], default: str | None = None) -> Any:
    """What names the algorithm, which decides what can be set."""
    return next((value for name, value in reversed(overrides) if name == "algo"), scenario.get("algo", default))


def _set(data: dict[str, Any], key: Key, value: Any, fields: Fields[Any]) -> None:
    if dotted(key) in fields.sections and isinstance(value, Mapping):
        _section(data, key, fields).update(merged(_section(data, key, fields), value))
        return
    short = fields.shorthand(dotted(key))
    *parents, last = (*key, short) if short and value is not None else key
    _section(data, tuple(parents), fields)[last] = copy.deepcopy(value)


def _section(data: Any, key: Key, fields: Fields[Any]) -> Any:
    """The mapping or list at a key. A missing mapping is created; a missing list starts with its default."""
    here = data
    for depth, part in enumerate(key):
        if isinstance(part, int):
            if part >= len(here):
                raise ConfigError(f"{dotted(key[:depth])} has no entry {part}: it has {len(here)}, counted from 0.")
        elif here.get(part) is None:
            info = fields.leaves.get(dotted(key[: depth + 1]))
            default = info.get_default(call_default_factory=True) if info is not None else {}
            here[part] = [one.model_dump() for one in default] if isinstance(default, tuple) else {}
        here = here[part]
        if not isinstance(here, dict | list):
            raise not_a_section(dotted(key[: depth + 1]), here)
    return here


def not_a_section(name: str, value: Any) -> ConfigError:
    """The error for a plain value where a group of settings belongs."""
    if name == "algorithm" and isinstance(value, str):
        return ConfigError(f"algorithm = {value!r} cannot be used: the name is set by algo, its settings by algorithm.")
    what = f"a group of settings, such as {name}: {{name: value}}"
    return ConfigError(f"{name} = {shown(value)} cannot be used: it must be {what}.")
