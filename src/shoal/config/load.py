"""Loads settings from a scenario file, from a run, or for an environment's name alone.

Values come in layers; later ones win: defaults < the algorithm's defaults < what suits the environment < the scenario <
the command line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium

from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.algorithms.own_code import installed_algorithms
from shoal.config.environment import Look, look_at, look_without_import
from shoal.config.merge import Overrides, goal_left_out, id_of, layered, parse_overrides
from shoal.config.trust import CONSENT, require_trust, require_trusted_algorithm, unchecked
from shoal.config.validate import validated
from shoal.config.values import parse_yaml
from shoal.errors import ConfigError, ShoalError, UnknownName
from shoal.files import read_file, read_object
from shoal.loops.settings import RunSettings
from shoal.runtime.run_folder import CONFIG_END

ENDINGS = (".yaml", ".yml")
_BESIDE_CONFIG = ("run.json", "config.signature", "metrics.jsonl", "summary.json", "checkpoints")
COPY = "read the file and copy it elsewhere under another name: then it is your scenario."
EXAMPLE_ENV, CONTINUOUS_EXAMPLE_ENV, TEAM_EXAMPLE_ENV = "CartPole-v1", "Pendulum-v1", "shoal/PathFinding-v0"
"""The environment shown where only an algorithm is asked about, by the actions it learns."""


def load_scenario(path: Path, overrides: Overrides = (), look: Look = look_at) -> RunSettings:
    """Reads a scenario.

    Args:
        path: a YAML file; or the name, without its ending, of one in `scenarios/` here or of one that comes with Shoal.
        overrides: changes to it, as `KEY=VALUE` texts or as a mapping.
        look: how to look at its environment.

    Raises:
        UnknownName: no such file, algorithm or setting; names the nearest.
        ConfigError: it is not YAML, or values cannot be used; names the values and what can be used.
    """
    file = find_scenario_file(path)
    return _settings(file, read_scenario(file), overrides, look, remedy=COPY.capitalize())


def _settings(
    file: Path,
    content: Mapping[str, Any],
    overrides: Overrides = (),
    look: Look | None = None,
    *,
    trust: bool = False,
    remedy: str = CONSENT,
) -> RunSettings:
    pairs = parse_overrides(overrides)
    if "framework" in content:
        raise ConfigError(f"{file} is a scenario of Stable-Baselines3: run it with `shoal share {file} -n 1`.")
    if not trust and _is_of_a_run(file):
        require_trusted_algorithm(file.parent, content, overrides, remedy)
    fields, data, problems = layered(content, pairs, look)
    return validated(fields, data, problems, "" if pairs else str(file))


def settings_for(env_id: str, algo: str, overrides: Overrides = (), look: Look = look_at) -> RunSettings:
    """Settings without a scenario: defaults, those of the algorithm and of the environment, the overrides. Raises as
    `load_scenario`.
    """
    return validated(*layered({"env": {"id": env_id}, "algo": algo}, parse_overrides(overrides), look))


def load_config(run_folder: Path, *, trust: bool = False) -> RunSettings:
    """The settings a run was made with. Imports the module of its algorithm, if that is not one of the package's.

    Raises:
        ConfigError: they are damaged, or somebody else made the folder, it is not trusted, and there is such a module.
            A file that was cut short is refused: missing settings would become defaults.
    """
    file = find_scenario_file(run_folder / "config.yaml")
    return _settings(file, _read_config(file), trust=trust)


def load_target(target: str, overrides: Overrides = (), *, trust: bool = False, consent: str = CONSENT) -> RunSettings:
    """Settings of what the user named.

    Args:
        target: a scenario's path or name, or an environment's id.
        overrides: changes; `algo` among them.
        trust: obey a `config.yaml` in somebody else's run folder.
        consent: how the user can say so, for the message; empty where there is no way.
    """
    if target.endswith(ENDINGS) or target in scenario_names():
        file = find_scenario_file(Path(target))
        if not _is_of_a_run(file):
            return _settings(file, read_scenario(file), overrides, look_at)
        content = _read_config(file)
        remedy = f"{consent} Or {COPY}" if consent else COPY.capitalize()
        settings = _settings(file, content, overrides, trust=trust, remedy=remedy)
        if not trust:
            require_trust(file.parent, unchecked(content) or settings, settings, overrides, remedy)
        return settings
    pairs = parse_overrides(overrides)
    near = difflib.get_close_matches(target, scenario_names(), n=1, cutoff=0.75)
    if near and target not in gymnasium.registry:
        raise UnknownName("environment or scenario", target, near)
    return validated(*layered({"env": {"id": target}}, pairs, look_at))


def load_named(name: str, overrides: Overrides = ()) -> RunSettings:
    """Settings of a scenario or, on an example environment, of an algorithm."""
    if name in ALGORITHMS or (not name.endswith(ENDINGS) and ":" in name) or name in installed_algorithms():
        algorithm = get_algorithm(name)
        example = CONTINUOUS_EXAMPLE_ENV if algorithm.actions == "continuous" else EXAMPLE_ENV
        env_id = TEAM_EXAMPLE_ENV if algorithm.agents else example
        return settings_for(env_id, name, overrides, look_without_import)
    if name.endswith(ENDINGS) or name in scenario_names():
        return load_scenario(Path(name), overrides, look_without_import)
    raise UnknownName("algorithm or scenario", name, {*ALGORITHMS, *installed_algorithms(), *scenario_names()})


def scenario_names() -> list[str]:
    """The scenarios in `scenarios/` here and those that come with Shoal, without their ending."""
    return sorted({file.stem for folder in _folders() for file in folder.iterdir() if file.suffix in ENDINGS})


def scenarios_for(env_id: str, algo: str) -> list[str]:
    """The names of the scenarios that were made for these two."""
    made = []
    for name in scenario_names():
        with suppress(ShoalError):  # a scenario that cannot be read does not stop a training
            content = read_scenario(find_scenario_file(Path(name)))
            if (id_of(content.get("env")), content.get("algo")) == (env_id, algo):
                made.append(name)
    return made


def left_out(target: str, settings: RunSettings) -> list[str]:
    """A note for a scenario that runs another environment than its own: its target return was left out."""
    if settings.stop.mean_return is None and (target.endswith(ENDINGS) or target in scenario_names()):
        goal = goal_left_out(read_scenario(find_scenario_file(Path(target))), settings.env.id)
        if goal is not None:
            said = f"stop.mean_return = {goal} of {target} is for its own environment and was left out"
            return [f"{said}: give --stop-return (stop.mean_return) for {settings.env.id}."]
    return []


def _folders() -> list[Path]:
    """The user's folder comes first: a file there replaces one of the same name that comes with Shoal."""
    own = Path(str(resources.files("shoal") / "scenarios"))
    return [folder for folder in (Path("scenarios"), own) if folder.is_dir()]


def find_scenario_file(path: Path) -> Path:
    """The file of a scenario given by path or name."""
    if path.is_file():
        return path
    if path.suffix not in ENDINGS:
        for folder in _folders():
            for ending in ENDINGS:
                if (found := folder / f"{path}{ending}").is_file():
                    return found
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a scenario. Name a file in it, or use `shoal resume` for a run.")
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    files = [str(one) for one in beside if one.suffix in ENDINGS]
    names = scenario_names()
    near = [path.stem] if path.stem in names else [*files, *names]
    raise UnknownName("scenario file", str(path), near, "`shoal scenarios` lists those with a name.")


def _is_of_a_run(file: Path) -> bool:
    """Whether a file may be a run's own. In doubt it is: removing files from a run folder must not make it trusted."""
    return file.name == "config.yaml" or any(os.path.lexists(file.parent / name) for name in _BESIDE_CONFIG)


def read_scenario(file: Path) -> Mapping[str, Any]:
    """A scenario's content, unchecked."""
    try:
        return _parsed(file, file.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from error


def _read_config(file: Path) -> Mapping[str, Any]:
    """The content of a run's `config.yaml`, which must be whole: missing settings would become defaults."""
    try:
        data = read_file(file)
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from error
    content = _parsed(file, data)
    run_json = file.parent / "run.json"
    if "config_end" in read_object(run_json):  # in runs of earlier versions only a line break tells
        whole, last = data.rstrip().endswith(CONFIG_END.encode()), f"this line: {CONFIG_END}"
    else:
        whole, last = data.endswith(b"\n") or not os.path.lexists(run_json), "a line break."
    if not whole:
        raise ConfigError(f"{file} was cut short. Restore it from a copy. If it is complete, add at its end {last}")
    return content


def _parsed(file: Path, data: bytes) -> Mapping[str, Any]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not a text file in UTF-8: {error.reason} at byte {error.start}.") from error
    content = parse_yaml(text, str(file))
    if content is None:
        raise ConfigError(f"{file} is empty: it needs at least env: CartPole-v1.")
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ConfigError(f"{file} holds a {kind}: a scenario is names with values, such as env: CartPole-v1.")
    return {str(key): value for key, value in content.items()}
