"""Wrappers that the settings name, around one environment."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium

from shoal.envs.registry import import_module
from shoal.envs.settings import EnvSettings
from shoal.errors import ConfigError, UnknownName


def wrapped(env: gymnasium.Env[Any, Any], settings: EnvSettings) -> gymnasium.Env[Any, Any]:
    """The environment inside its wrappers, the first one innermost.

    Raises:
        UnknownName: no wrapper has such a name.
        ConfigError: its module cannot be imported, it does not take the arguments, or it makes no environment.
    """
    for one in settings.wrappers:
        make = _find(one.name)
        # YAML has no tuples, and Gymnasium's wrappers insist on them.
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in one.args.items()}
        try:
            inspect.signature(make).bind(env, **arguments)
        except TypeError as error:
            takes = ", ".join(list(inspect.signature(make).parameters)[1:]) or "none"
            raise ConfigError(f"env.wrappers: {one.name}: {error}; its args are {takes}.") from error
        try:
            env = make(env, **arguments)
        except (AssertionError, TypeError, ValueError) as error:  # how wrappers refuse a space or an argument
            raise ConfigError(f"env.wrappers: {one.name} cannot wrap {settings.id!r}: {error}") from error
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"env.wrappers: {one.name} returned {type(env).__name__}, which is no gymnasium.Env.")
    return env


def _find(given: str) -> Any:
    module, separator, name = given.rpartition(":")
    if not separator:
        known = set(gymnasium.wrappers.__all__) - {"vector"}
        if name not in known:
            remedy = "A wrapper of your own module is written 'module:Class'."
            raise UnknownName("wrapper in env.wrappers", name, known, remedy)
        return getattr(gymnasium.wrappers, name)
    found = import_module(module, f"Wrapper {given!r}")
    if not callable(make := getattr(found, name, None)):
        callables = [each for each, value in vars(found).items() if isinstance(value, type)]
        raise UnknownName(f"wrapper in the module {module!r}", name, callables)
    return make
