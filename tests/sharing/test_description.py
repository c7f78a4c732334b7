"""What two buffers must have in common, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from shoal.errors import ConfigError
from shoal.sharing.description import Description, describe_space

BASE = Description("Pendulum-v1", "Box(-1, 1, [3], float32)", "Box(-2, 2, [1], float32)", "unit")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"env_id": "CartPole-v1"}, "its environment is CartPole-v1, here it is Pendulum-v1"),
        ({"observation": "Discrete(3)"}, "its observation space is Discrete(3), here it is Box(-1, 1, [3], float32)"),
        ({"action": "Discrete(2)"}, "its action space is Discrete(2), here it is Box(-2, 2, [1], float32)"),
        ({"action_scaling": "env"}, "its scaling of actions is env, here it is unit"),
        ({"reward": "clipped to 1"}, "its reward is clipped to 1, here it is raw"),
    ],
)
def test_a_difference_is_named(change: dict[str, str], what: str) -> None:
    assert BASE.difference(replace(BASE, **change)) == what


def test_equal_ones_differ_in_nothing() -> None:
    assert BASE.difference(replace(BASE)) == ""


@pytest.mark.parametrize(("here", "there"), [("", "Pendulum-v1"), ("Pendulum-v1", ""), ("", "")])
def test_an_unknown_environment_compares_spaces_only(here: str, there: str) -> None:
    assert replace(BASE, env_id=here).difference(replace(BASE, env_id=there)) == ""
    assert "reward" in replace(BASE, env_id=here).difference(replace(BASE, env_id=there, reward="clipped"))


ALIKE_NOT = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (3,), np.float64),
    spaces.Box(-1, 1, (4,), np.float32),
    spaces.Box(-1, 1, (3, 1), np.float32),
    spaces.Box(-1, 2, (3,), np.float32),
    spaces.Box(-2, 1, (3,), np.float32),
    spaces.Box(np.array([-1, -2, -1], np.float32), 1, (3,), np.float32),
    spaces.Box(np.array([-1, -1, -2], np.float32), 1, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(0, 255, (3, 8, 8), np.uint8),
    spaces.Box(np.arange(10.0, dtype=np.float32), np.full(10, 99, np.float32)),
    spaces.Box(np.arange(10.0, dtype=np.float32) - 1, np.full(10, 99, np.float32)),
    spaces.Discrete(3),
    spaces.Discrete(4),
    spaces.Discrete(3, start=1),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([4, 3]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([3, 2]),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(4)}),
    spaces.Dict({"a": spaces.Discrete(4), "b": spaces.Discrete(3)}),
    spaces.Dict({"a": spaces.Discrete(3), "c": spaces.Discrete(4)}),
]


def test_different_spaces_have_different_words() -> None:
    words = [describe_space(space) for space in ALIKE_NOT]
    assert len(set(words)) == len(words), words


def test_equal_spaces_have_equal_words() -> None:
    for space in ALIKE_NOT:
        again = type(space)(dict(space.spaces)) if isinstance(space, spaces.Dict) else space
        assert describe_space(again) == describe_space(space)


def test_spaces_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Text cannot be shared; use Box, Discrete or Dict"):
        describe_space(spaces.Text(3))


def test_the_start_of_a_multi_discrete_counts() -> None:
    assert describe_space(spaces.MultiDiscrete([3], start=[1])) != describe_space(spaces.MultiDiscrete([3]))


def test_the_dtype_of_discrete_spaces_counts() -> None:
    short, long = spaces.MultiDiscrete([3], dtype=np.int32), spaces.MultiDiscrete([3], dtype=np.int64)
    assert describe_space(spaces.Dict({"a": short})) != describe_space(spaces.Dict({"a": long}))


def test_time_outs_taken_for_ends_are_another_meaning() -> None:
    told = Description("", "o", "a", "env")
    assert told.difference(replace(told, time_outs="as ends")) == (
        "its handling of time-outs is as ends, here it is told apart"
    )
