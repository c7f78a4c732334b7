"""The user's own algorithms and networks: found by `module:NAME`, or among what is installed; else refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shoal.algorithms.interface import Algorithm, AlgorithmConfig
from shoal.errors import ConfigError, ShoalError, UnknownName
from shoal.networks import MakeOwn, OwnTorso
from shoal.types import EnvSpec

GROUP = "shoal.algorithms"
"""The entry points by which an installed package offers algorithms."""


def installed_algorithms() -> dict[str, list[EntryPoint]]:
    """What installed packages offer, by name; nothing is imported."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def own_algorithm(path: str, wanted: str = "") -> Algorithm:
    """The algorithm `module:NAME`; `wanted` begins the message of an error.

    Raises:
        ConfigError: the module cannot be imported, or this is no algorithm.
    """
    wanted = wanted or f"algo = {path!r}"
    found = _find(path, wanted, "algorithm", Algorithm)
    if not isinstance(found, Algorithm):
        kind = type(found).__name__
        raise ConfigError(f"{wanted} cannot be used: it is no shoal.algorithms.Algorithm, but of the type {kind}.")
    if not (isinstance(found.config, type) and issubclass(found.config, AlgorithmConfig)):
        raise ConfigError(f"{wanted} cannot be used: its config must be a class made from AlgorithmConfig.")
    return found


def own_torso(config: AlgorithmConfig, spec: EnvSpec) -> MakeOwn:
    """Makes the torsos that `algorithm.network` names; None if it names none.

    Raises:
        ConfigError: its module cannot be imported, it raises, or does not return [B, F] for [B, *obs_shape].
    """
    if config.network is None:
        return None
    wanted, path = f"algorithm.network = {config.network!r}", config.network
    make = _find(path, wanted, "network", Callable)
    if not callable(make):
        raise ConfigError(f"{wanted} cannot be used: it must be a function from an EnvSpec to a torch.nn.Module.")

    def made() -> OwnTorso:
        module = called(wanted, "", make, spec)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{wanted} returned {type(module).__name__}: it must return a torch.nn.Module.")
        one = torch.zeros(1, *spec.obs_shape, dtype=getattr(torch, spec.obs_dtype))
        if any(map(is_lazy, module.parameters())):  # nn.LazyLinear and its like get their weights by a first call
            with torch.no_grad():
                called(wanted, f", given observations of shape {tuple(one.shape)},", OwnTorso(module, spec, 0), one)
        # On a copy, because a forward pass may change statistics; target networks are copies, too.
        trial = OwnTorso(called(wanted, "'s module cannot be copied: it", copy.deepcopy, module), spec, 0).eval()
        for rows in (1, 3):  # an actor may have one lane only
            with torch.no_grad():
                width = require_features(trial, one.repeat(rows, *[1] * len(spec.obs_shape)), wanted).shape[1]
        return OwnTorso(module, spec, width)

    return made


def require_features(torso: OwnTorso, obs: Tensor, wanted: str) -> Tensor:
    """Its features of observations as they are stored; ConfigError if they are not [B, F]."""
    features: Any = called(wanted, f", given observations of shape {tuple(obs.shape)},", torso, obs)
    shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(obs) or not features.numel():
        raise ConfigError(
            f"{wanted} returned {shape} for {len(obs)} observations: it must return [{len(obs)}, F], "
            "one row of features for each. nn.Flatten() at its end makes rows of what has more axes."
        )
    if not features.is_floating_point():
        raise ConfigError(f"{wanted} returned {features.dtype}: features must be floating point.")
    return features


def called(wanted: str, when: str, function: Any, *arguments: Any) -> Any:
    """Calls a function of the user's; ConfigError with its error in one line."""
    from shoal.envs.faults import explain

    try:
        return function(*arguments)
    except ShoalError:
        raise
    except Exception as error:
        raise ConfigError(f"{wanted}{when} raised {type(error).__name__}: {explain(error)}") from error


def _find(path: str, wanted: str, noun: str, kind: Any) -> Any:
    """What `module:NAME` names; an error proposes those of this kind."""
    from shoal.envs.registry import import_module  # here: Gymnasium takes a while, and most runs need none of this

    module, _, name = path.rpartition(":")
    if not module or not name or module == "__main__":
        here = " Other processes cannot import '__main__': use the name of its file." * (module == "__main__")
        raise ConfigError(f"{wanted} cannot be used: write module:NAME, where the module is your own.{here}")
    found = import_module(module, wanted)
    if not hasattr(found, name):
        known = [one for one, value in vars(found).items() if isinstance(value, kind)]
        raise UnknownName(f"{noun} in the module {module!r}", name, known)
    return getattr(found, name)
