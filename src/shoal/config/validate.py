"""From given values to settings: every problem is found, and told in a line the user can act on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticSerializationError

from shoal.algorithms import get_algorithm
from shoal.algorithms.interface import AlgorithmConfig
from shoal.config.checks import settings_fit_together
from shoal.config.fields import Fields, Key, allowed, dotted, takes_flag
from shoal.config.merge import not_a_section
from shoal.config.values import shown
from shoal.errors import ConfigError
from shoal.loops.settings import RunSettings


def validated(
    fields: Fields, data: Mapping[str, Any], problems: Iterable[ConfigError] = (), source: str = ""
) -> RunSettings:
    """The settings, if all values can be used.

    Args:
        fields: what can be set.
        data: the values given.
        problems: what was wrong with them already.
        source: the file they come from, for the message.

    Raises:
        ConfigError: one or more cannot; the message has a line for each.
    """
    found = [*problems]
    known = dict(_known(data, "", fields, found))
    settings = _build(fields, known, found)
    if settings is not None:
        found += settings_fit_together(settings)
    raise_all(found, source)
    assert settings is not None
    return settings


def raise_all(problems: Iterable[ConfigError], source: str = "") -> None:
    """Raises the problems as one error, if there are any."""
    unique = list({str(problem): problem for problem in problems}.values())
    if len(unique) == 1:
        raise unique[0]
    if unique:
        where = f" in {source}" if source else ""
        raise ConfigError(f"{len(unique)} problems{where}:\n" + "\n".join(f"  {problem}" for problem in unique))


def _known(data: Mapping[str, Any], prefix: str, fields: Fields, found: list[ConfigError]) -> Iterator[tuple[str, Any]]:
    """The part of the data that names settings; what does not is added to the problems."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if name in fields.leaves:
            yield key, value
            if isinstance(value, bool) and not takes_flag(fields.leaves[name]):  # pydantic would take it for 0 or 1
                found.append(_refusal(name, value, fields.leaves[name]))
        elif name not in fields.sections:
            found.append(fields.unknown(name))
        elif value is None:  # a heading with nothing below it
            yield key, {}
        elif short := (None if isinstance(value, Mapping) else fields.shorthand(name)):
            yield key, dict(_known({short: value}, f"{name}.", fields, found))
        elif isinstance(value, Mapping):
            yield key, dict(_known(value, f"{name}.", fields, found))
        else:
            found.append(not_a_section(name, value))


def _build(fields: Fields, data: dict[str, Any], found: list[ConfigError]) -> RunSettings | None:
    """The models validate; the algorithm's section first, because its model depends on the algorithm."""
    algorithm: AlgorithmConfig | None = None
    kind = get_algorithm(fields.algo).config
    try:
        algorithm = kind.model_validate(data.get("algorithm", {}))
    except ValidationError as error:
        found += _translated(error, ("algorithm",), fields)
    replay = data.get("replay", {})
    if isinstance(replay.get("path"), str | Path):  # roles run in other working directories
        data = data | {"replay": replay | {"path": Path(replay["path"]).expanduser().absolute()}}
    try:
        # A stand-in, so that the problems of the other sections are found too.
        settings = RunSettings.model_validate(data | {"algorithm": algorithm or kind.model_construct()})
    except ValidationError as error:
        found += _translated(error, (), fields)
        return None
    if algorithm is None:
        return None
    try:
        found += _not_finite(settings.model_dump(mode="json"), ())
    except PydanticSerializationError:
        found.append(ConfigError("env.kwargs may hold only what YAML can: numbers, texts, lists and mappings."))
    return settings


def _translated(error: ValidationError, prefix: Key, fields: Fields) -> list[ConfigError]:
    """Pydantic's complaints in our words, one for each setting."""
    messages: dict[str, ConfigError] = {}
    for detail in error.errors(include_url=False):
        key = _key(prefix + detail["loc"], fields)
        messages.setdefault(dotted(key), _message(key, detail, fields, len(prefix) + len(detail["loc"]) - len(key)))
    # A list with a wrong entry is reported as too short as well.
    return [one for name, one in messages.items() if not any(other.startswith(f"{name}.") for other in messages)]


def _key(location: Key, fields: Fields) -> Key:
    """The setting that a location belongs to: pydantic adds the alternatives of a union and the places in a list."""
    for size in range(len(location), 0, -1):
        key = location[:size]
        if dotted(key) in fields.sections or fields.find(key) is not None:
            return key
    return location


def _message(key: Key, detail: ErrorDetails, fields: Fields, deeper: int) -> ConfigError:
    name = dotted(key)
    if detail["type"] == "missing":
        if name in ("env", "env.id"):
            return ConfigError("env.id is missing: name an environment, for instance env: CartPole-v1.")
        return ConfigError(f"{name} is missing.")
    if detail["type"] == "extra_forbidden":
        return fields.unknown(dotted(detail["loc"]))
    info = fields.find(key)
    if info is None:
        reason = detail["msg"].removeprefix("Value error, ")  # pydantic's, before a validator's own words
        return ConfigError(f"{name} = {shown(detail['input'])} cannot be used: {reason}.")
    place = f" (entry {detail['loc'][-deeper]})" if deeper and isinstance(detail["loc"][-deeper], int) else ""
    return _refusal(name, detail["input"], info, place)


def _refusal(name: str, value: Any, info: FieldInfo, place: str = "") -> ConfigError:
    return ConfigError(f"{name} = {shown(value)}{place} cannot be used: it must be {allowed(info)}.")


def _not_finite(value: Any, key: Key) -> Iterator[ConfigError]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _not_finite(one, (*key, name))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _not_finite(one, (*key, index))
    elif isinstance(value, float) and not math.isfinite(value):
        yield ConfigError(f"{dotted(key)} = {shown(value)} cannot be used: it must be finite.")
