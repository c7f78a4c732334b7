"""Scenarios of Stable-Baselines3: files with `framework: sb3`, for `shoal share`.

    settings = load_sb3_scenario(Path("sb3_sac_pendulum"), ["learning_rate=1e-3", "env.n_envs=2"])

The last part of a name is enough, for hyper-parameters too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import create_model

from shoal.config.dump import dump_fields
from shoal.config.fields import Fields
from shoal.config.load import find_scenario_file, read_scenario
from shoal.config.merge import Overrides, chosen_algo, merged, overridden, parse_overrides
from shoal.config.validate import build
from shoal.errors import UnknownName
from shoal.sharing.sb3_models import FIXED, check_hyperparameters, hyperparameter_names
from shoal.sharing.sb3_settings import SB3_ALGORITHMS, Sb3Settings

FRAMEWORK = "sb3"


def is_sb3_scenario(path: Path) -> bool:
    """Whether a scenario is one of Stable-Baselines3's; raises as `load_scenario` when there is no such file."""
    return read_scenario(find_scenario_file(path)).get("framework") is not None


def scenario_stem(path: Path) -> str:
    """A scenario's name for people, without the framework."""
    return find_scenario_file(path).stem.removeprefix(f"{FRAMEWORK}_")


def load_sb3_scenario(path: Path, overrides: Overrides = ()) -> Sb3Settings:
    """Reads a scenario.

    Args:
        path: a YAML file; or the name, without its ending, of one in `scenarios/` here or of one that comes with Shoal.
        overrides: changes to it, as `KEY=VALUE` texts or as a mapping.

    Raises:
        UnknownName: no such file, algorithm or setting; names the nearest.
        ConfigError: values cannot be used, or Stable-Baselines3 is not installed.
    """
    file = find_scenario_file(path)
    scenario, pairs = read_scenario(file), parse_overrides(overrides)
    algo = chosen_algo(scenario, pairs, "")
    if algo not in SB3_ALGORITHMS:
        raise UnknownName("Stable-Baselines3 algorithm", str(algo), SB3_ALGORITHMS, f"Set algo in {file}.")
    fields = _fields(algo)
    data, problems = overridden(merged({}, scenario), pairs, fields)
    return build(fields, data, problems, "" if pairs else str(file), check_hyperparameters)


def dump_sb3_yaml(settings: Sb3Settings) -> str:
    """All settings, such that `load_sb3_scenario` gives them back."""
    return dump_fields(settings, _fields(settings.algo))


def _fields(algo: str) -> Fields[Sb3Settings]:
    """What can be set: the hyper-parameters are the arguments of the algorithm's class."""
    arguments: dict[str, Any] = {name: (Any, None) for name in hyperparameter_names(algo)}
    section = create_model("Hyperparameters", __doc__="Arguments of the class.", **arguments)
    refused = {f"hyperparameters.{name}": reason for name, reason in FIXED.items()}
    return Fields(Sb3Settings, algo, {"hyperparameters": section}, refused)
