"""Atari on ale-py's vector environment. Short episodes: the emulator takes about 0.5 ms per step here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv

from shoal.envs import Env, EnvSettings, describe_env, is_atari, make_env, make_render_env
from shoal.envs.lives import LifeCut
from shoal.envs.seeding import lane_seeds
from shoal.errors import ConfigError, UnknownName


def atari(game: str = "Pong", **settings: Any) -> EnvSettings:
    return EnvSettings(id=f"{game}NoFrameskip-v4", **settings)


def play(env: Env, steps: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [env.step(rng.integers(0, env.spec.num_actions, env.lanes)) for _ in range(steps)]


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "ALE/Pong-v5", "Pong-v4", "ale_py:ALE/Pong-v5"])
def test_all_ids_of_a_game_are_the_same_environment(env_id: str) -> None:
    assert is_atari(env_id)
    spec = describe_env(EnvSettings(id=env_id))
    assert (spec.env_id, spec.obs_shape, spec.obs_dtype, spec.frame_stack) == (env_id, (4, 84, 84), "uint8", 4)
    assert (spec.num_actions, spec.frame_shape) == (6, (84, 84))
    env = make_env(EnvSettings(id=env_id), 1, 3)
    reference = make_env(atari(), 1, 3)
    assert np.array_equal(env.reset(), reference.reset())
    assert all(np.array_equal(a.obs, b.obs) for a, b in zip(play(env, 5), play(reference, 5), strict=True))


def test_names_of_games() -> None:
    assert describe_env(atari("MsPacman")).num_actions == 9
    assert not is_atari("CartPole-v1") and not is_atari("HalfCheetah-v4")


def test_learning_rewards_are_clipped_and_returns_true() -> None:
    settings = EnvSettings(id="ALE/Phoenix-v5", max_episode_steps=40, noop_max=0)
    env, evaluation = make_env(settings, 2, 0), make_env(settings, 2, 0, training=False)
    assert np.array_equal(env.reset(), evaluation.reset())
    steps, true_steps = play(env, 82), play(evaluation, 82)
    rewards = np.stack([s.reward for s in steps])
    true_rewards = np.stack([s.reward for s in true_steps])
    assert rewards.dtype == np.float32 and set(np.unique(rewards)) == {0.0, 1.0}
    assert true_rewards.max() >= 10
    assert np.array_equal(rewards, np.clip(true_rewards, -1, 1))
    # 40 steps, the reset step, 40 steps, the reset step
    assert [t for t, s in enumerate(steps) if s.truncated.any()] == [39, 80]
    for lane in range(2):
        first, second = steps[39].finished[lane], steps[80].finished[lane]
        assert (first.lane, first.length, second.length) == (lane, 40, 40)
        assert first.episode_return == true_rewards[:40, lane].sum()
        assert second.episode_return == true_rewards[41:81, lane].sum()
    assert (rewards[40] == 0).all()
    assert (steps[40].obs[:, :3] == 0).all() and steps[40].obs[:, 3].any()  # the stack starts from zeros


def test_stack_holds_the_newest_frames() -> None:
    env = make_env(atari(frame_stack=3), 1, 0)
    first = env.reset()
    steps = play(env, 5)
    frames = [first[0, -1], *(s.obs[0, -1] for s in steps)]
    assert env.spec.obs_shape == (3, 84, 84)
    assert np.array_equal(steps[-1].obs[0], np.stack(frames[-3:]))


def test_same_seed_same_stream_and_lanes_differ() -> None:
    def stream(seed: int, **settings: Any) -> np.ndarray:
        env = make_env(atari("Breakout", sticky_actions=0.25, max_episode_steps=15, **settings), 3, seed)
        return np.stack([env.reset(), *(s.obs for s in play(env, 40))])

    first = stream(1)
    assert np.array_equal(first, stream(1, threads=2))
    assert not np.array_equal(first, stream(2))
    assert not np.array_equal(first[:, 0], first[:, 1])


def test_frames_arrays_are_the_callers() -> None:
    env = make_env(atari(), 1, 0)
    observations = [env.reset(), *(s.obs for s in play(env, 4))]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(observations) for b in observations[:i])


def test_kwargs() -> None:
    assert describe_env(atari(kwargs={"full_action_space": True})).num_actions == 18
    continuous = make_env(atari(kwargs={"continuous": True}), 2, 0)
    assert continuous.spec.action_shape == (3,)
    continuous.reset()
    continuous.step(np.full((2, 3), 9.0))
    with pytest.raises(ConfigError, match=r"env\.kwargs\.frameskip is set by env\.frame_skip"):
        describe_env(atari(kwargs={"frameskip": 2}))
    with pytest.raises(UnknownName, match="Did you mean 'full_action_space'"):
        describe_env(atari(kwargs={"full_actions_space": True}))


def test_lost_lives_end_the_learners_episode_but_not_the_game() -> None:
    settings = atari("Breakout", episodic_life=True, noop_max=0)
    env = make_env(settings, 1, 0)
    env.reset()
    raw = AtariVectorEnv("breakout", 1, noop_max=0, reward_clipping=False, num_threads=1)
    _, info = raw.reset(seed=lane_seeds(0, 1))
    rng, lives, cuts, total, resetting = np.random.default_rng(0), 5, 0, 0.0, False
    for t in range(1, 1500):
        action = rng.integers(0, 4, 1)
        step = env.step(action)
        obs, reward, terminated, _, info = raw.step(np.array([1]) if resetting else action)
        total += reward[0]
        if resetting:
            assert step.reward[0] == 0 and not step.terminated[0]
            assert (step.obs[0, :-1] == 0).all() and np.array_equal(step.obs[0, -1], obs[0, -1])
        assert step.terminated[0] == (terminated[0] or info["lives"][0] < lives)
        assert bool(step.finished) == terminated[0]
        resetting = bool(step.terminated[0] and not terminated[0])
        cuts += resetting
        lives = info["lives"][0]
        if terminated[0]:
            assert step.finished[0][1:3] == (total, t)
            break
    assert cuts == 4 and lives == 0


def test_evaluation_with_episodic_life_goes_on_after_a_lost_life_by_itself() -> None:
    """A policy that never presses FIRE: in training it never has to."""
    settings = atari("Breakout", episodic_life=True)
    env, screen = make_env(settings, 1, 5, training=False), make_render_env(settings)
    assert np.array_equal(env.reset()[0], screen.reset(seed=5)[0])
    for _ in range(1500):
        step, shown = env.step(np.array([2])), screen.step(2)  # it only moves to the right
        assert np.array_equal(step.obs[0], shown[0])
        if step.terminated[0]:
            break
    assert step.terminated[0] and len(step.finished) == 1  # all five lives are lost


def test_life_cut_when_the_game_ends_in_the_pretended_reset() -> None:
    """Rare: the learner hears of it one step later, and nothing joins two games."""
    cut = LifeCut(np.array([3]), 2, np.array(1))
    no, yes, told = np.array([False]), np.array([True]), []
    script = [(no, 3), (no, 2), (yes, 0), (no, 3), (no, 3), (no, 3)]  # play, lose a life, game over, new game, play
    for ended, lives in script:
        played = cut.actions(np.array([0]))
        reward = np.ones(1, np.float32)
        obs = np.ones((1, 2, 1, 1), np.uint8)
        terminated, truncated = cut.apply(obs, reward, ended, no, np.array([lives]))
        told.append((int(played[0]), float(reward[0]), bool(terminated[0]), int(obs[0, 0, 0, 0])))
        assert not truncated.any()
    assert told == [
        (0, 1, False, 1),
        (0, 1, True, 1),  # a life is lost
        (1, 0, False, 0),  # the pretended reset, in which the game ends
        (0, 1, True, 1),  # the emulator resets; the learner hears of the end
        (1, 0, False, 0),  # the pretended reset of that
        (0, 1, False, 1),
    ]


def test_render_env_shows_the_game_the_policy_sees() -> None:
    settings = atari("Breakout", sticky_actions=0.25, max_episode_steps=30)
    env, lanes = make_render_env(settings), make_env(settings, 1, 5, training=False)
    obs, _ = env.reset(seed=5)
    assert obs.shape == lanes.spec.obs_shape and obs.dtype == lanes.spec.obs_dtype
    assert np.array_equal(obs, lanes.reset()[0])
    screens = [env.render()]
    rng = np.random.default_rng(1)  # the same actions as `play` draws
    for step in play(lanes, 30, seed=1):
        obs, reward, terminated, truncated, _ = env.step(rng.integers(0, 4, 1)[0])
        screens.append(env.render())
        assert np.array_equal(obs, step.obs[0]) and reward == step.reward[0]
    assert truncated and not terminated
    assert all(s.shape == (210, 160, 3) and s.dtype == np.uint8 for s in screens)
    assert not np.array_equal(screens[1], screens[-1])
    env.reset()
    env.close()
