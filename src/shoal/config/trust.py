"""Run folders from somebody else are not trusted with anything outside of them.

A run's `config.yaml` can name modules to import (of its environment, wrappers, algorithm and network), arguments for an
environment, a Ray cluster and folders. If somebody else made the folder, these are used only if the user consents
(`--trust`, `trust=True`) or gave the same value on the command line.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import gymnasium
from pydantic import ConfigDict, ValidationError

from shoal.algorithms.interface import AlgorithmConfig
from shoal.config.fields import Fields
from shoal.config.merge import Overrides, chosen_algo, overridden, parse_overrides
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
    # Without the algorithm's own settings, none of which is asked about: to know them, it would be imported.
    own = overridden({}, parse_overrides(given), Fields(RunSettings, written.algo, {"algorithm": AlgorithmConfig}))[0]
    asked = [*_policy_requests(settings or written), *(() if settings is None else _run_requests(settings))]
    refused = [text for key, value, text in asked if full_wrappers(_at(own, key)) != value]
    if refused and not is_signed(folder, written):
        raise _refusal(folder, refused, remedy)


def _refusal(folder: Path, asked: list[str], remedy: str) -> ConfigError:
    return ConfigError(
        f"{folder} does not carry your signature: somebody else made it, an older Shoal did, or its config.yaml "
        f"was changed since. It asks Shoal to {', and to '.join(asked)}. {remedy}"
    )


class _UncheckedConfig(AlgorithmConfig):
    """The settings of an algorithm that is not imported."""

    model_config = ConfigDict(extra="allow")


def unchecked(content: Mapping[str, Any]) -> RunSettings | None:
    """What a run's `config.yaml` says, without a look at its algorithm; None for one that no Shoal wrote."""
    with contextlib.suppress(ValidationError):
        section = _UncheckedConfig.model_validate(content.get("algorithm"))
        return RunSettings.model_validate({**content, "algorithm": section})
    return None


def require_trusted_algorithm(folder: Path, content: Mapping[str, Any], given: Overrides, remedy: str) -> None:
    """As `require_trust`, of the algorithm alone and before it is imported: only then can settings be read."""
    algo = content.get("algo") if chosen_algo({}, parse_overrides(given)) is None else None
    asked = _runs_code(algo) if isinstance(algo, str) else ""
    if asked and ((written := unchecked(content)) is None or not is_signed(folder, written)):
        raise _refusal(folder, [asked], remedy)


def _policy_requests(settings: RunSettings) -> Iterator[tuple[str, Any, str]]:
    """What a policy and its environment ask for: name, value and effect."""
    for key, path in (("algo", settings.algo), ("algorithm.network", settings.algorithm.network or "")):
        if text := _runs_code(path):
            yield key, path, text
    yield from _env_requests(settings)


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
    if (url := settings.checkpoints.path) is not None:
        yield "checkpoints.path", url, f"copy the run to {url!r}"
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
