"""Wrappers by name, and environments by the path of their class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from shoal.envs import EnvSettings, describe_env, episode_limit, make_env, make_plain_env, make_render_env
from shoal.envs.loop import LoopVectorEnv
from shoal.errors import ConfigError, EnvError, UnknownName

MODULE = """
import gymnasium
import numpy as np

class Small(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, first=0.0, render_mode=None):
        self.first, self.render_mode = first, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.first, np.float32), {}

    def step(self, action):
        return np.full(1, self.first, np.float32), 1.0, False, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)

class Times(gymnasium.ObservationWrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def observation(self, observation):
        return observation * np.float32(self.factor)

def make(first):
    return Small(first)

number, text, no_environment = 3, "Small", lambda **given: 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "shoal_test_small.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return iter([monkeypatch.delitem(__import__("sys").modules, "shoal_test_small", raising=False)])


def settings(env_id: str = "shoal_test_small:Small", **more: Any) -> EnvSettings:
    return EnvSettings.model_validate({"id": env_id, **more})


def test_a_class_or_a_function_by_its_path() -> None:
    for name in ("Small", "make"):
        asked = settings(f"shoal_test_small:{name}", kwargs={"first": 2.0}, max_episode_steps=3)
        assert describe_env(asked).env_id == f"shoal_test_small:{name}" and episode_limit(asked) == 3
        env = make_env(asked, 2, 0)
        assert env.reset().tolist() == [[2.0], [2.0]]
        assert [bool(env.step(np.zeros(2, np.int64)).truncated.all()) for _ in range(3)] == [False, False, True]
    assert episode_limit(settings()) is None
    assert make_render_env(settings()).render().shape == (4, 4, 3)  # type: ignore[union-attr]


def test_a_path_that_is_no_environment() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'Small'"):
        describe_env(settings("shoal_test_small:Smal"))
    with pytest.raises(UnknownName, match="Unknown environment 'number'"):
        describe_env(settings("shoal_test_small:number"))
    with pytest.raises(EnvError, match=r"must inherit from the gymnasium\.Env class"):
        describe_env(settings("shoal_test_small:no_environment"))
    with pytest.raises(ConfigError, match=r"does not take these env\.kwargs"):
        describe_env(settings(kwargs={"colour": 1}))
    with pytest.raises(ConfigError, match="no module named 'shoal_test_absent'"):
        describe_env(settings("shoal_test_absent:Small"))


def test_wrappers_in_their_order() -> None:
    twice, late = {"name": "shoal_test_small:Times", "args": {"factor": 2}}, "TimeAwareObservation"
    asked = settings(kwargs={"first": 1.0}, max_episode_steps=5, wrappers=[late, twice])
    assert [one.name for one in asked.wrappers] == [late, twice["name"]]
    env = make_env(asked, 2, 0)
    assert env.spec.obs_shape == (2,) and env.reset().tolist() == [[2.0, 0.0]] * 2  # first the time, then twice
    plain = make_plain_env(asked)
    assert plain.reset()[0].tolist() == [2.0, 0.0]
    assert make_render_env(asked).reset()[0].tolist() == [2.0, 0.0]
    other = make_env(settings(kwargs={"first": 1.0}, max_episode_steps=5, wrappers=[twice, late]), 1, 0)
    env.step(np.zeros(2, np.int64))
    assert other.step(np.zeros(1, np.int64)).obs.shape == (1, 2) if other.reset() is not None else False


def test_an_own_vector_version_does_not_bypass_them() -> None:
    asked = settings("CartPole-v1", wrappers=[{"name": "ReshapeObservation", "args": {"shape": [2, 2]}}])
    env = make_env(asked, 2, 0)
    assert isinstance(env._vector, LoopVectorEnv) and env.reset().shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("TimeAware", "Unknown wrapper .* Did you mean 'TimeAwareObservation'"),
        ("vector", "Unknown wrapper in env.wrappers 'vector'"),
        ("shoal_test_small:Time", "Unknown wrapper in the module 'shoal_test_small' 'Time'. Did you mean 'Times'"),
        ("shoal_test_absent:Times", "Wrapper 'shoal_test_absent:Times': cannot import"),
        ("shoal_test_small:Times", "missing a required argument: 'factor'; its args are factor"),
        ({"name": "TimeAwareObservation", "args": {"flat": True}}, "'flat'; its args are flatten, normalize_time"),
        ({"name": "ReshapeObservation", "args": {"shape": [7]}}, "ReshapeObservation cannot wrap .* product"),
    ],
)
def test_refused_wrappers(wrapper: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_env(settings(wrappers=[wrapper]), 1, 0)


def test_atari_takes_none() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match=r"env\.wrappers cannot be used with 'PongNoFrameskip-v4'"):
        describe_env(settings("PongNoFrameskip-v4", wrappers=["FlattenObservation"]))


def test_settings_of_wrappers() -> None:
    for wrong in ("TimeAwareObservation", [3], [{"args": {}}], [{"name": "A", "arg": {}}]):
        with pytest.raises(pydantic.ValidationError):
            settings(wrappers=wrong)
    assert settings("a.b:C", wrappers=["d:E", "F"]).modules == ("a.b", "d")
