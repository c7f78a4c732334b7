"""Makes environments and models of Stable-Baselines3 from settings. Imports the package only when it is needed."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.errors import ConfigError, UnknownName
from shoal.sharing.sb3_settings import Sb3EnvSettings, Sb3Settings

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

_CONTRIB = frozenset({"QRDQN", "TQC"})
FIXED = {
    "policy": "it is set by policy",
    "env": "it is set by env",
    "seed": "it is set by --base-seed",
    "verbose": "the run's log.txt is kept short",
    "tensorboard_log": "curves are in the run's folder",
    "replay_buffer_class": "it is Shoal's",
}
"""Arguments of the classes that are no hyper-parameters, and why."""
_NOISES = {"normal": "NormalActionNoise", "ornstein-uhlenbeck": "OrnsteinUhlenbeckActionNoise"}
_GAMMA = 0.99
"""The default of every algorithm of Stable-Baselines3."""
EVALUATION_SEED = 10_000
"""Added to a run's seed for its evaluation environment."""


def sb3_class(algo: str) -> Any:
    """The class of an algorithm; raises ConfigError when its package is not installed."""
    package = "sb3_contrib" if algo in _CONTRIB else "stable_baselines3"
    try:
        return getattr(importlib.import_module(package), algo)
    except ImportError as error:
        raise ConfigError(f'{algo} cannot be imported ({error}): run `pip install "shoal-rl[sb3]"`.') from error


def hyperparameter_names(algo: str) -> list[str]:
    """What the algorithm's class takes, without what is fixed."""
    parameters = inspect.signature(sb3_class(algo).__init__).parameters
    return [name for name in parameters if name not in ("self", *FIXED) and name[0] != "_"]


def check_hyperparameters(settings: Sb3Settings) -> list[ConfigError]:
    """What is wrong with values that YAML has no type for."""
    try:
        _prepared(settings.hyperparameters, 1)
        return []
    except ConfigError as error:
        return [error]


def make_vec_env(settings: Sb3EnvSettings, most_steps: int | None = None) -> VecEnv:
    """The environments, monitored but not normalised.

    Args:
        settings: which, and how many.
        most_steps: cuts longer episodes; None: only the environment's own limit does.
    """
    import gymnasium
    from gymnasium.wrappers import TimeLimit
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    def make() -> Monitor[Any, Any]:
        env = gymnasium.make(settings.id, **settings.kwargs)
        return Monitor(env if most_steps is None else TimeLimit(env, most_steps))

    return DummyVecEnv([make for _ in range(settings.n_envs)])


def make_evaluation_env(settings: Sb3Settings) -> VecEnv:
    """One separate environment; with VecNormalize it returns true rewards and updates no statistics."""
    from stable_baselines3.common.vec_env import VecNormalize

    env = make_vec_env(settings.env.model_copy(update={"n_envs": 1}), settings.evaluation.max_episode_steps)
    env.seed(settings.seed + EVALUATION_SEED)
    return VecNormalize(env, training=False, norm_reward=False) if settings.env.normalize else env


def make_model(settings: Sb3Settings) -> Any:
    """The model with its environments. It shares if the environment variables name a registry."""
    import torch
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(settings.threads)
    env = make_vec_env(settings.env)
    arguments = _prepared(settings.hyperparameters, _action_size(env))
    if settings.reads:
        arguments |= _buffer_arguments(arguments)
    else:
        env = _contributing(env)
    if settings.env.normalize:
        env = VecNormalize(env, gamma=float(arguments.get("gamma", _GAMMA)))
    return sb3_class(settings.algo)(settings.policy, env, seed=settings.seed, **arguments)


def _buffer_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The buffer, with the n-step returns that SB3 sets up for its own buffers only."""
    from shoal.sharing import DistributedReplayBuffer

    more = dict(arguments.get("replay_buffer_kwargs") or {})
    if (n_steps := arguments.pop("n_steps", 1)) > 1:
        more = {"n_steps": n_steps, "gamma": arguments.get("gamma", _GAMMA), **more}
    return {"replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": more}


def _contributing(env: VecEnv) -> VecEnv:
    """Inside VecNormalize, so that raw values are shared."""
    from shoal.sharing import ContributingVecEnv
    from shoal.sharing.registry import REGISTRY

    return ContributingVecEnv(env) if os.environ.get(REGISTRY) else env


def _action_size(env: VecEnv) -> int:
    shape = env.action_space.shape
    return int(shape[0]) if shape else 1


def _prepared(given: Mapping[str, Any], actions: int) -> dict[str, Any]:
    """Converts values for which YAML has no type to what the classes take."""
    arguments = copy.deepcopy(dict(given))  # SB3 writes into policy_kwargs
    if isinstance(frequency := arguments.get("train_freq"), list):
        arguments["train_freq"] = tuple(frequency)
    if (noise := arguments.get("action_noise")) is not None:
        arguments["action_noise"] = _noise(noise, actions)
    policy = arguments.get("policy_kwargs")
    if isinstance(policy, Mapping) and isinstance(name := policy.get("activation_fn"), str):
        from torch import nn

        if not hasattr(nn, name):
            raise UnknownName("activation_fn", name, ("ReLU", "Tanh", "ELU", "SiLU", "GELU", "LeakyReLU"))
        arguments["policy_kwargs"] = {**policy, "activation_fn": getattr(nn, name)}
    return arguments


def _noise(given: Any, actions: int) -> Any:
    """`{type: normal, std: 0.1}` as the object that Stable-Baselines3 takes."""
    import numpy as np

    if not isinstance(given, Mapping) or given.keys() - {"type", "std"} or given.get("type", "normal") not in _NOISES:
        form = f"{{type: {' or '.join(_NOISES)}, std: 0.1}}"
        raise ConfigError(f"hyperparameters.action_noise = {given!r} cannot be used: write {form}.")
    kind = getattr(importlib.import_module("stable_baselines3.common.noise"), _NOISES[given.get("type", "normal")])
    return kind(mean=np.zeros(actions), sigma=np.full(actions, float(given.get("std", 0.1))))
