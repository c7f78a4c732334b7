"""From an environment's id to its Gymnasium registration, with errors a user can act on."""

from __future__ import annotations

import importlib
from functools import partial
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as Registration
from gymnasium.error import DependencyNotInstalled

from shoal.envs.faults import explain
from shoal.envs.team import one_or_team
from shoal.errors import ConfigError, EnvError, ShoalError, UnknownName

_ATARI_ENTRY_POINT = "ale_py.env:AtariEnv"

# The package's own; a module is imported when one of its environments is made.
gymnasium.register("shoal/TMaze-v0", "shoal.envs.memory:TMaze", reward_threshold=0.9)
gymnasium.register("shoal/RepeatPrevious-v0", "shoal.envs.memory:RepeatPrevious", reward_threshold=54.0)
gymnasium.register(
    "shoal/PathFinding-v0",
    "shoal.envs.pathfinding:PathFinding",
    vector_entry_point="shoal.envs.pathfinding:PathFindingVector",
    max_episode_steps=256,
)


def find_registration(env_id: str) -> Registration:
    """Looks up an id. Imports the package of `package:Id-v0` first, and ale-py for an id that is not registered.

    `module:Class` need not be registered: it is an environment's class in the module, or a function that makes one. So
    is `package:module`, a module of PettingZoo's kind with a `parallel_env`. Parallel environments become `TeamEnv`s.

    Raises:
        ConfigError: the package of the id cannot be imported, or ale-py is needed and missing.
        UnknownName: no such id; names the nearest one.
    """
    module, separator, name = env_id.rpartition(":")
    classes: list[str] = []
    if separator:
        found = import_module(module, f"Environment {env_id!r}")
        if name not in gymnasium.registry and callable(make := _maker(found, name, env_id)):
            plain = isinstance(make, type) and issubclass(make, gymnasium.Env)
            return Registration(env_id, make if plain else partial(one_or_team, make, env_id))
        classes = [key for key, one in vars(found).items() if isinstance(one, type) and issubclass(one, gymnasium.Env)]
        classes += [one.name for one in iter_modules(getattr(found, "__path__", ()))]
    if name not in gymnasium.registry:
        _import_ale(name)
    registration = gymnasium.registry.get(name)
    if registration is None:
        remedy = "An environment of your own is written 'package:Id-v0' or 'module:Class'." if not separator else ""
        raise UnknownName("environment", name, [*classes, *gymnasium.registry], remedy)
    return registration


def _maker(module: ModuleType, name: str, env_id: str) -> Any:
    """The class or function of a module, or the `parallel_env` of a module in a package; None if there is none."""
    found = getattr(module, name, None)
    if found is None and hasattr(module, "__path__") and find_spec(inner := f"{module.__name__}.{name}"):
        found = import_module(inner, f"Environment {env_id!r}")
    if isinstance(found, ModuleType):
        make = getattr(found, "parallel_env", None)
        if make is None and hasattr(found, "env"):
            raise ConfigError(
                f"Environment {env_id!r} has no `parallel_env`: its agents act in turn (AEC), and Shoal trains agents "
                "that act at once. Choose another environment."
            )
        return make
    return found


def is_atari(env_id: str) -> bool:
    """Whether this id is an Atari game, run by ale-py's vector environment with the usual preprocessing.

    Raises what `find_registration` raises.
    """
    return find_registration(env_id).entry_point == _ATARI_ENTRY_POINT


def make_failure(env_id: str, error: BaseException) -> ShoalError:
    """The error to raise when constructing an environment raised `error`."""
    if isinstance(error, ShoalError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return ConfigError(f"Environment {env_id!r} needs the package {package!r}: run `pip install {package}`.")
    if isinstance(error, DependencyNotInstalled | ImportError):
        return ConfigError(f"Environment {env_id!r} needs a package that is not installed: {error}")
    if isinstance(error, TypeError) and "unexpected keyword argument" in str(error):
        return ConfigError(f"Environment {env_id!r} does not take these env.kwargs: {error}")
    if "OpenGL" in str(error):
        return ConfigError(
            f"Environment {env_id!r} cannot draw pictures here: {error}. "
            "Set MUJOCO_GL=egl (needs libEGL) or MUJOCO_GL=osmesa (needs libOSMesa) and try again."
        )
    return EnvError(f"Environment {env_id!r} could not be made: {type(error).__name__}: {explain(error)}")


def import_module(module: str, wanted: str) -> ModuleType:
    """Imports a module that a setting names; `wanted` begins the message of an error.

    Raises:
        ConfigError: it is not there, or raised.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing.partition(".")[0] == "pettingzoo":
            raise ConfigError(f'{wanted} needs PettingZoo: run `pip install "shoal-rl[multiagent]"`.') from error
        raise ConfigError(
            f"{wanted}: cannot import {module!r}, no module named {missing!r}. "
            "Install it, or add its folder to PYTHONPATH."
        ) from error
    except Exception as error:
        raise ConfigError(f"{wanted}: importing {module!r} raised {type(error).__name__}: {explain(error)}") from error


def _import_ale(name: str) -> None:
    """Importing ale-py registers its games; done only for ids not known without it, as it takes a while."""
    try:
        importlib.import_module("ale_py")
    except ImportError as error:
        if name.startswith("ALE/") or "NoFrameskip" in name:
            raise ConfigError(f"Environment {name!r} needs the package 'ale-py': run `pip install ale-py`.") from error
