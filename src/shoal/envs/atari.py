"""Atari games on ale-py's native vector environment.

Preprocessing as in Mnih et al. 2015 (https://doi.org/10.1038/nature14236): 84x84 gray, frame skip with max-pooling over
the last two frames, a stack of the newest frames (zeros before an episode's first), up to `noop_max` no-ops and FIRE,
where the game has it, at the start. An episode is cut after 108,000 frames. Rewards leave the emulator unclipped.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import numpy as np

from shoal.envs.lives import LifeCut, restart_action
from shoal.envs.registry import find_registration
from shoal.envs.seeding import lane_seeds
from shoal.envs.settings import EnvSettings
from shoal.errors import ConfigError, UnknownName
from shoal.types import Array

MAX_FRAMES = 108_000
"""Frames per episode, 30 minutes of play: what all published Atari scores use."""

_SETTINGS_OF = {
    "frameskip": "frame_skip",
    "stack_num": "frame_stack",
    "noop_max": "noop_max",
    "repeat_action_probability": "sticky_actions",
    "episodic_life": "episodic_life",
    "life_loss_info": "episodic_life",
    "reward_clipping": "reward_clip",
    "max_num_frames_per_episode": "max_episode_steps",
    "num_threads": "threads",
    "num_envs": "lanes",
}
_OURS = {"self", "game", "batch_size", "autoreset_mode"}


def make_atari(settings: EnvSettings, lanes: int, **changes: Any) -> Any:
    """ale-py's AtariVectorEnv (NEXT_STEP autoreset, fresh arrays each step); `changes` override its arguments.

    Raises:
        ConfigError: `settings.kwargs` holds what ale-py's vector environment cannot do, or what a setting decides.
    """
    from ale_py.vector_env import AtariVectorEnv  # registers all games: only when one is wanted

    registration = find_registration(settings.id)
    if settings.wrappers:
        raise ConfigError(
            f"env.wrappers cannot be used with {settings.id!r}: Atari games run on ale-py's vector environment, which "
            "does the usual preprocessing itself. Remove them; env.frame_skip and the like set what it does."
        )
    _check_kwargs(settings, set(inspect.signature(AtariVectorEnv.__init__).parameters))
    frames = MAX_FRAMES
    if settings.max_episode_steps is not None:
        frames = min(frames, settings.max_episode_steps * settings.frame_skip)
    arguments: dict[str, Any] = {
        "num_envs": lanes,
        "num_threads": min(settings.threads, lanes),
        "max_num_frames_per_episode": frames,
        "repeat_action_probability": settings.sticky_actions,
        "stack_num": settings.frame_stack,
        "frameskip": settings.frame_skip,
        "noop_max": settings.noop_max,
        "episodic_life": False,  # ale-py would start a new game at each lost life; see lives.py
        "reward_clipping": False,  # true returns are wanted; Env clips
        **settings.kwargs,
        **changes,
    }
    return AtariVectorEnv(registration.kwargs["game"], **arguments)


def _check_kwargs(settings: EnvSettings, accepted: set[str]) -> None:
    allowed = accepted - _OURS - set(_SETTINGS_OF)
    for key in settings.kwargs:
        if key in _SETTINGS_OF:
            raise ConfigError(f"env.kwargs.{key} is set by env.{_SETTINGS_OF[key]} for {settings.id!r}: use that.")
        if key not in allowed:
            raise UnknownName("env.kwargs key of an Atari game", key, allowed)


class AtariRenderEnv(gymnasium.Env[Array, Any]):
    """One game for evaluation videos: observations as in training, and the full-size colour screen.

    Two emulators play the same game from the same seed: one is preprocessed for the policy, the other shows 210x160
    RGB. So a seed gives exactly the stream of lane 0 of `make_env(settings, 1, seed, training=False)`.
    """

    def __init__(self, settings: EnvSettings) -> None:
        """Makes both emulators; nothing is reset yet."""
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, 60 // settings.frame_skip)}
        self.render_mode = "rgb_array"
        self._policy_side = make_atari(settings, 1)
        self._screen_side = make_atari(settings, 1, grayscale=False, img_height=210, img_width=160, stack_num=1)
        self.observation_space = self._policy_side.single_observation_space
        self.action_space = self._policy_side.single_action_space
        self._screen: Array | None = None
        self._seeded = False
        self._stack, self._restarts = settings.frame_stack, settings.episodic_life
        self._lives: LifeCut | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts a new game."""
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**31))
        seeds = None if seed is None else lane_seeds(seed, 1)
        self._seeded = True
        obs, info = self._policy_side.reset(seed=seeds)
        if self._restarts:
            self._lives = LifeCut(info["lives"], self._stack, restart_action(self._policy_side), tell=False)
        self._screen = self._screen_side.reset(seed=seeds)[0]
        return obs[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Plays the action in both emulators; the reward is not clipped."""
        batch = np.asarray(action, self.action_space.dtype)[None]
        if self._lives is not None:
            batch = self._lives.actions(batch)
        obs, reward, terminated, truncated, info = self._policy_side.step(batch)
        if self._lives is not None:
            self._lives.apply(obs, reward, terminated, truncated, info["lives"])
        self._screen = self._screen_side.step(batch)[0]
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """[210, 160, 3] uint8, the screen after the last step."""
        if self._screen is None:
            raise gymnasium.error.ResetNeeded("Call reset before render.")
        return self._screen[0, 0]

    def close(self) -> None:
        """Closes both emulators."""
        self._policy_side.close()
        self._screen_side.close()
