"""Run folders from somebody else are not trusted with anything outside of them.

A run's `config.yaml` can name a module to import, arguments for an environment, a Ray cluster and folders. If somebody
else made the folder, these are used only if the user consents (`--trust`, `trust=True`) or gave the same value on the
command line.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import gymnasium

from shoal.config.merge import Overrides, layered, parse_overrides
from shoal.config.signature import is_signed
from shoal.config.values import shown
from shoal.envs.settings import full_wrappers
from shoal.errors import ConfigError
from shoal.loops.settings import RunSettings

CONSENT = "If you trust it, add --trust (from Python: trust=True)."


def require_trust(
    folder: Path,
    written: RunSettings,
    settings: RunSettings | None = None,
    given: Overrides = (),
    remedy: str = CONSENT,
) -> None:
    """Refuses what a run folder asks for if the user did not.

    Args:
        folder: the run's.
        written: what its `config.yaml` says.
        settings: what a run would use; None: only its environment is played.
        given: settings that the user gave: they need no consent.
        remedy: what the user can do; ends the message.

    Raises:
        ConfigError: says what the folder asks for and how to consent.
    """
    own = layered({"algo": written.algo}, parse_overrides(given))[1]
    asked = [*_env_requests(settings or written), *(() if settings is None else _run_requests(settings))]
    refused = [text for key, value, text in asked if full_wrappers(_at(own, key)) != value]
    if refused and not is_signed(folder, written):
        raise ConfigError(
            f"{folder} does not carry your signature: somebody else made it, an older Shoal did, or its config.yaml "
            f"was changed since. It asks Shoal to {', and to '.join(refused)}. {remedy}"
        )


def _env_requests(settings: RunSettings) -> Iterator[tuple[str, Any, str]]:
    """What an environment's settings ask for: name, value and effect."""
    env, kwargs = settings.env, settings.env.kwargs
    if text := _runs_code(env.id, gymnasium.registry):
        yield "env.id", env.id, text
    wrappers = [one.model_dump() for one in env.wrappers]
    for one in env.wrappers:
        if text := _runs_code(one.name):
            yield "env.wrappers", wrappers, text
        if not _only_numbers(one.args):
            text = f"use the wrapper {one.name} with {shown(one.args)}, where a text can name a file or a module"
            yield "env.wrappers", wrappers, text
    if not _only_numbers(kwargs):
        text = f"make the environment with env.kwargs = {shown(kwargs)}, where a text can name a file or a module"
        yield "env.kwargs", kwargs, text


def _runs_code(path: str, registered: Collection[str] = ()) -> str:
    """The effect of `module:Name`, if it is more than a look at the registered ids."""
    module, separator, name = path.rpartition(":")
    if separator and module not in sys.modules:
        return f"import the module {module!r}{_place(module)}, which runs its code"
    return f"call {name!r} of the module {module!r}" if separator and name not in registered else ""


def _run_requests(settings: RunSettings) -> Iterator[tuple[str, Any, str]]:
    """What the other settings of a training ask for."""
    address, path, registry = settings.address, settings.replay.path, settings.share.registry
    if address is not None:
        yield "address", address, f"join the Ray cluster at {address!r}, whose owner can run code here"
    if path is not None:
        yield "replay.path", str(path), f"write its replay into {str(path)!r}"
    if registry is not None:
        yield "share.registry", registry, f"exchange experience through {registry!r}"


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return str(values) if isinstance(values, Path) else values


def _only_numbers(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_only_numbers, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float)


def _place(module: str) -> str:
    """The file the module would come from. Its package's, because looking inside a package runs its code."""
    try:
        found = PathFinder.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    return f" ({found.origin})" if found is not None and found.origin else ""
