"""Environments: any Gymnasium id as N validated lanes, Atari on ale-py's native vector environment."""

from __future__ import annotations

from shoal.envs.make import describe_env as describe_env
from shoal.envs.make import describe_spaces as describe_spaces
from shoal.envs.make import episode_limit as episode_limit
from shoal.envs.make import make_env as make_env
from shoal.envs.make import make_plain_env as make_plain_env
from shoal.envs.make import make_render_env as make_render_env
from shoal.envs.make import reward_bound as reward_bound
from shoal.envs.make import try_levels as try_levels
from shoal.envs.observations import ObservationMap as ObservationMap
from shoal.envs.registry import is_atari as is_atari
from shoal.envs.settings import EnvSettings as EnvSettings
from shoal.envs.spaces import ActionMap as ActionMap
from shoal.envs.vector import Env as Env
