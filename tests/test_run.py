"""A run from Python: its predictions and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from tests import fakes

import shoal
from shoal.envs import EnvSettings, ObservationMap, describe_env, make_env, make_plain_env
from shoal.errors import CheckpointError, ConfigError

SMALL = {
    "algo": "apex-dqn",
    "algorithm.hidden": [16],
    "learner.batch_size": 16,
    "replay.capacity": 2_000,
    "replay.min_size": 100,
    "replay.samples_per_insert": 1,
    "evaluation.episodes": 2,
    "evaluation.every_steps": 200,
}
CONTINUOUS = {
    "algorithm.policy_hidden": [16],
    "algorithm.critic_hidden": [16],
    "replay.selectors": [{"type": "uniform"}],
    **{name: value for name, value in SMALL.items() if not name.startswith("algorithm.")},
    "algo": "td3",
}
RECALL = {
    "algo": "impala",
    "actors": 1,
    "algorithm.lstm": 16,
    "algorithm.hidden": [16],
    "algorithm.unroll": 6,
    "algorithm.learning_rate": 5e-3,
    "algorithm.gradient_clip": 10,
    "learner.batch_size": 8,
    "learner.prefetch": 0,
    "evaluation.episodes": 40,
    "evaluation.every_steps": 1_000,
    "replay.capacity": 4_000,
}


def _train(target: str, settings: dict[str, Any], out: Path, steps: int = 300, **more: Any) -> shoal.Run:
    return shoal.train(target, steps=steps, runtime="inline", quiet=True, out=out, settings=settings, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    """A finished run of a DQN."""
    return _train("CartPole-v1", SMALL, tmp_path_factory.mktemp("runs"), seed=3)


@pytest.fixture(scope="module")
def continuous(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    """A finished run of TD3."""
    return _train("TestReach-v0", CONTINUOUS, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def recall(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    """A run that has learned to remember."""
    found = _train("TestRecall-v0", RECALL, tmp_path_factory.mktemp("runs"), steps=40_000, stop_return=1.0)
    assert found.summary is not None and found.summary.status == "solved"
    return found


@pytest.mark.parametrize("kind", ["run", "continuous", "recall"])
def test_predict_is_what_the_evaluator_does(kind: str, request: pytest.FixtureRequest) -> None:
    """The same weights, observations and ends of episodes: the same actions, to the bit, over several episodes."""
    run: shoal.Run = request.getfixturevalue(kind)
    lanes = 3
    env, policy = make_env(run.settings.env, lanes, seed=5, training=False), run.make_policy(lanes)
    obs, carried, state = env.reset(), policy.initial_state(lanes), None
    first, ended, episodes = np.ones(lanes, np.bool_), np.zeros(lanes, np.bool_), 0
    for _ in range(80):
        decision = policy.act(obs, carried, first, explore=False)
        action, state = run.predict(obs, state, first)
        assert action.dtype == decision.action.dtype and (action == decision.action).all()
        result = env.step(decision.action)
        obs, carried = result.obs, decision.state
        first, ended = ended, result.terminated | result.truncated
        episodes += len(result.finished)
    env.close()
    assert episodes >= 3
    assert (state is None) == (kind != "recall")


def test_a_loop_with_predict_remembers(recall: shoal.Run) -> None:
    env, episodes, total = recall.make_env(), 60, 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        state, ended = None, False
        while not ended:
            action, state = recall.predict(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
    assert total / episodes == recall.evaluate(episodes).mean == 1.0


def test_predict_in_a_vector_environment(recall: shoal.Run) -> None:
    """Lanes end at their own time; `episode_start` forgets the state of those that begin again."""
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = SyncVectorEnv([lambda: gymnasium.make("TestRecall-v0")] * 4, **mode)
    obs, _ = env.reset(seed=3)
    state, starts, total, ends = None, np.ones(4, np.bool_), 0.0, 0
    for _ in range(30):
        action, state = recall.predict(obs, state, starts)
        obs, reward, terminated, truncated, _ = env.step(action)
        starts = terminated | truncated
        total, ends = total + reward.sum(), ends + starts.sum()
    env.close()
    assert total == ends == 40


def test_the_state_belongs_to_the_caller(recall: shoal.Run) -> None:
    obs = np.array([1.0, 0.0, 0.0, 0.0], np.float32)
    _, state = recall.predict(obs)
    assert [part.shape for part in state] == [(1, 16), (1, 16)]
    kept = [part.copy() for part in state]
    _, other = recall.predict(obs, state)
    assert not np.allclose(other[0], state[0])
    assert all((now == then).all() for now, then in zip(state, kept, strict=True))  # no call changes it
    again = recall.predict(obs, other, episode_start=True)[1]
    assert all(np.allclose(now, then) for now, then in zip(again, state, strict=True))
    with pytest.raises(ConfigError, match=r"hand back the state that predict returned"):
        recall.predict(np.stack([obs, obs]), state)
    with pytest.raises(ConfigError, match=r"got 5: hand back the state that predict returned"):
        recall.predict(obs, 5)
    with pytest.raises(ConfigError, match=r"episode_start has shape \(3,\): one truth for all, or \(2,\)"):
        recall.predict(np.stack([obs, obs]), None, [True, False, True])


@pytest.mark.parametrize("kind", fakes.OBSERVATIONS)
def test_predict_takes_every_space_that_training_takes(kind: str, tmp_path: Path) -> None:
    """As the environment gives them, one or a batch, and the actions are the environment's own."""
    run = _train("TestShapes-v0", {**SMALL, "env.kwargs.kind": kind}, tmp_path, steps=200)
    env = SyncVectorEnv([run.make_env] * 3)
    raw, _ = env.reset(seed=1)
    actions, _ = run.predict(raw)
    assert set(actions.tolist()) <= {5, 6}  # not 0 and 1: the space begins at 5
    policy = run.make_policy(3)
    flat = np.stack([flatten(env.single_observation_space, one) for one in _singles(env, 3)]).astype(np.float32)
    seen = policy.act(flat, (), np.ones(3, np.bool_), explore=False).action
    assert (actions == seen + 5).all()
    assert [int(run.predict(one)[0]) for one in _singles(env, 3)] == actions.tolist()
    env.step(actions)
    env.close()
    with pytest.raises(ConfigError, match=r"TestShapes-v0"):
        run.predict(np.zeros((2, 9, 9)))


def _singles(env: Any, lanes: int) -> list[Any]:
    raw, _ = env.reset(seed=1)
    found = list(iterate(env.observation_space, raw))
    assert len(found) == lanes
    return found


def test_frames_are_stacked_by_the_caller() -> None:
    pytest.importorskip("ale_py")
    settings = EnvSettings(id="PongNoFrameskip-v4")
    env = make_plain_env(settings)
    take = ObservationMap(env.observation_space, describe_env(settings))
    obs, _ = env.reset(seed=1)
    env.close()
    batch, single = take(obs)
    assert batch.shape == (1, 4, 84, 84) and single
    assert take(np.stack([obs, obs, obs]))[0].shape == (3, 4, 84, 84)
    with pytest.raises(ConfigError, match=r"the newest 4 frames, oldest first, as run\.make_env\(\) gives them"):
        take(obs[0])


def test_predict_one_and_many(run: shoal.Run) -> None:
    batch = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    actions = run.predict(batch)[0]
    assert actions.shape == (5,) and set(actions.tolist()) <= {0, 1}
    assert [int(run.predict(one)[0]) for one in batch] == actions.tolist()
    assert run.predict([0.0, 0.1, 0.2, 0.3])[0] in (0, 1)
    assert run.predict(batch.astype(np.float64))[0].tolist() == actions.tolist()


def test_predict_can_explore(run: shoal.Run) -> None:
    batch = np.tile(np.array([0.1, 0.0, -0.1, 0.0], np.float32), (200, 1))
    assert set(run.predict(batch, deterministic=False)[0].tolist()) == {0, 1}
    assert len(set(run.predict(batch)[0].tolist())) == 1


@pytest.mark.parametrize("shape", [(), (3,), (5,), (2, 3), (2, 2, 4), (0, 4)])
def test_predict_refuses_another_shape(run: shoal.Run, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"has shape .*CartPole-v1 has \(4,\), a batch \(N, 4\)"):
        run.predict(np.zeros(shape, np.float32))


def test_predict_refuses_another_type(run: shoal.Run) -> None:
    with pytest.raises(ConfigError, match="complex128"):
        run.predict(np.zeros(4, np.complex128))
    with pytest.raises(ConfigError, match="The observation is no array"):
        run.predict([[1.0, 2.0], [3.0]])
    with pytest.raises(ConfigError, match=r"holds 1e\+300, which is no finite float32"):
        run.predict(np.full(4, 1e300))


def test_evaluate(run: shoal.Run) -> None:
    evaluation = run.evaluate(episodes=5, seed=1)
    assert len(evaluation.returns) == len(evaluation.lengths) == 5
    assert evaluation.mean == pytest.approx(np.mean(evaluation.returns))
    assert evaluation.std == pytest.approx(np.std(evaluation.returns))
    assert evaluation == run.evaluate(episodes=5, seed=1)
    assert evaluation.checkpoint == "best.safetensors"
    with pytest.raises(ConfigError, match="episodes = 0"):
        run.evaluate(0)


def test_load_chooses_the_weights(run: shoal.Run, tmp_path: Path) -> None:
    assert shoal.load(run.path, checkpoint="best").checkpoint.name == "best.safetensors"
    assert shoal.load(str(run.path), checkpoint="last").checkpoint.name.startswith("step_")
    with pytest.raises(ConfigError, match="checkpoint = 'first' cannot be used"):
        shoal.load(run.path, checkpoint="first")
    with pytest.raises(ConfigError, match="is not a run folder"):
        shoal.load(tmp_path)


def test_a_run_without_checkpoints(run: shoal.Run, tmp_path: Path) -> None:
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_text((run.path / name).read_text())
    bare = shoal.load(tmp_path)
    assert bare.summary is None and bare.metrics() == [] and "not ended" in repr(bare)
    with pytest.raises(CheckpointError, match="No usable checkpoint"):
        bare.predict(np.zeros(4, np.float32))
    with pytest.raises(CheckpointError, match="No best checkpoint"):
        shoal.load(tmp_path, checkpoint="best").evaluate(1)


def test_other_arguments_of_the_environment_leave_the_run_signed(tmp_path: Path) -> None:
    """A text among `env.kwargs` needs a signature, which is of the settings as they were written."""
    asked = SMALL | {"env.kwargs.kind": "tuple", "stop.steps": 120}
    path = shoal.train("tests.fakes:TestShapes-v0", runtime="inline", quiet=True, out=tmp_path, settings=asked).path
    run = shoal.load(path, overrides=["env.max_episode_steps=4"])
    assert run.evaluate(3).lengths == (4, 4, 4) and shoal.load(path).evaluate(1).lengths == (8,)
    with pytest.raises(ConfigError, match=r"actors cannot be changed to evaluate: algorithm\.temperature, env\.kwargs"):
        shoal.load(path, overrides={"actors": 3})
