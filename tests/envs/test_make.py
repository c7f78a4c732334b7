"""Ids, spaces, own vector versions, rendering."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pydantic
import pytest
import yaml
from gymnasium import spaces

from shoal.envs import EnvSettings, describe_env, episode_limit, is_atari, make_env, make_render_env
from shoal.envs.loop import LoopVectorEnv
from shoal.errors import ConfigError, EnvError, UnknownName


def test_cartpole_own_vector_keeps_the_promises() -> None:
    """Time limit 500, reset on the next step with reward 0, and the same physics as the ordinary environment."""
    env = make_env(EnvSettings(id="CartPole-v1"), 4, 0)
    assert not isinstance(env._vector, LoopVectorEnv)
    obs = env.reset()
    one = gymnasium.make("CartPole-v1")
    one.reset(seed=0)
    one.unwrapped.state = env._vector.state[:, 0].copy()  # type: ignore[attr-defined]
    lengths, truncated_seen, was_ended = [], 0, np.zeros(4, np.bool_)
    alone: Any = None
    for t in range(1100):
        actions = (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(np.int64)
        if t % 700 > 505:
            actions[1:] = 0
        if alone is None or not (alone[2] or alone[3]):
            alone = one.step(int(actions[0]))
            expect = alone
        else:
            expect = None
        step = env.step(actions)
        if expect is not None:
            assert np.allclose(step.obs[0], expect[0], atol=1e-5)
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == expect[1:4]
        assert (step.reward[was_ended] == 0).all() and (np.abs(step.obs[was_ended]) <= 0.05).all()
        assert (step.reward[~was_ended] == 1).all()
        was_ended = step.terminated | step.truncated
        truncated_seen += int(step.truncated.sum())
        for episode in step.finished:
            assert episode.episode_return == episode.length <= 500
            lengths.append(episode.length)
        obs = step.obs
    assert truncated_seen >= 4 and 500 in lengths and min(lengths) < 20


def test_own_vector_gets_kwargs_and_time_limit() -> None:
    env = make_env(EnvSettings(id="CartPole-v1", kwargs={"sutton_barto_reward": True}, max_episode_steps=3), 2, 0)
    assert not isinstance(env._vector, LoopVectorEnv)
    env.reset()
    steps = [env.step(np.array([t % 2] * 2)) for t in range(3)]
    assert steps[-1].truncated.all() and sum(s.reward.sum() for s in steps) == 0


def test_own_vector_with_another_autoreset_is_not_used() -> None:
    env = make_env(EnvSettings(id="ShoalTestOwnVector-v0", kwargs={"length": 1}), 1, 0)
    assert isinstance(env._vector, LoopVectorEnv)
    env.reset()
    assert env.step(np.zeros(1, np.int64)).terminated.all()


def test_discrete_start_is_added() -> None:
    env = make_env(EnvSettings(id="ShoalTestCounter-v0"), 1, 0)
    assert env.spec.num_actions == 3 and env.spec.action_shape == ()
    env.reset()
    for action in (0, 1, 2):
        env.step(np.array([action]))
    assert env._vector.envs[0].unwrapped.actions == [-1, 0, 1]


def with_spaces(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSettings:
    return EnvSettings(id="ShoalTestSpaces-v0", kwargs={"observation": observation, "action": action})


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Discrete(3)), (7,), "float32"),
        (spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))), (5,), "float32"),
        (spaces.Discrete(4), (4,), "float32"),
        (spaces.MultiDiscrete([2, 3]), (5,), "float32"),
        (spaces.MultiBinary(3), (3,), "float32"),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32"),
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), (4, 5, 3), "uint8"),
    ],
)
def test_observation_spaces(space: spaces.Space[Any], shape: tuple[int, ...], dtype: str) -> None:
    settings = with_spaces(space)
    spec = describe_env(settings)
    assert (spec.obs_shape, spec.obs_dtype, spec.frame_stack) == (shape, dtype, 1)
    env = make_env(settings, 2, 0)
    assert env.spec == spec
    for obs in (env.reset(), env.step(np.zeros(2, np.int64)).obs):
        assert obs.shape == (2, *shape) and obs.dtype == dtype
    assert spec.num_actions == 2


def test_box_actions_are_clipped_and_cast() -> None:
    action = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64)
    env = make_env(with_spaces(spaces.Box(0, 1, (1,)), action), 1, 0)
    assert (env.spec.num_actions, env.spec.action_shape) == (0, (2,))
    assert (env.spec.action_low, env.spec.action_high) == ((-1.0, 0.0), (1.0, 5.0))
    env.reset()
    env.step(np.array([[-3.0, 4.0]], np.float32))
    last = env._vector.envs[0].unwrapped.last
    assert last.tolist() == [-1.0, 4.0] and last.dtype == np.float64


def test_unusable_spaces_are_refused_by_name() -> None:
    box = spaces.Box(0, 1, (1,))
    for action in (spaces.Dict(a=spaces.Discrete(2)), spaces.Box(0, 3, (1,), np.int64)):
        with pytest.raises(ConfigError, match=f"action space {type(action).__name__}"):
            make_env(with_spaces(box, action), 1, 0)
    with pytest.raises(ConfigError, match="cannot become an array, because of Sequence: put a wrapper"):
        describe_env(with_spaces(spaces.Sequence(box)))


class Mission(spaces.Space[str]):
    """A space of words of an environment's own, as Minigrid has one: Gymnasium cannot ask it whether it is flat."""


@pytest.mark.parametrize("words", [Mission(), spaces.Text(8), spaces.Sequence(spaces.Discrete(2))])
@pytest.mark.parametrize("key", ["way", "the way", "a: b", "on", "1", "null", "$HOME", 'it\'s "so"', "#", "`id`", ""])
def test_words_among_observations_are_refused_with_the_wrapper_that_leaves_them_out(
    key: str, words: spaces.Space[Any]
) -> None:
    """What is printed can be pasted into a shell, whatever the parts are called."""
    seen = spaces.Dict({"mission": words, "eye": spaces.Box(0, 255, (7, 7, 3), np.uint8), key: spaces.Discrete(4)})
    with pytest.raises(ConfigError, match=rf"because of part 'mission', {type(words).__name__}: leave that") as refused:
        describe_env(with_spaces(seen))
    pasted = str(refused.value).split("leave that out with ")[1].split(", or put a wrapper")[0]
    (word,) = shlex.split(pasted)
    name, _, wrappers = word.partition("=")
    filtered = with_spaces(seen).model_copy(
        update={"wrappers": EnvSettings(id="x", wrappers=yaml.safe_load(wrappers)).wrappers}
    )
    assert name == "env.wrappers" and describe_env(filtered).obs_shape == (7 * 7 * 3 + 4,)


def test_the_wrapper_that_leaves_words_out_comes_after_those_that_are_set() -> None:
    seen = spaces.Dict(mission=Mission(), way=spaces.Discrete(4))
    set_already = EnvSettings.model_validate({"id": "x", "wrappers": [{"name": "PassiveEnvChecker"}]}).wrappers
    with pytest.raises(ConfigError, match=r'"PassiveEnvChecker".*"FilterObservation"'):
        describe_env(with_spaces(seen).model_copy(update={"wrappers": set_already}))


@pytest.mark.parametrize(
    "seen",
    [
        spaces.Tuple((spaces.Discrete(2), Mission())),
        spaces.Dict(deep=spaces.Dict(words=Mission(), number=spaces.Discrete(2)), way=spaces.Discrete(4)),
        spaces.Dict(words=Mission()),
    ],
)
def test_no_wrapper_is_named_where_it_would_leave_out_more_than_words(seen: spaces.Space[Any]) -> None:
    with pytest.raises(ConfigError, match="Mission: put a wrapper around it"):
        describe_env(with_spaces(seen))


@pytest.mark.parametrize(
    ("seen", "binary"),
    [
        (spaces.Discrete(5), True),
        (spaces.MultiDiscrete([2, 3]), True),
        (spaces.MultiBinary(4), True),
        (spaces.Box(0, 1, (6,), np.int8), True),
        (spaces.Box(0, 1, (6,), np.bool_), True),
        (spaces.Box(0, 2, (6,), np.int8), False),
        (spaces.Box(0, 1, (6,), np.float32), False),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (1,))), False),
    ],
)
def test_zeros_and_ones_are_recognised(seen: spaces.Space[Any], binary: bool) -> None:
    spec = describe_env(with_spaces(seen))
    assert spec.binary_observations == spec.tabular == binary
    assert not describe_env(with_spaces(seen, spaces.Box(-1, 1, (2,)))).tabular  # continuous actions


def test_a_picture_of_zeros_and_ones_is_a_picture() -> None:
    assert not describe_env(with_spaces(spaces.Box(0, 1, (12, 12, 3), np.uint8))).tabular


def test_which_images_are_small() -> None:
    def small(*shapes: tuple[int, ...]) -> bool:
        boxes = {str(number): spaces.Box(0, 255, shape, np.uint8) for number, shape in enumerate(shapes)}
        return describe_env(with_spaces(spaces.Dict(boxes) if len(boxes) > 1 else boxes["0"])).sees_small_images

    assert small((10, 10, 4)) and small((3, 20, 40)) and small((10, 10, 4), (4,))
    assert not small((84, 84, 3)) and not small((35, 200)) and not small((10, 10, 4), (64, 64, 3)) and not small((4,))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("ALE/Pnog-v5", "ALE/Pong-v5"),
        ("MsPacmanNoFrameskp-v4", "MsPacmanNoFrameskip-v4"),
    ],
)
def test_unknown_id_names_the_nearest(wrong: str, right: str) -> None:
    for call in (lambda s: make_env(s, 1, 0), describe_env, make_render_env):
        with pytest.raises(UnknownName, match=f"Did you mean '{right}'"):
            call(EnvSettings(id=wrong))


def test_module_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shoal_test_good.py").write_text(
        "import gymnasium\ngymnasium.register('ShoalTestFromModule-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    (tmp_path / "shoal_test_bad.py").write_text("1 / 0\n")
    spec = describe_env(EnvSettings(id="shoal_test_good:ShoalTestFromModule-v0"))
    assert spec.env_id == "shoal_test_good:ShoalTestFromModule-v0" and spec.action_low == (-2.0,)
    del gymnasium.registry["ShoalTestFromModule-v0"], sys.modules["shoal_test_good"]
    with pytest.raises(ConfigError, match="no module named 'shoal_test_absent'"):
        is_atari("shoal_test_absent:Env-v0")
    with pytest.raises(ConfigError, match="importing 'shoal_test_bad' raised ZeroDivisionError"):
        is_atari("shoal_test_bad:Env-v0")
    with pytest.raises(UnknownName, match="CartPole-v1"):
        is_atari("gymnasium:CartPole-v9")


def test_failures_to_make() -> None:
    with pytest.raises(ConfigError, match=r"gymnasium\[box2d\]"):
        make_env(EnvSettings(id="ShoalTestNeeds-v0"), 1, 0)
    with pytest.raises(ConfigError, match=r"does not take these env\.kwargs"):
        make_env(EnvSettings(id="ShoalTestCounter-v0", kwargs={"colour": 1}), 1, 0)
    with pytest.raises(ConfigError, match=r"does not take these env\.kwargs"):
        make_env(EnvSettings(id="CartPole-v1", kwargs={"colour": 1}), 1, 0)
    place = r"\(/.*/tests/envs/conftest\.py:\d+\)$"
    with pytest.raises(EnvError, match=f"could not be made: RuntimeError: no licence {place}"):
        make_env(EnvSettings(id="ShoalTestBroken-v0", kwargs={"fault": "make"}), 1, 0)
    with pytest.raises(EnvError, match=f"could not be made: AssertionError: raise AssertionError .*{place}"):
        describe_env(EnvSettings(id="ShoalTestCounter-v0", kwargs={"length": 0}))
    with pytest.raises(EnvError, match="could not be made: SystemExit: length is negative"):
        describe_env(EnvSettings(id="ShoalTestCounter-v0", kwargs={"length": -1}))


def test_an_environment_that_is_described_need_not_close() -> None:
    assert describe_env(EnvSettings(id="tests.fakes:TestEndless-v0")).obs_shape == (2,)


def test_episode_limit() -> None:
    def limit(env_id: str, **settings: Any) -> int | None:
        return episode_limit(EnvSettings(id=env_id, **settings))

    assert limit("CartPole-v1") == 500 and limit("CartPole-v1", max_episode_steps=9) == 9
    assert limit("CartPole-v1", kwargs={"max_episode_steps": 7}) == 7
    assert limit("CartPole-v1", kwargs={"max_episode_steps": -1}) is None
    assert limit("ShoalTestCounter-v0") is None
    assert limit("PongNoFrameskip-v4") == limit("PongNoFrameskip-v4", max_episode_steps=10**6) == 27_000
    assert limit("PongNoFrameskip-v4", frame_skip=1) == 108_000


def test_missing_module_names_the_package() -> None:
    gymnasium.register("ShoalTestGone-v0", "shoal_test_gone.envs:Gone")
    try:
        with pytest.raises(ConfigError, match="pip install shoal_test_gone"):
            make_env(EnvSettings(id="ShoalTestGone-v0"), 1, 0)
    finally:
        del gymnasium.registry["ShoalTestGone-v0"]


def test_reward_threshold_is_passed_on() -> None:
    assert describe_env(EnvSettings(id="CartPole-v1")).reward_threshold == 475.0


def test_render_env_observes_and_acts_as_a_policy() -> None:
    settings = EnvSettings(id="ShoalTestCounter-v0")
    env = make_render_env(settings)
    spec = describe_env(settings)
    obs, _ = env.reset(seed=1)
    assert obs.shape == spec.obs_shape and obs.dtype == spec.obs_dtype and env.observation_space.contains(obs)
    for action in (0, np.int64(1), np.array(2)):
        obs, reward, *_ = env.step(action)
        assert obs.dtype == spec.obs_dtype
    assert reward == 3.0 and env.unwrapped.actions == [-1, 0, 1]  # type: ignore[attr-defined]
    assert env.render().shape == (8, 8, 3)
    with pytest.raises(EnvError, match=r"in step: stuck \(/.*/tests/envs/conftest\.py:\d+\)$"):
        env.unwrapped.fails = True  # type: ignore[attr-defined]
        env.step(0)
    with pytest.raises(ConfigError, match="cannot render pictures"):
        make_render_env(with_spaces(spaces.Box(0, 1, (1,))))


def test_a_window_where_the_environment_only_draws_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = make_render_env(EnvSettings(id="PongNoFrameskip-v4"), "human")
    try:
        assert env.render_mode == "human" and pygame.display.get_surface().get_size() == (480, 630)
        obs, _ = env.reset(seed=1)
        assert obs.shape == (4, 84, 84) and env.step(np.int64(0))[1] == 0.0
    finally:
        env.close()  # type: ignore[no-untyped-call]
    with pytest.raises(EnvError, match="render_fps"):
        make_render_env(EnvSettings(id="ShoalTestCounter-v0"), "human")


def test_settings_refuse_nonsense() -> None:
    for wrong in ({"lanes": 0}, {"reward_clip": 0}, {"reward_clip": "no"}, {"sticky_actions": 1.5}, {"lane": 3}):
        with pytest.raises(pydantic.ValidationError):
            EnvSettings.model_validate({"id": "CartPole-v1", **wrong})
    for fine in ("auto", 2.5, None):
        assert EnvSettings.model_validate({"id": "CartPole-v1", "reward_clip": fine}).reward_clip == fine
    assert all(field.description for field in EnvSettings.model_fields.values())


class Single(gymnasium.Env[Any, Any]):
    """Its observation is one number, without an axis."""

    observation_space = spaces.Box(-1.0, 1.0, ())
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.float32(0.25), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.float32(0.5), 1.0, False, False, {}


def test_an_observation_without_axes() -> None:
    env = make_env(EnvSettings(id=f"{__name__}:Single"), 3, 0)
    assert env.reset().tolist() == [0.25] * 3
    assert env.step(np.zeros(3, np.int64)).obs.tolist() == [0.5] * 3
