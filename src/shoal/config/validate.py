"""From given values to settings: finds all problems, and says each in a line that the user can act on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticSerializationError

from shoal.config.checks import settings_fit_together
from shoal.config.fields import Fields, Key, Settings, allowed, dotted, takes_flag
from shoal.config.merge import not_a_section
from shoal.config.values import shown
from shoal.errors import ConfigError
from shoal.loops.settings import RunSettings


def validated(
    fields: Fields[RunSettings], data: Mapping[str, Any], problems: Iterable[ConfigError] = (), source: str = ""
) -> RunSettings:
    """The settings of a run; see `build`."""
    return build(fields, data, problems, source, settings_fit_together)


def build(
    fields: Fields[Settings],
    data: Mapping[str, Any],
    problems: Iterable[ConfigError],
    source: str,
    fit_together: Callable[[Settings], Iterable[ConfigError]],
) -> Settings:
    """The settings, if all values can be used.

    Args:
        fields: what can be set.
        data: the values given.
        problems: what was wrong with them already.
        source: the file they come from, for the message.
        fit_together: finds what contradicts itself in settings that are each right.

    Raises:
        ConfigError: one or more cannot; the message has a line for each.
    """
    found = [*problems]
    known = dict(_known(data, "", fields, found))
    settings = _model(fields, known, found)
    if settings is not None:
        found += fit_together(settings)
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


def _known(
    data: Mapping[str, Any], prefix: str, fields: Fields[Any], found: list[ConfigError]
) -> Iterator[tuple[str, Any]]:
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


def _model(fields: Fields[Settings], data: dict[str, Any], found: list[ConfigError]) -> Settings | None:
    """The models validate; the algorithm's own sections first, because their models depend on the algorithm."""
    own: dict[str, Any] = {}
    failed = False
    for name, kind in fields.own.items():
        try:
            own[name] = kind.model_validate(data.get(name, {}))
        except ValidationError as error:
            found += _translated(error, (name,), fields)
            own[name], failed = kind.model_construct(), True  # so that the problems of other sections are found too
    replay = data.get("replay", {})
    if isinstance(replay.get("path"), str | Path):  # roles run in other working directories
        data = data | {"replay": replay | {"path": Path(replay["path"]).expanduser().absolute()}}
    try:
        settings = fields.model.model_validate(data | own)
    except ValidationError as error:
        found += _translated(error, (), fields)
        return None
    if failed:
        return None
    try:
        found += _not_finite(settings.model_dump(mode="json"), ())
    except PydanticSerializationError:
        what = "env.kwargs may hold only what YAML can, and so may args of env.wrappers"
        found.append(ConfigError(f"{what}: numbers, texts, lists and mappings."))
    return settings


def _translated(error: ValidationError, prefix: Key, fields: Fields[Any]) -> list[ConfigError]:
    """Pydantic's complaints in our words, one for each setting."""
    messages: dict[str, ConfigError] = {}
    for detail in error.errors(include_url=False):
        location, value = _untagged(prefix + detail["loc"], fields, detail["type"]), detail["input"]
        if detail["type"] == "union_tag_invalid":
            location, value = (*location, "type"), value["type"]
        key = _key(location, fields)
        messages.setdefault(dotted(key), _message(key, location, value, detail, fields))
    # A list with a wrong entry is reported as too short as well.
    return [one for name, one in messages.items() if not any(other.startswith(f"{name}.") for other in messages)]


def _untagged(location: Key, fields: Fields[Any], problem: str) -> Key:
    """A location without the type of a list's entry, which pydantic puts after its index if there are several types."""

    def is_name(at: int) -> bool:
        last = problem == "extra_forbidden" and at == len(location) - 1
        return last or not isinstance(location[at - 1], int) or fields.find(location[: at + 1]) is not None

    return tuple(part for at, part in enumerate(location) if at == 0 or is_name(at))


def _key(location: Key, fields: Fields[Any]) -> Key:
    """The setting that a location belongs to: pydantic adds the alternatives of a union and the places in a list."""
    for size in range(len(location), 0, -1):
        key = location[:size]
        if dotted(key) in fields.sections or fields.find(key) is not None:
            return key
    return location


def _message(key: Key, location: Key, value: Any, detail: ErrorDetails, fields: Fields[Any]) -> ConfigError:
    name = dotted(key)
    if detail["type"] == "missing":
        if name in ("env", "env.id"):
            return ConfigError("env.id is missing: name an environment, for instance env: CartPole-v1.")
        return ConfigError(f"{name} is missing.")
    if detail["type"] == "extra_forbidden":
        return fields.unknown(dotted(location))
    info = fields.find(key)
    if info is None:
        reason = detail["msg"].removeprefix("Value error, ")  # pydantic's, before a validator's own words
        return ConfigError(f"{name} = {shown(value)} cannot be used: {reason}.")
    deeper = location[len(key) :]
    return _refusal(name, value, info, f" (entry {deeper[0]})" if deeper and isinstance(deeper[0], int) else "")


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
