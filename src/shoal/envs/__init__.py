"""Environments: any Gymnasium id as N validated lanes, Atari on ale-py's native vector environment."""

from __future__ import annotations

from shoal.envs.make import (
    describe_env,
    describe_spaces,
    episode_limit,
    make_env,
    make_plain_env,
    make_render_env,
    reward_bound,
)
from shoal.envs.observations import ObservationMap
from shoal.envs.registry import is_atari
from shoal.envs.settings import EnvSettings
from shoal.envs.spaces import ActionMap
from shoal.envs.vector import Env

__all__ = [
    "ActionMap",
    "Env",
    "EnvSettings",
    "ObservationMap",
    "describe_env",
    "describe_spaces",
    "episode_limit",
    "is_atari",
    "make_env",
    "make_plain_env",
    "make_render_env",
    "reward_bound",
]
