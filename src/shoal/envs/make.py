"""Makes environments from settings: for actors, for descriptions, for videos and windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FlattenObservation, HumanRendering

from shoal.envs.atari import MAX_FRAMES, AtariRenderEnv, make_atari
from shoal.envs.faults import close_quietly, explain
from shoal.envs.loop import LoopVectorEnv
from shoal.envs.parts import PackObservation, needs_packing, refuse_unreadable
from shoal.envs.registry import find_registration, is_atari, make_failure
from shoal.envs.seeding import lane_seeds
from shoal.envs.settings import EnvSettings
from shoal.envs.spaces import ActionMap, describe, policy_dtype, skip_second_check
from shoal.envs.vector import Env
from shoal.envs.wrappers import wrapped
from shoal.errors import ConfigError, EnvError, on_failure
from shoal.types import Array, EnvSpec

Made = TypeVar("Made")
RenderMode = Literal["rgb_array", "human"]


def make_env(settings: EnvSettings, lanes: int, seed: int, *, training: bool = True) -> Env:
    """Makes the lanes of one actor.

    Atari games run on ale-py's native vector environment. Others run on the environment's own vector version if it has
    one that behaves the same (see `_own_vector`), else one after the other. Observations other than Box (Dict, Tuple,
    Discrete, MultiDiscrete, MultiBinary) become one row of numbers, in the order of Gymnasium's `flatten`; if there are
    images among them, `EnvSpec.obs_parts` says where. uint8 and float32 stay, other dtypes become float32. A PettingZoo
    parallel environment becomes one with several agents in a lane: see `team.py`.

    Args:
        settings: which environment, and how it is prepared.
        lanes: how many.
        seed: the same seed and actions give the same stream; every actor needs its own.
        training: False for evaluation: rewards are not clipped and lost lives do not end episodes, though FIRE is
            played after one with `episodic_life`.

    Raises:
        UnknownName: no environment has this id.
        ConfigError: a package is missing, or a setting or space cannot be used.
        EnvError: making it raised.
    """
    atari = is_atari(settings.id)
    seeds: Any = lane_seeds(seed, lanes)
    own = None if atari else _guarded(settings.id, lambda: _own_vector(settings, lanes))
    if own is not None:
        vector, seeds = own, int(seeds[0])
    elif atari:
        vector = _guarded(settings.id, lambda: make_atari(settings, lanes))
    else:
        vector = _guarded(settings.id, lambda: LoopVectorEnv(lambda: _make_one(settings), lanes))
    return Env(
        vector,
        describe(settings, vector.single_observation_space, vector.single_action_space, vector.metadata),
        seeds,
        reward_bound=reward_bound(settings) if training else None,
        copy=own is not None,
        lost_life=("ends" if training else "restarts") if atari and settings.episodic_life else "nothing",
    )


def describe_env(settings: EnvSettings) -> EnvSpec:
    """The environment's EnvSpec; makes one and closes it. Raises what `make_env` raises."""
    return describe(settings, *_described(settings))


def describe_spaces(settings: EnvSettings) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space, flattened; makes an environment and closes it."""
    observation, action, _ = _described(settings)
    return observation, action


def _described(settings: EnvSettings) -> tuple[spaces.Space[Any], spaces.Space[Any], dict[str, Any]]:
    atari = is_atari(settings.id)
    env: Any = _guarded(settings.id, lambda: make_atari(settings, 1) if atari else _make_one(settings))
    close_quietly(env)
    if atari:
        return env.single_observation_space, env.single_action_space, {}
    return env.observation_space, env.action_space, env.metadata


def try_levels(settings: EnvSettings, levels: Iterable[Mapping[str, float]]) -> None:
    """Begins an episode at each of some levels.

    Raises:
        EnvError: one of them cannot be played; and what `make_env` raises.
    """
    env = make_plain_env(settings)
    try:
        for level in levels:
            options = {"level": dict(level)}
            _guarded(f"{settings.id} at level {options['level']}", partial(env.reset, seed=0, options=options))
    finally:
        close_quietly(env)


def episode_limit(settings: EnvSettings) -> int | None:
    """The environment's time limit in steps; None if it has none."""
    asked = settings.max_episode_steps or settings.kwargs.get("max_episode_steps")
    if is_atari(settings.id):
        most = MAX_FRAMES // settings.frame_skip
        return min(most, asked or most)
    limit = asked or find_registration(settings.id).max_episode_steps
    return limit if limit and limit > 0 else None  # -1 switches the id's own limit off


def make_plain_env(settings: EnvSettings) -> gymnasium.Env[Any, Any]:
    """One environment as Gymnasium makes it, with the settings' arguments and time limit.

    Nothing is flattened, cast or clipped. An Atari game gives preprocessed, stacked frames, as a policy takes them.
    Raises what `make_env` raises.
    """
    atari = is_atari(settings.id)
    return _guarded(settings.id, lambda: AtariRenderEnv(settings) if atari else _plain(settings))


def reward_bound(settings: EnvSettings) -> float | None:
    """The bound that training rewards are clipped to: by default 1 on Atari, none elsewhere."""
    return (1.0 if is_atari(settings.id) else None) if settings.reward_clip == "auto" else settings.reward_clip


def make_render_env(settings: EnvSettings, mode: RenderMode = "rgb_array") -> gymnasium.Env[Any, Any]:
    """One environment that renders, with a policy's observations and actions.

    Rewards are not clipped and lost lives do not end an episode. It renders once before it is returned, so that a
    missing package or display is found before an evaluation, not after.

    Args:
        settings: which environment.
        mode: `rgb_array` renders pictures, `human` shows every step in a window.

    Raises:
        ConfigError: it cannot be rendered, or a package for that is missing; and what `make_env` raises.
    """
    made = _guarded(settings.id, lambda: _shown(settings, mode))
    with on_failure(lambda: close_quietly(made)):
        _guarded(settings.id, lambda: (made.reset(seed=0), made.render()))
    return made


def _shown(settings: EnvSettings, mode: RenderMode) -> gymnasium.Env[Any, Any]:
    if is_atari(settings.id):
        game = AtariRenderEnv(settings)
        return HumanRendering(_Enlarged(game)) if mode == "human" else game
    plain = _make_one(settings)
    modes = plain.metadata.get("render_modes") or ()
    close_quietly(plain)
    if "rgb_array" not in modes and mode not in modes:
        raise ConfigError(f"Environment {settings.id!r} cannot render pictures: its render modes are {list(modes)}.")
    if mode in modes:
        return _PolicySide(_make_one(settings, render_mode=mode), settings.id)
    return _PolicySide(HumanRendering(_make_one(settings, render_mode="rgb_array")), settings.id)


class _Enlarged(gymnasium.Wrapper[Array, Any, Array, Any]):
    """Pictures three times as large, for today's screens."""

    TIMES = 3

    def render(self) -> Any:
        picture: Any = self.env.render()
        return picture.repeat(self.TIMES, axis=0).repeat(self.TIMES, axis=1)


class _PolicySide(gymnasium.Wrapper[Array, Any, Any, Any]):
    """Casts observations to the policy's dtype and maps its actions, as `Env` does for lanes."""

    def __init__(self, env: gymnasium.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        self._id = env_id
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self._dtype = policy_dtype(space)
        self._to_env = ActionMap(env.action_space)
        self.observation_space = spaces.Box(
            space.low.astype(self._dtype), space.high.astype(self._dtype), dtype=self._dtype.type
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, info = self._asked("reset", seed=seed, options=options)
        return np.asarray(obs, self._dtype), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self._asked("step", self._to_env(np.asarray(action)))
        return np.asarray(obs, self._dtype), float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        close_quietly(self.env)

    def _asked(self, call: str, *arguments: Any, **named: Any) -> Any:
        try:
            return getattr(self.env, call)(*arguments, **named)
        except (Exception, SystemExit) as error:
            where = f"Environment {self._id!r} raised {type(error).__name__} in {call}"
            raise EnvError(f"{where}: {explain(error)}") from error


def _plain(settings: EnvSettings, **changes: Any) -> gymnasium.Env[Any, Any]:
    """One ordinary environment with Gymnasium's own wrappers (time limit, order), and those of the settings."""
    # Env checks every step and raises; Gymnasium's checker looks at the first one only, and warns.
    arguments: dict[str, Any] = {"disable_env_checker": True, **settings.kwargs, **changes}
    if settings.max_episode_steps is not None:
        arguments["max_episode_steps"] = settings.max_episode_steps
    env = gymnasium.make(find_registration(settings.id), **arguments)
    with on_failure(lambda: close_quietly(env)):
        return wrapped(env, settings)


def _make_one(settings: EnvSettings, **changes: Any) -> gymnasium.Env[Any, Any]:
    """One ordinary environment, flattened if need be."""
    env = _plain(settings, **changes)
    with on_failure(lambda: close_quietly(env)):
        refuse_unreadable(settings, env.observation_space)
        if needs_packing(env.observation_space):
            env = PackObservation(env)
        elif not isinstance(env.observation_space, spaces.Box):
            env = FlattenObservation(env)
        describe(settings, env.observation_space, env.action_space)
    return env


def _own_vector(settings: EnvSettings, lanes: int) -> Any | None:
    """The environment's own vector version, or None if there is none that behaves like the loop.

    It must autoreset in the next step, observe a Box, take the user's arguments and the time limit, and have no
    wrappers.
    """
    registration = find_registration(settings.id)
    if registration.vector_entry_point is None or registration.additional_wrappers or settings.wrappers:
        return None
    arguments = dict(settings.kwargs)
    if "max_episode_steps" in arguments:
        return None
    if settings.max_episode_steps is not None:
        arguments["max_episode_steps"] = settings.max_episode_steps
    try:
        vector = gymnasium.make_vec(registration, lanes, "vector_entry_point", **arguments)
    except TypeError:  # it does not take an argument; the loop may, and if not, its error is clearer
        return None
    same_reset = vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
    if same_reset and isinstance(vector.single_observation_space, spaces.Box):
        skip_second_check(vector)
        return vector
    close_quietly(vector)
    return None


def _guarded(env_id: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except (Exception, SystemExit) as error:  # an environment must not end the program
        failure = make_failure(env_id, error)
        if failure is error:
            raise
        raise failure from error
