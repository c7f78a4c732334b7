"""Makes environments from settings: for an actor, for a description, for a video or a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import HumanRendering

from shoal.envs.atari import MAX_FRAMES, AtariRenderEnv, make_atari
from shoal.envs.faults import close_quietly, explain
from shoal.envs.loop import LoopVectorEnv
from shoal.envs.registry import find_registration, is_atari, make_failure
from shoal.envs.seeding import lane_seeds
from shoal.envs.settings import EnvSettings
from shoal.envs.spaces import ActionMap, describe, flatten_if_structured, policy_dtype, skip_second_check
from shoal.envs.vector import Env
from shoal.errors import ConfigError, EnvError
from shoal.types import Array, EnvSpec

Made = TypeVar("Made")
RenderMode = Literal["rgb_array", "human"]


def make_env(settings: EnvSettings, lanes: int, seed: int, *, training: bool = True) -> Env:
    """Makes the lanes of one actor.

    Atari games run on ale-py's native vector environment. Others run on the environment's own vector version where it
    has one that keeps the same promises, else one after the other. Observations other than Box (Dict, Tuple, Discrete,
    MultiDiscrete, MultiBinary) are flattened to one vector by Gymnasium's FlattenObservation; uint8 and float32 are
    kept, other dtypes become float32.

    Args:
        settings: which environment, and how it is prepared.
        lanes: how many.
        seed: the same seed and actions give the same stream; give each actor another one.
        training: False for evaluation: rewards are not clipped and lost lives do not end episodes.

    Raises:
        UnknownName: no environment has this id.
        ConfigError: a package is missing, or a setting or space cannot be used.
        EnvError: making it raised.
    """
    atari = is_atari(settings.id)
    bound = reward_bound(settings)
    seeds: Any = lane_seeds(seed, lanes)
    fresh = True
    if atari:
        vector = _guarded(settings.id, lambda: make_atari(settings, lanes))
    else:
        vector = _guarded(settings.id, lambda: _own_vector(settings, lanes))
        if vector is not None:
            seeds, fresh = int(seeds[0]), False
        else:
            vector = _guarded(settings.id, lambda: LoopVectorEnv(lambda: _make_one(settings), lanes))
    return Env(
        vector,
        _spec(settings, vector.single_observation_space, vector.single_action_space),
        seeds,
        reward_bound=bound if training else None,
        copy=not fresh,
        episodic_life=atari and training and settings.episodic_life,
    )


def describe_env(settings: EnvSettings) -> EnvSpec:
    """What the environment looks like to an algorithm; makes one and closes it. Raises what `make_env` raises."""
    return _spec(settings, *describe_spaces(settings))


def describe_spaces(settings: EnvSettings) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space as Gymnasium has them; makes an environment and closes it."""
    if is_atari(settings.id):
        vector = _guarded(settings.id, lambda: make_atari(settings, 1))
        found = vector.single_observation_space, vector.single_action_space
        close_quietly(vector)
    else:
        env = _guarded(settings.id, lambda: _make_one(settings))
        found = env.observation_space, env.action_space
        close_quietly(env)
    return found


def episode_limit(settings: EnvSettings) -> int | None:
    """Steps after which the environment's time limit ends an episode; None if it has none."""
    asked = settings.max_episode_steps or settings.kwargs.get("max_episode_steps")
    if is_atari(settings.id):
        most = MAX_FRAMES // settings.frame_skip
        return min(most, asked or most)
    limit = asked or find_registration(settings.id).max_episode_steps
    return limit if limit and limit > 0 else None  # -1 switches the id's own limit off


def make_plain_env(settings: EnvSettings) -> gymnasium.Env[Any, Any]:
    """One environment as Gymnasium makes it, with the settings' arguments and time limit.

    Nothing is flattened, cast or clipped. An Atari game observes what a policy takes, the newest frames preprocessed.
    Raises what `make_env` raises.
    """
    atari = is_atari(settings.id)
    return _guarded(settings.id, lambda: AtariRenderEnv(settings) if atari else _plain(settings))


def reward_bound(settings: EnvSettings) -> float | None:
    """What training rewards are clipped to: by default 1 on Atari, nothing elsewhere."""
    return (1.0 if is_atari(settings.id) else None) if settings.reward_clip == "auto" else settings.reward_clip


def make_render_env(settings: EnvSettings, mode: RenderMode = "rgb_array") -> gymnasium.Env[Any, Any]:
    """One environment that can be looked at, and observes and takes actions as a policy does.

    Rewards are true and lost lives do not end an episode. It renders once before it is returned, so that a missing
    package or display is found out before an evaluation, not after.

    Args:
        settings: which environment.
        mode: `rgb_array` renders pictures, `human` shows every step in a window.

    Raises:
        ConfigError: it cannot be rendered, or a package for that is missing; and what `make_env` raises.
    """
    made = _guarded(settings.id, lambda: _shown(settings, mode))
    try:
        _guarded(settings.id, lambda: (made.reset(seed=0), made.render()))
    except BaseException:
        close_quietly(made)
        raise
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
    """Pictures of a size that can be seen on a screen of today."""

    TIMES = 3

    def render(self) -> Any:
        picture: Any = self.env.render()
        return picture.repeat(self.TIMES, axis=0).repeat(self.TIMES, axis=1)


class _PolicySide(gymnasium.Wrapper[Array, Any, Any, Any]):
    """Observations in the policy's dtype, the policy's actions in the environment's range: as `Env` does for lanes."""

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
    """One ordinary environment with Gymnasium's own wrappers (time limit, order)."""
    # Env checks every step and raises; Gymnasium's checker looks at the first one only, and warns.
    arguments: dict[str, Any] = {"disable_env_checker": True, **settings.kwargs, **changes}
    if settings.max_episode_steps is not None:
        arguments["max_episode_steps"] = settings.max_episode_steps
    return gymnasium.make(find_registration(settings.id), **arguments)


def _make_one(settings: EnvSettings, **changes: Any) -> gymnasium.Env[Any, Any]:
    """One ordinary environment, flattened if need be."""
    env = _plain(settings, **changes)
    try:
        env = flatten_if_structured(env)
        _spec(settings, env.observation_space, env.action_space)
    except BaseException:
        close_quietly(env)
        raise
    return env


def _own_vector(settings: EnvSettings, lanes: int) -> Any | None:
    """The environment's own vector version, or None if there is none or it would behave differently from the loop.

    It must autoreset as we do, observe arrays, take the user's arguments and the time limit, and have no wrappers.
    """
    registration = find_registration(settings.id)
    if registration.vector_entry_point is None or registration.additional_wrappers:
        return None
    arguments = dict(settings.kwargs)
    if "max_episode_steps" in arguments:
        return None
    if settings.max_episode_steps is not None:
        arguments["max_episode_steps"] = settings.max_episode_steps
    try:
        vector = gymnasium.make_vec(registration, lanes, "vector_entry_point", **arguments)
    except TypeError:  # it does not take one of the arguments; the loop may, and if not, its error is the clearer one
        return None
    same_reset = vector.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP
    if same_reset and isinstance(vector.single_observation_space, spaces.Box):
        skip_second_check(vector)
        return vector
    close_quietly(vector)
    return None


def _spec(settings: EnvSettings, observation: spaces.Space[Any], action: spaces.Space[Any]) -> EnvSpec:
    return describe(
        settings.id,
        observation,
        action,
        frame_stack=settings.frame_stack if is_atari(settings.id) else 1,
        reward_threshold=find_registration(settings.id).reward_threshold,
    )


def _guarded(env_id: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except (Exception, SystemExit) as error:  # an environment may not end the program
        failure = make_failure(env_id, error)
        if failure is error:
            raise
        raise failure from error
