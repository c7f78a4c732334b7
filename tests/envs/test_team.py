"""Several agents in one lane."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("pettingzoo")

from tests.teams import Shift

from shoal.algorithms import ALGORITHMS
from shoal.envs import EnvSettings, ObservationMap, describe_env, make_env, make_plain_env, make_render_env
from shoal.envs.parts import PackedBox, count_agents
from shoal.envs.team import team_space
from shoal.errors import ConfigError, EnvError, UnknownName
from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.types import Array, EnvSpec

SHIFT = EnvSettings(id="tests.teams:Shift")


def parts(spec: EnvSpec, obs: Array) -> dict[str, Array]:
    """The parts of stored rows [N, ...]."""
    found = {}
    for part in spec.obs_parts:
        row = np.ascontiguousarray(obs[:, part.start : part.start + part.stored])
        found[part.name] = (row.view(np.float32) if part.width > 1 else row).reshape(len(obs), *part.shape)
    return found


@pytest.mark.filterwarnings("ignore")
def test_the_environment_of_these_tests_is_one_of_pettingzoo() -> None:
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    parallel_api_test(Shift(), num_cycles=50)
    parallel_seed_test(Shift, num_cycles=20)


@pytest.mark.parametrize(("data", "stored", "width"), [("float64", "float32", 1), ("uint8", "uint8", 4)])
def test_agents_join_and_leave(data: str, stored: str, width: int) -> None:
    settings = SHIFT.model_copy(update={"kwargs": {"data": data}})
    env = make_env(settings, 1, 0)
    spec = env.spec
    assert spec == describe_env(settings) and spec.agents == 3 and spec.action_nvec == (3, 3, 3)
    assert spec.obs_dtype == stored and [part.name for part in spec.obs_parts] == ["agents", "mask", "reward"]
    assert [part.shape for part in spec.obs_parts] == [(3, 2), (3, 3), (3,)]
    assert [part.width for part in spec.obs_parts] == [1, 1, width] and not spec.sees_images

    seen = [parts(spec, env.reset())]
    rewards, ends = [], []
    for _ in range(5):
        step = env.step(np.array([[2, 1, 0]]))
        seen.append(parts(spec, step.obs))
        rewards.append(float(step.reward[0]))
        ends.append((bool(step.terminated[0]), bool(step.truncated[0])))
    there = [np.diagonal(one["mask"][0]).astype(int).tolist() for one in seen]
    # a and b; c joins at step 2, a dies at 3; at 5 those who are left are truncated, and still seen
    assert there == [[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]]
    for one, alive in zip(seen, there, strict=True):
        assert np.array_equal(one["mask"][0], np.outer(alive, alive))
    assert seen[2]["agents"][0].tolist() == [[1, 2], [2, 2], [3, 2]]
    assert seen[3]["agents"][0].tolist() == [[0, 0], [2, 3], [3, 3]]
    assert [one["reward"][0].tolist() for one in seen] == [
        [0, 0, 0],
        [2, 1, 0],
        [2, 1, 0],  # c was not there yet when the others acted
        [2, 1, 0],
        [0, 1, 0],
        [0, 1, 0],
    ]
    assert rewards == [1.5, 1.5, 1.0, 0.5, 0.5]
    assert ends == [(False, False)] * 4 + [(False, True)]
    assert step.finished[0].metrics == {"steps": 5.0, "is_success": 0.0}
    assert step.finished[0].episode_return == pytest.approx(5.0)
    assert parts(spec, env.step(np.array([[0, 0, 0]])).obs)["reward"].tolist() == [[0, 0, 0]]  # the reset


@pytest.mark.parametrize("name", ["Shift", "Untidy"])
def test_nobody_is_left_where_all_terminate(name: str) -> None:
    env = make_env(EnvSettings(id=f"tests.teams:{name}"), 2, 0)
    env.reset()
    for _ in range(5):
        step = env.step(np.ones((2, 3), np.int64))
    last = parts(env.spec, step.obs)
    assert step.terminated.all() and not step.truncated.any() and not last["mask"].any() and not last["agents"].any()
    assert last["reward"].tolist() == [[0, 1, 1]] * 2 and step.reward.tolist() == [1, 1]
    assert [one.metrics["is_success"] for one in step.finished] == [1.0, 1.0]


def test_an_environment_says_who_hears_whom() -> None:
    env = make_env(SHIFT.model_copy(update={"kwargs": {"deaf": True}}), 1, 0)
    env.reset()
    env.step(np.array([[0, 0, 0]]))
    mask = parts(env.spec, env.step(np.array([[0, 0, 0]])).obs)["mask"][0]
    assert mask.tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]  # c hears itself: it is there


def test_a_time_limit_cuts_and_everybody_is_still_seen() -> None:
    env = make_env(SHIFT.model_copy(update={"max_episode_steps": 2}), 1, 0)
    env.reset()
    env.step(np.array([[1, 1, 1]]))
    step = env.step(np.array([[1, 1, 1]]))
    assert step.truncated[0] and not step.terminated[0]
    assert np.diagonal(parts(env.spec, step.obs)["mask"][0]).tolist() == [1, 1, 1]


def test_a_team_for_videos_and_for_predict() -> None:
    shown = make_render_env(SHIFT)
    assert shown.render().shape == (16, 16, 3) and shown.metadata["render_fps"] == 4  # type: ignore[union-attr]
    spec = describe_env(SHIFT)
    plain = make_plain_env(SHIFT)
    obs, _ = plain.reset(seed=3)
    assert plain.observation_space.contains(obs)
    packed, single = ObservationMap(plain.observation_space, spec)(obs)
    assert single and packed.shape == (1, *spec.obs_shape) and plain.unwrapped._env.seeds == [3]  # type: ignore[attr-defined]
    assert np.array_equal(packed[0], shown.reset(seed=3)[0])


def test_images_of_many_agents_are_stacks_and_masks_are_no_images() -> None:
    space = team_space(spaces.Box(0, 1, (6, 9, 9), np.bool_), 16)
    packed = PackedBox(space)
    assert count_agents(space) == packed.agents == 16 and packed.dtype == np.uint8
    assert [part.axes for part in packed.parts] == ["SCHW", "", ""]
    assert packed.shape == (16 * 486 + 256 + 64,)
    assert count_agents(spaces.Dict({"agents": spaces.Box(0, 1, (2, 3)), "mask": spaces.Box(0, 1, (2,))})) == 0


def test_modules_of_pettingzoo_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shoal_zoo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shift_v0.py").write_text(
        "from tests.teams import Shift, Turns as env\ndef parallel_env(**k): return Shift(**k)\n"
    )
    (package / "turns_v0.py").write_text("from tests.teams import Turns as env\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shoal_zoo:shift_v0", "shoal_zoo.shift_v0:parallel_env"):
        settings = EnvSettings(id=name, kwargs={"length": 2})
        assert describe_env(settings).agents == 3 and make_env(settings, 1, 0).reset().shape == (1, 18)
    with pytest.raises(ConfigError, match="no `parallel_env`"):
        describe_env(EnvSettings(id="shoal_zoo:turns_v0"))
    with pytest.raises(ConfigError, match=r"AEC environment.*parallel_env"):
        describe_env(EnvSettings(id="shoal_zoo.shift_v0:env"))
    with pytest.raises(UnknownName, match="shift_v0"):
        describe_env(EnvSettings(id="shoal_zoo:shift_v1"))


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("Mixed", {}, "different observations: a has .*c has Box.*alike"),
        ("Mixed", {"what": "actions"}, "different actions: a has Discrete.3., c has Discrete.4."),
        ("Reader", {}, "an agent's observations cannot become an array, because of part 'told', Text: leave that out"),
        ("Steering", {}, "Box.*continuous_actions"),
        ("Nameless", {}, "possible_agents"),
        ("Turns", {}, "AEC"),
        ("Shift", {"size": 3}, "does not take these env.kwargs"),
    ],
)
def test_refused_by_name(name: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        describe_env(EnvSettings(id=f"tests.teams:{name}", kwargs=kwargs))
    assert f"tests.teams:{name}" in str(raised.value)


@pytest.mark.parametrize(("kwargs", "words"), [({}, "'z'.*not in possible_agents"), ({"shape": True}, "shape .1,")])
def test_errors_in_steps(kwargs: dict[str, Any], words: str) -> None:
    env = make_env(EnvSettings(id="tests.teams:Stranger", kwargs=kwargs), 2, 0)
    env.reset()
    with pytest.raises(EnvError, match=f"lane 0.*{words}"):
        env.step(np.zeros((2, 3), np.int64))


def test_pettingzoo_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tests.teams")
    monkeypatch.setitem(sys.modules, "pettingzoo", None)  # importing it now raises ModuleNotFoundError
    with pytest.raises(ConfigError, match=r"needs PettingZoo: run `pip install \"shoal-rl\[multiagent\]\"`"):
        describe_env(SHIFT)


@pytest.mark.parametrize("algo", [name for name, one in ALGORITHMS.items() if not one.agents])
def test_algorithms_for_one_agent_refuse_several(algo: str) -> None:
    with pytest.raises(ConfigError, match=f"{algo} learns for one agent; tests.teams:Shift has 3"):
        make_plan(RunSettings.model_validate({"env": {"id": "tests.teams:Shift"}, "algo": algo}))


def test_algorithms_for_several_agents_refuse_one() -> None:
    with pytest.raises(ConfigError, match=r"random-team learns for several agents; CartPole-v1 has one: .*apex-dqn"):
        make_plan(RunSettings.model_validate({"env": {"id": "CartPole-v1"}, "algo": "tests.teams:RANDOM"}))


@pytest.mark.filterwarnings("ignore")
def test_a_real_one_in_which_agents_die(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    settings = EnvSettings(id="pettingzoo.butterfly:knights_archers_zombies_v11", max_episode_steps=400)
    env, again = make_env(settings, 2, 0), make_env(settings, 2, 0)
    assert np.array_equal(env.reset(), again.reset())
    rng, alive, finished = np.random.default_rng(0), set(), 0
    for _ in range(400):
        actions = rng.integers(0, 6, (2, 4))
        step = env.step(actions)
        assert np.array_equal(step.obs, again.step(actions).obs)
        alive |= set(np.trace(parts(env.spec, step.obs)["mask"], axis1=1, axis2=2).tolist())
        finished += len(step.finished)
    assert finished and alive >= {0.0, 3.0, 4.0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_simple_spread() -> None:
    pytest.importorskip("mpe2")
    settings = EnvSettings(id="mpe2:simple_spread_v3", kwargs={"N": 2, "max_cycles": 5})
    env = make_env(settings, 2, 0)
    env.reset()
    assert env.spec.agents == 2 and env.spec.obs_dtype == "float32" and env.spec.action_nvec == (5, 5)
    for _ in range(5):
        step = env.step(np.ones((2, 2), np.int64))
    assert step.truncated.all() and parts(env.spec, step.obs)["mask"].all()
    mean = parts(env.spec, step.obs)["reward"].mean(axis=1)
    assert step.reward == pytest.approx(mean)
