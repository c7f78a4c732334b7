"""Env over ordinary environments: streams, returns, faults."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from shoal.envs import Env, EnvSettings, make_env
from shoal.envs.loop import LoopVectorEnv
from shoal.envs.seeding import lane_seeds
from shoal.envs.spaces import describe
from shoal.errors import EnvError
from shoal.types import Episode


def counter(lanes: int = 2, seed: int = 0, **settings: object) -> Env:
    return make_env(EnvSettings.model_validate({"id": "ShoalTestCounter-v0", **settings}), lanes, seed)


def zeros(env: Env) -> np.ndarray:
    return np.zeros(env.lanes, np.int64)


def test_autoreset_rows_and_true_returns() -> None:
    env = counter()
    env.reset()
    steps = [env.step(zeros(env)) for _ in range(8)]
    assert [s.obs[0, 1] for s in steps] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [s.reward[0] for s in steps] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [bool(s.terminated[0]) for s in steps] == [False, False, True, False] * 2
    assert not any(s.truncated.any() for s in steps)
    both = (Episode(0, 6.0, 3), Episode(1, 6.0, 3))
    assert [s.finished for s in steps] == [(), (), both, ()] * 2
    first = steps[0]
    assert (first.obs.dtype, first.reward.dtype, first.terminated.dtype) == (np.float32, np.float32, np.bool_)


def test_reset_between_drops_the_unfinished_episode() -> None:
    env = counter()
    env.reset()
    env.step(zeros(env))
    assert env.reset()[:, 1].tolist() == [0, 0]
    steps = [env.step(zeros(env)) for _ in range(3)]
    assert steps[-1].finished[0] == Episode(0, 6.0, 3)


def test_time_limit_of_the_settings_truncates() -> None:
    env = counter(max_episode_steps=2)
    env.reset()
    env.step(zeros(env))
    step = env.step(zeros(env))
    assert step.truncated.all() and not step.terminated.any()
    assert step.finished == (Episode(0, 3.0, 2), Episode(1, 3.0, 2))


def test_reward_clip_leaves_returns_true() -> None:
    env = counter(reward_clip=1.5)
    env.reset()
    steps = [env.step(zeros(env)) for _ in range(3)]
    assert [s.reward[0] for s in steps] == [1.0, 1.5, 1.5]
    assert steps[-1].finished[0].episode_return == 6.0
    evaluation = make_env(EnvSettings(id="ShoalTestCounter-v0", reward_clip=1.5), 1, 0, training=False)
    evaluation.reset()
    assert [evaluation.step(zeros(evaluation)).reward[0] for _ in range(3)] == [1.0, 2.0, 3.0]


def test_arrays_are_the_callers() -> None:
    for env in (counter(), make_env(EnvSettings(id="CartPole-v1"), 2, 0)):
        arrays = [env.reset()]
        for _ in range(5):
            step = env.step(zeros(env))
            arrays += [step.obs, step.reward, step.terminated, step.truncated]
        assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
        assert all(a.flags.c_contiguous and a.flags.writeable for a in arrays)


def test_same_seed_same_stream_and_lanes_and_seeds_differ() -> None:
    for env_id in ("ShoalTestCounter-v0", "CartPole-v1"):
        streams = []
        for seed in (7, 7, 8):
            env = make_env(EnvSettings(id=env_id), 3, seed)
            streams.append(np.stack([env.reset(), *(env.step(zeros(env)).obs for _ in range(40))]))
        assert np.array_equal(streams[0], streams[1])
        lanes = [streams[i][0, lane, 0] for i in (0, 2) for lane in range(3)]
        assert len(set(lanes)) == 6


def test_neighbouring_seeds_share_no_lane() -> None:
    seeds = np.concatenate([lane_seeds(seed, 64) for seed in range(64)])
    assert len(set(seeds.tolist())) == seeds.size and seeds.min() > 0 and seeds.max() < 2**31


def test_loop_equals_gymnasium_sync_vector_env() -> None:
    lanes, rng = 3, np.random.default_rng(0)
    ours = LoopVectorEnv(lambda: gymnasium.make("Acrobot-v1", max_episode_steps=15), lanes)
    theirs = gymnasium.make_vec("Acrobot-v1", lanes, "sync", max_episode_steps=15)
    seeds = [3, 4, 5]
    assert np.array_equal(ours.reset(seed=seeds)[0], theirs.reset(seed=seeds)[0])
    for _ in range(50):
        actions = rng.integers(0, 3, lanes)
        for mine, other in zip(ours.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            assert np.array_equal(mine, other)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "raised ZeroDivisionError in step: boom"),
        ("nan", "returned nan in its reward"),
        ("inf", "returned -inf in its reward"),
        ("nan obs", "returned nan in its observation"),
        ("shape", r"raised ValueError in step: observation of shape \(1,\), but its space says \(2,\)"),
        ("text", "raised TypeError in step"),
    ],
)
def test_faults_name_environment_step_and_lane(fault: str, message: str) -> None:
    env = make_env(EnvSettings(id="ShoalTestBroken-v0", kwargs={"fault": fault}), 3, 0)
    env.reset()
    env.step(zeros(env))
    with pytest.raises(EnvError, match=rf"'ShoalTestBroken-v0' \(step 2, lane 1\) {message}") as caught:
        env.step(zeros(env))
    assert (caught.value.__cause__ is not None) == ("raised" in message)
    # Where the environment's own code raised, and not where ours found fault with what it returned.
    assert (re.search(r"/conftest\.py:\d+\)$", str(caught.value)) is not None) == (fault == "raise")
    assert "shoal/envs" not in str(caught.value)
    env.close()
    env.close()


def test_a_close_that_raises_closes_the_other_lanes_and_says_nothing() -> None:
    env = counter(lanes=3)
    closed: list[int] = []

    def close(lane: int) -> None:
        closed.append(lane)
        raise (SystemExit if lane else RuntimeError)("no")

    for lane, one in enumerate(env._vector.envs):
        one.unwrapped.close = partial(close, lane)
    env.close()
    assert closed == [0, 1, 2] and env._vector.closed


def test_fault_in_reset() -> None:
    env = make_env(EnvSettings(id="ShoalTestBroken-v0", kwargs={"fault": "reset"}), 2, 0)
    with pytest.raises(EnvError, match=r"\(step 0, lane 1\) raised RuntimeError in reset: no power"):
        env.reset()


def test_actions_of_the_wrong_shape_or_range_are_refused() -> None:
    for env in (counter(), make_env(EnvSettings(id="CartPole-v1"), 2, 0)):
        env.reset()
        with pytest.raises(EnvError, match=r"actions of shape \(1,\): \(2,\) expected"):
            env.step(np.zeros(1, np.int64))
        for wrong in (-1, 3):
            with pytest.raises(EnvError, match="outside 0"):
                env.step(np.array([0, wrong]))
        env.step(np.zeros(2, np.int32))


def test_what_environments_say_of_episodes() -> None:
    env = make_env(EnvSettings(id="tests.fakes:TestStairs-v0", kwargs={"height": 2, "too_high": 2}), 2, 0)
    env.reset()
    assert env.step(zeros(env)).finished == ()
    told = {"steps_up": 2.0, "is_success": 0.0}
    assert env.step(zeros(env)).finished == (Episode(0, 0.0, 2, told), Episode(1, 0.0, 2, told))
    assert env.spec.levels == ("height", "width")
    env.step(zeros(env))


def test_levels_are_drawn_at_each_reset() -> None:
    def heights(seed: int) -> list[float]:
        env = make_env(EnvSettings(id="tests.fakes:TestStairs-v0"), 4, seed)
        env.set_levels([{"height": 1, "width": 1}, {"height": 2, "width": 3}])
        env.reset()
        found = [one for _ in range(60) for one in env.step(zeros(env)).finished]
        assert all(one.length == one.metrics["level.height"] for one in found)
        assert {(one.metrics["level.height"], one.metrics["level.width"]) for one in found} == {(1, 1), (2, 3)}
        return [one.metrics["level.height"] for one in found]

    drawn = heights(0)
    assert drawn == heights(0) != heights(1) and 0.3 < drawn.count(1) / len(drawn) < 0.7


class Native(VectorEnv[Any, Any, Any]):
    """Three lanes, whose second episode ends at the second step."""

    num_envs, metadata = 3, {"autoreset_mode": AutoresetMode.NEXT_STEP, "levels": ["size"]}
    single_observation_space, single_action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, info: dict[str, Any]) -> None:
        self.info, self.steps, self.levels = info, 0, ()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((3, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ended = np.array([False, self.steps == 2, False])
        return (
            np.zeros((3, 1), np.float32),
            np.ones(3),
            ended,
            np.zeros(3, np.bool_),
            self.info if self.steps == 2 else {},
        )

    def set_levels(self, levels: Any) -> None:
        self.levels = levels


@pytest.mark.parametrize(
    ("info", "metrics"),
    [
        ({}, {}),
        (
            {"episode_metrics": {"hits": np.array([0, 7, 0]), "level.size": np.array([5, 5, 5])}},
            {"hits": 7, "level.size": 5},
        ),
        ({"episode_metrics": {"hits": np.array([0, 7, 0])}, "_episode_metrics": np.array([0, 1, 0])}, {"hits": 7}),
        ({"episode_metrics": {"hits": np.array([0, 7, 0])}, "_episode_metrics": np.array([1, 0, 1])}, {}),
        ({"episode_metrics": {"hits": np.array([1, np.nan, 1]), "_hits": np.array([1, 0, 1])}}, {}),
        ({"is_success": np.array([False, True, False]), "_is_success": np.array([0, 1, 0])}, {"is_success": 1}),
    ],
)
def test_what_vector_environments_say_of_episodes(info: dict[str, Any], metrics: dict[str, float]) -> None:
    native = Native(info)
    env = Env(native, describe(EnvSettings(id="CartPole-v1"), native.single_observation_space, spaces.Discrete(2)), 0)
    env.set_levels([{"size": 5}])
    env.reset()
    env.step(np.zeros(3, np.int64))
    assert env.step(np.zeros(3, np.int64)).finished == (Episode(1, 2.0, 2, metrics),) and native.levels == [{"size": 5}]
