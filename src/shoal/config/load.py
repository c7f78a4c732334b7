"""Settings from a scenario file, from a run, or from nothing but an environment's name.

Values come in layers, later ones win: defaults < the algorithm's own defaults < the scenario < the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium

from shoal.algorithms import ALGORITHMS
from shoal.config.merge import Overrides, goal_left_out, layered, parse_overrides
from shoal.config.trust import require_trust
from shoal.config.validate import validated
from shoal.config.values import parse_yaml
from shoal.errors import ConfigError, ShoalError, UnknownName
from shoal.loops.settings import RunSettings

ENDINGS = (".yaml", ".yml")
EXAMPLE_ENV, CONTINUOUS_EXAMPLE_ENV = "CartPole-v1", "Pendulum-v1"
"""The environment shown where only an algorithm is asked about, by the actions it learns."""


def load_scenario(path: Path, overrides: Overrides = ()) -> RunSettings:
    """Reads a scenario.

    Args:
        path: a YAML file, or the name of one in `scenarios/` here, or of one that Shoal brings, without its ending.
        overrides: changes to it, as `KEY=VALUE` texts or as a mapping.

    Raises:
        UnknownName: no such file, algorithm or setting; names the nearest.
        ConfigError: it is no YAML, or values cannot be used; says which, why, and what can.
    """
    file = find_scenario_file(path)
    return _settings(file, read_scenario(file), overrides)


def _settings(file: Path, content: Mapping[str, Any], overrides: Overrides = ()) -> RunSettings:
    pairs = parse_overrides(overrides)
    if "framework" in content:
        raise ConfigError(f"{file} is a scenario of Stable-Baselines3: run it with `shoal share {file} -n 1`.")
    fields, data, problems = layered(content, pairs)
    return validated(fields, data, problems, "" if pairs else str(file))


def settings_for(env_id: str, algo: str, overrides: Overrides = ()) -> RunSettings:
    """Settings without a scenario: defaults, the algorithm's defaults, the overrides. Raises as `load_scenario`."""
    return validated(*layered({"env": {"id": env_id}, "algo": algo}, parse_overrides(overrides)))


def load_config(run_folder: Path) -> RunSettings:
    """The settings a run was made with.

    Raises:
        ConfigError: they are damaged. A file that was cut short is refused, too: what it lacks would be defaults.
    """
    file = run_folder / "config.yaml"
    if file.is_file() and not (file.read_bytes() or b"\n").endswith(b"\n"):
        raise ConfigError(
            f"{file} ends in the middle of a line: it was cut short. Restore it from a copy; if it is complete, add a "
            "line break at its end."
        )
    return load_scenario(file)


def load_target(target: str, overrides: Overrides = (), *, trust: bool = False) -> RunSettings:
    """Settings of whatever the user named.

    Args:
        target: a scenario's path or name, or an environment's id.
        overrides: changes; `algo` among them.
        trust: obey what a `config.yaml` in somebody else's run folder names.
    """
    if target.endswith(ENDINGS) or target in scenario_names():
        file = find_scenario_file(Path(target))
        content = read_scenario(file)
        settings = _settings(file, content, overrides)
        if not trust and (file.parent / "run.json").is_file():
            try:
                require_trust(file.parent, _settings(file, content), settings, overrides)
            except ConfigError as error:
                raise ConfigError(
                    f"{error} Or read the file and copy it elsewhere: then it is your scenario."
                ) from None
        return settings
    pairs = parse_overrides(overrides)
    near = difflib.get_close_matches(target, scenario_names(), n=1, cutoff=0.75)
    if near and target not in gymnasium.registry:
        raise UnknownName("environment or scenario", target, near)
    return validated(*layered({"env": {"id": target}}, pairs))


def load_named(name: str, overrides: Overrides = ()) -> RunSettings:
    """Settings of a scenario or, on an example environment, of an algorithm."""
    if name in ALGORITHMS:
        continuous = ALGORITHMS[name].actions == "continuous"
        return settings_for(CONTINUOUS_EXAMPLE_ENV if continuous else EXAMPLE_ENV, name, overrides)
    if name.endswith(ENDINGS) or name in scenario_names():
        return load_scenario(Path(name), overrides)
    raise UnknownName("algorithm or scenario", name, [*ALGORITHMS, *scenario_names()])


def scenario_names() -> list[str]:
    """The scenarios in `scenarios/` here and those that Shoal brings, without their ending."""
    return sorted({file.stem for folder in _folders() for file in folder.iterdir() if file.suffix in ENDINGS})


def scenarios_for(env_id: str, algo: str) -> list[str]:
    """The names of the scenarios that were made for these two."""
    made = []
    for name in scenario_names():
        with suppress(ShoalError):  # a scenario that cannot be read is no reason not to train
            content = read_scenario(find_scenario_file(Path(name)))
            env = content.get("env")
            named = env.get("id") if isinstance(env, Mapping) else env
            if (named, content.get("algo")) == (env_id, algo):
                made.append(name)
    return made


def left_out(target: str, settings: RunSettings) -> list[str]:
    """What to tell of a scenario that was given another environment and no return to end at: its own was left out."""
    if settings.stop.mean_return is None and (target.endswith(ENDINGS) or target in scenario_names()):
        goal = goal_left_out(read_scenario(find_scenario_file(Path(target))), settings.env.id)
        if goal is not None:
            said = f"stop.mean_return = {goal} of {target} is for its own environment and was left out"
            return [f"{said}: give --stop-return (stop.mean_return) for {settings.env.id}."]
    return []


def _folders() -> list[Path]:
    """The user's own come first: a file here may stand in for one that Shoal brings."""
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


def read_scenario(file: Path) -> Mapping[str, Any]:
    """A scenario's content, not yet checked."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not a text file in UTF-8: {error.reason} at byte {error.start}.") from error
    content = parse_yaml(text, str(file))
    if content is None:
        raise ConfigError(f"{file} is empty: it needs at least env: CartPole-v1.")
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ConfigError(f"{file} holds a {kind}: a scenario is names with values, such as env: CartPole-v1.")
    return {str(key): value for key, value in content.items()}
