"""Scenarios of Stable-Baselines3: files with `framework: sb3`, for `shoal share`.

    settings = load_sb3_scenario(Path("sb3_sac_pendulum"), ["learning_rate=1e-3", "env.n_envs=2"])

The name of a hyper-parameter is enough; so is the last part of any other name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from inspect import isclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from shoal.config.fields import allowed, dotted, takes_flag
from shoal.config.load import find_scenario_file, read_scenario
from shoal.config.merge import Overrides, merged, parse_overrides
from shoal.config.validate import raise_all
from shoal.config.values import inline_yaml, shown
from shoal.errors import ConfigError, UnknownName
from shoal.sharing.sb3_models import check_hyperparameters, hyperparameter_names
from shoal.sharing.sb3_settings import SB3_ALGORITHMS, Sb3Settings

FRAMEWORK = "sb3"
_FREE = ("hyperparameters", "env.kwargs")
"""Sections with names of their own."""


def is_sb3_scenario(path: Path) -> bool:
    """Whether a scenario is one of Stable-Baselines3's; raises as `load_scenario` when there is no such file."""
    return read_scenario(find_scenario_file(path)).get("framework") is not None


def scenario_stem(path: Path) -> str:
    """A scenario's name for people, without the framework."""
    return find_scenario_file(path).stem.removeprefix(f"{FRAMEWORK}_")


def load_sb3_scenario(path: Path, overrides: Overrides = ()) -> Sb3Settings:
    """Reads a scenario.

    Args:
        path: a YAML file, or the name of one in `scenarios/` here, or of one that Shoal brings, without its ending.
        overrides: changes to it, as `KEY=VALUE` texts or as a mapping.

    Raises:
        UnknownName: no such file, algorithm or setting; names the nearest.
        ConfigError: values cannot be used, or Stable-Baselines3 is not installed.
    """
    file = find_scenario_file(path)
    pairs = parse_overrides(overrides)
    data = merged({}, read_scenario(file))  # `env: Pendulum-v1` becomes a section
    algo = next((value for name, value in reversed(pairs) if name == "algo"), data.get("algo"))
    if algo not in SB3_ALGORITHMS:
        raise UnknownName("Stable-Baselines3 algorithm", str(algo), SB3_ALGORITHMS, f"Set algo in {file}.")
    problems: list[ConfigError] = []
    for name, value in pairs:
        try:
            _set(data, _resolve(name, algo), value)
        except ConfigError as error:
            problems.append(error)
    settings = _validated(data, problems)
    raise_all(problems, "" if pairs else str(file))
    assert settings is not None
    return settings


def dump_sb3_yaml(settings: Sb3Settings) -> str:
    """All settings, such that `load_sb3_scenario` gives them back."""
    lines = []
    for name, value in settings.model_dump(mode="json").items():
        if isinstance(value, Mapping) and value:
            lines += [f"{name}:", *(f"  {inner}: {inline_yaml(one)}" for inner, one in value.items())]
        else:
            lines.append(f"{name}: {inline_yaml(value)}")
    return "\n".join(lines) + "\n"


def _fields(model: type[BaseModel] = Sb3Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        if isclass(info.annotation) and issubclass(info.annotation, BaseModel):
            yield from _fields(info.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", info


def _resolve(name: str, algo: str) -> str:
    """The full name that a name means."""
    known = [full for full, _ in _fields()]
    if name == "env":
        return "env.id"
    if name in known or name.startswith(tuple(f"{section}." for section in _FREE)):
        return name
    short = [full for full in known if full.rpartition(".")[2] == name]
    if len(short) == 1:
        return short[0]
    hyperparameters = hyperparameter_names(algo)
    if name.partition(".")[0] in hyperparameters:
        return f"hyperparameters.{name}"
    raise UnknownName("setting", name, [*known, *(full.rpartition(".")[2] for full in known), *hyperparameters])


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    here = data
    for depth, part in enumerate(parents):
        inside = here.get(part)
        if isinstance(inside, str) and part == "env":
            inside = {"id": inside}
        if inside is not None and not isinstance(inside, Mapping):
            raise ConfigError(f"{dotted(parents[: depth + 1])} = {shown(inside)} is no group of settings.")
        here[part] = inside = dict(inside or {})
        here = inside
    here[last] = copy.deepcopy(value)


def _validated(data: Mapping[str, Any], problems: list[ConfigError]) -> Sb3Settings | None:
    """The settings, or None; what is wrong is added to the problems."""
    fields = dict(_fields())
    for name, info in fields.items():
        value = _get(data, name)
        if isinstance(value, bool) and not takes_flag(info):  # pydantic would take it for 0 or 1
            problems.append(_refusal(name, value, info))
    settings = None
    try:
        settings = Sb3Settings.model_validate(data)
    except ValidationError as error:
        found = {str(one): one for one in (_translated(detail, fields) for detail in error.errors(include_url=False))}
        problems += found.values()
    given = data.get("hyperparameters")
    if isinstance(given, Mapping):
        problems += check_hyperparameters(data["algo"], given)
    return settings


def _get(data: Any, name: str) -> Any:
    for part in name.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _translated(detail: ErrorDetails, fields: Mapping[str, FieldInfo]) -> ConfigError:
    """One of pydantic's complaints in our words."""
    name = dotted(detail["loc"])
    if detail["type"] == "extra_forbidden":
        return UnknownName("setting", name, fields)
    if detail["type"] == "missing":
        return ConfigError(f"{name if name != 'env' else 'env.id'} is missing.")
    for size in range(len(detail["loc"]), 0, -1):
        if (info := fields.get(dotted(detail["loc"][:size]))) is not None:
            return _refusal(dotted(detail["loc"][:size]), detail["input"], info)
    what = f"a group of settings, such as {name}: {{name: value}}"
    return ConfigError(f"{name} = {shown(detail['input'])} cannot be used: it must be {what}.")


def _refusal(name: str, value: Any, info: FieldInfo) -> ConfigError:
    return ConfigError(f"{name} = {shown(value)} cannot be used: it must be {allowed(info)}.")
