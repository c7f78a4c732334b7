"""Runs that share replay: each writes its own shards, all read each other's in place.

    registry = create_distributed_registry()                      # a folder; nothing to start
    buffer_id = registry.register_buffer("run_1", "SAC")
    SAC("MlpPolicy", env, replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs=dict(registry=registry, buffer_id=buffer_id, cross_sample_ratio=0.2))

Stable-Baselines3 is loaded when a name that needs it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError
from shoal.sharing.description import Description
from shoal.sharing.registry import Registry, connect_registry, create_distributed_registry
from shoal.sharing.shared_buffer import SharedBuffer
from shoal.sharing.strategies import STRATEGIES

if TYPE_CHECKING:
    from shoal.sharing.sb3_buffer import DistributedReplayBuffer
    from shoal.sharing.sb3_contribute import ContributingVecEnv, SharingCallback, share_metrics

_NEEDS_SB3 = {
    "DistributedReplayBuffer": "shoal.sharing.sb3_buffer",
    "ContributingVecEnv": "shoal.sharing.sb3_contribute",
    "SharingCallback": "shoal.sharing.sb3_contribute",
    "share_metrics": "shoal.sharing.sb3_contribute",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_SB3:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_NEEDS_SB3[name])
    except ModuleNotFoundError as error:
        if error.name != "stable_baselines3":
            raise
        raise ConfigError(f"{name} needs Stable-Baselines3: pip install 'shoal-rl[sb3]'.") from error
    return getattr(module, name)


__all__ = [
    "STRATEGIES",
    "ContributingVecEnv",
    "Description",
    "DistributedReplayBuffer",
    "Registry",
    "SharedBuffer",
    "SharingCallback",
    "connect_registry",
    "create_distributed_registry",
    "share_metrics",
]
