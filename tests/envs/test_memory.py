"""The environments that need memory: their rules, and that they are found by name."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from shoal.envs.memory import FORWARD, RepeatPrevious, TMaze
from shoal.envs.registry import find_registration
from shoal.errors import ConfigError


@pytest.mark.parametrize("env_id", ["shoal/TMaze-v0", "shoal/RepeatPrevious-v0"])
def test_they_are_registered_and_sound(env_id: str) -> None:
    registration = find_registration(env_id)
    assert registration.reward_threshold
    check_env(registration.make().unwrapped, skip_render_check=True)


def test_the_way_through_a_t_maze() -> None:
    env = TMaze(length=3)
    seen = set()
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        side = int(obs[1])
        seen.add(side)
        assert obs.tolist() == [1 - side, side, 1, 0]
        again, reward, *ended, _ = env.step(0)  # a turn in the corridor leads into the wall
        assert np.array_equal(again, obs) and reward == -0.1 and not any(ended)
        for cell in range(1, 4):
            obs, reward, *ended, _ = env.step(FORWARD)
            assert obs.tolist() == [0, 0, cell < 3, cell == 3] and reward == 0.0 and ended == [False, False]
        assert env.step(FORWARD)[1:4] == (-0.1, False, False)  # and so does walking on
        turn = side if seed % 2 else 1 - side
        assert env.step(turn)[1:4] == (1.0 if seed % 2 else -1.0, True, False)
    assert seen == {0, 1}


def test_who_never_turns_is_cut() -> None:
    env = TMaze(length=2)
    env.reset(seed=0)
    ends = [env.step(FORWARD)[2:4] for _ in range(20)]
    assert not any(any(one) for one in ends[:-1]) and ends[-1] == (False, True)


def test_repeating_what_was_shown() -> None:
    env = RepeatPrevious(delay=2, symbols=3, steps=10)
    obs, _ = env.reset(seed=4)
    shown, rewards = [int(obs.argmax())], []
    for t in range(10):
        right = shown[t - 2] if t >= 2 else 0
        wrong = t == 5
        obs, reward, terminated, truncated, _ = env.step((right + wrong) % 3)
        shown.append(int(obs.argmax()))
        rewards.append(reward)
        assert terminated == (t == 9) and not truncated and obs.sum() == 1.0
    assert rewards == [0, 0, 1, 1, 1, -1, 1, 1, 1, 1] and len(set(shown)) == 3


def test_the_seed_decides() -> None:
    def signs(seed: int) -> list[list[float]]:
        env = TMaze()
        return [env.reset(seed=seed if k == 0 else None)[0].tolist() for k in range(20)]

    assert signs(1) == signs(1) != signs(2)
    assert np.array_equal(RepeatPrevious().reset(seed=3)[0], RepeatPrevious().reset(seed=3)[0])


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs\.length = 0 cannot be used"):
        TMaze(0)
    with pytest.raises(ConfigError, match="delay = 4, symbols = 4, steps = 4 cannot be used"):
        RepeatPrevious(steps=4)
