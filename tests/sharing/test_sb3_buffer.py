"""Alone, the buffer is Stable-Baselines3's: the same rows, the same batches, the same weights, to the last bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("stable_baselines3")

import torch
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from tests.sharing.conftest import Nursery
from tests.sharing.runs_process import ACTION, OBSERVATION, make, read, write

from shoal.errors import ConfigError, EnvError, NoSpace
from shoal.sharing import DistributedReplayBuffer, Registry, create_distributed_registry

SMALL = {"learning_starts": 30, "batch_size": 16, "policy_kwargs": {"net_arch": [8]}, "device": "cpu", "seed": 3}
STEPS, SIZE = 160, 66


class Walk(gymnasium.Env[Any, Any]):
    """A walk of any spaces: it ends by chance, or by a time-out after a while."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any], limit: int = 9) -> None:
        self.observation_space, self.action_space, self._limit = observation, action, limit
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Ends in one step of ten."""
        self._steps += 1
        draw = float(self.np_random.random())
        return self.observation_space.sample(), draw, draw < 0.1, self._steps >= self._limit, {}


def trained(algorithm: Any, env: VecEnv, theirs: bool, *, policy: str = "MlpPolicy", **options: Any) -> Any:
    """A model after a few updates, its ring overwritten twice; with SB3's own buffer or with ours."""
    # Copied: SB3 writes into what it is given.
    arguments = {**copy.deepcopy(SMALL), "buffer_size": SIZE, "train_freq": 4, **options}
    if not theirs:
        steps = arguments.pop("n_steps", 1)
        extra = {"n_steps": steps, "gamma": 0.99} if steps > 1 else {}
        arguments["replay_buffer_class"] = DistributedReplayBuffer
        arguments["replay_buffer_kwargs"] = {**arguments.get("replay_buffer_kwargs", {}), **extra}
    model = algorithm(policy, env, **arguments)
    model.learn(STEPS * env.num_envs)
    env.close()
    assert model.replay_buffer.full and model._n_updates > 10
    assert isinstance(model.replay_buffer, DistributedReplayBuffer) != theirs
    return model


def weights(model: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = model.policy.state_dict()
    return state


def assert_same_training(algorithm: Any, make_env: Callable[[], VecEnv], **options: Any) -> Any:
    theirs = trained(algorithm, make_env(), True, **copy.deepcopy(options))
    ours = trained(algorithm, make_env(), False, **copy.deepcopy(options))
    for name, value in weights(theirs).items():
        assert torch.equal(value, weights(ours)[name]), name
    return ours


def walks(observation: spaces.Space[Any], action: spaces.Space[Any], count: int = 1) -> Callable[[], VecEnv]:
    # Limits differ, so that only one environment times out at a time.
    return lambda: DummyVecEnv([lambda i=i: Walk(observation, action, 5 + 2 * i) for i in range(count)])


BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
TURN = spaces.Box(-2, 2, (2,), np.float32)
MIXED = spaces.Dict(
    {
        "vector": spaces.Box(-1, 1, (3,), np.float64),
        "choice": spaces.Discrete(4),
        "byte": spaces.Box(0, 255, (5,), np.uint8),
        "bits": spaces.MultiBinary(3),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "env_id"),
    [
        (SAC, "Pendulum-v1"),
        (TD3, "Pendulum-v1"),
        (DDPG, "Pendulum-v1"),
        (TQC, "Pendulum-v1"),
        (DQN, "CartPole-v1"),
        (QRDQN, "CartPole-v1"),
    ],
)
def test_training_is_the_same(algorithm: Any, env_id: str, envs: int) -> None:
    assert_same_training(algorithm, lambda: make_vec_env(env_id, envs, seed=1))


@pytest.mark.slow
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "observation", "action"),
    [
        (SAC, BOX, TURN),
        (SAC, spaces.Box(-1, 1, (2, 2), np.float64), spaces.Box(-1, 1, (2, 2), np.float64)),
        (DQN, spaces.Discrete(5), CHOICE),
        (DQN, spaces.MultiDiscrete([3, 4]), CHOICE),
        (DQN, spaces.MultiBinary(4), CHOICE),
    ],
)
def test_training_with_time_outs_is_the_same(algorithm: Any, observation: Any, action: Any, envs: int) -> None:
    model = assert_same_training(algorithm, walks(observation, action, envs))
    timeouts, dones = model.replay_buffer.timeouts, model.replay_buffer.dones
    assert timeouts.any() and (dones & ~timeouts).any() and not (timeouts & ~dones).any()


@pytest.mark.slow
@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize(("algorithm", "action"), [(SAC, TURN), (DQN, CHOICE)])
def test_training_with_dict_observations_is_the_same(algorithm: Any, action: Any, envs: int) -> None:
    assert_same_training(algorithm, walks(MIXED, action, envs), policy="MultiInputPolicy")


@pytest.mark.slow
@pytest.mark.parametrize("observation", [BOX, spaces.Dict({"a": BOX, "b": TURN})], ids=["box", "dict"])
def test_training_with_vec_normalize_is_the_same(observation: Any) -> None:
    env = walks(observation, TURN, 2)
    policy = "MultiInputPolicy" if isinstance(observation, spaces.Dict) else "MlpPolicy"
    model = assert_same_training(SAC, lambda: VecNormalize(env()), policy=policy)
    raw = model.replay_buffer.observations
    raw = raw["a"] if isinstance(raw, dict) else raw
    assert np.abs(raw).max() <= 1.0, "raw values are stored"


def test_training_with_less_memory_is_the_same() -> None:
    options = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    assert_same_training(DQN, walks(BOX, CHOICE, 2), **options)
    with pytest.raises(ValueError, match="does not go with handle_timeout_termination"):
        DistributedReplayBuffer(9, BOX, TURN, optimize_memory_usage=True)


def test_less_memory_and_a_second_learn_are_the_same() -> None:
    options = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    both = []
    for theirs in (True, False):
        model = trained(DQN, walks(BOX, CHOICE)(), theirs, **copy.deepcopy(options))
        with pytest.warns(UserWarning, match="last trajectory"):
            model.learn(40)
        both.append(weights(model))
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])


@pytest.mark.parametrize("algorithm", [SAC, DQN])
def test_training_with_n_steps_is_as_good_as_the_same(algorithm: Any) -> None:
    env = walks(BOX, TURN if algorithm is SAC else CHOICE, 2)
    theirs, ours = (weights(trained(algorithm, env(), which, n_steps=3)) for which in (True, False))
    for name, value in theirs.items():  # SB3 adds up its returns in single precision
        assert torch.allclose(value, ours[name], rtol=1e-3, atol=1e-5), name


# Batches of both buffers, fed alike.

OBSERVATIONS = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(-100, 100, tuple(shape), dtype),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.sampled_from([np.float32, np.float64, np.int16]),
    ),
    st.just(spaces.Box(0, 255, (3, 12, 12), np.uint8)),
    st.builds(spaces.Discrete, st.integers(2, 9)),
    st.just(spaces.MultiDiscrete([3, 5])),
    st.just(spaces.MultiBinary(5)),
    st.just(MIXED),
)
ACTIONS = st.sampled_from(
    [CHOICE, TURN, spaces.Box(-1, 1, (2, 2), np.float64), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3)]
)


def feed(buffers: list[Any], steps: int, rng: np.random.Generator) -> None:
    """The same steps into all buffers."""
    one = buffers[0]
    one.observation_space.seed(int(rng.integers(1000)))
    one.action_space.seed(int(rng.integers(1000)))

    def observe() -> Any:
        drawn = [one.observation_space.sample() for _ in range(one.n_envs)]
        if isinstance(one.observation_space, spaces.Dict):
            return {key: np.stack([part[key] for part in drawn]) for key in drawn[0]}
        return np.stack(drawn)

    for _ in range(steps):
        obs, following = observe(), observe()
        action = np.stack([one.action_space.sample() for _ in range(one.n_envs)])
        reward, done = rng.normal(size=one.n_envs), rng.random(one.n_envs) < 0.25
        infos = [{"TimeLimit.truncated": bool(end and rng.random() < 0.5)} for end in done]
        for buffer in buffers:
            buffer.add(copy.deepcopy(obs), copy.deepcopy(following), action, reward, done, copy.deepcopy(infos))


def assert_same_samples(theirs: Any, ours: Any, batch: int, seed: int, env: Any = None, exact: bool = True) -> None:
    """Both draw the same, and leave SB3's generator where it would be."""
    np.random.seed(seed)
    a, after = theirs.sample(batch, env), np.random.random()
    np.random.seed(seed)
    b = ours.sample(batch, env)
    assert np.random.random() == after
    for name in ("observations", "actions", "next_observations", "dones", "rewards"):
        one, other = getattr(a, name), getattr(b, name)
        one, other = (one, other) if isinstance(one, dict) else ({"": one}, {"": other})
        assert one.keys() == other.keys()
        for key in one:
            assert one[key].dtype == other[key].dtype and one[key].shape == other[key].shape, (name, key)
            same = torch.equal(one[key], other[key])
            assert same or (name == "rewards" and not exact and torch.allclose(one[key], other[key], atol=1e-6)), name
    assert (a.discounts is None) == (b.discounts is None)
    if a.discounts is not None:
        goes_on = a.dones == 0
        assert torch.allclose(a.discounts[goes_on], b.discounts[goes_on])


@settings(max_examples=60)
@given(
    OBSERVATIONS, ACTIONS, st.integers(1, 3), st.integers(2, 12), st.integers(1, 40), st.booleans(), st.integers(0, 99)
)
def test_samples_are_the_same(
    observation: Any, action: Any, envs: int, rows: int, steps: int, handle: bool, seed: int
) -> None:
    kind = DictReplayBuffer if isinstance(observation, spaces.Dict) else ReplayBuffer
    given = (rows * envs, observation, action, "cpu", envs, False, handle)
    theirs, ours = kind(*given), DistributedReplayBuffer(*given)
    feed([theirs, ours], steps, np.random.default_rng(seed))
    assert (ours.pos, ours.full, ours.size()) == (theirs.pos, theirs.full, theirs.size())
    assert_same_samples(theirs, ours, 20, seed)
    ours = pickle.loads(pickle.dumps(ours))
    assert_same_samples(theirs, ours, 20, seed + 1)
    feed([theirs, ours], 3, np.random.default_rng(seed + 1))
    assert_same_samples(theirs, ours, 20, seed + 2)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(4, 12), st.integers(1, 40), st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_samples_of_n_steps_are_the_same(envs: int, rows: int, steps: int, n: int, handle: bool, seed: int) -> None:
    given = (rows * envs, BOX, TURN, "cpu", envs, False, handle)
    theirs, ours = (kind(*given, n_steps=n, gamma=0.9) for kind in (NStepReplayBuffer, DistributedReplayBuffer))
    feed([theirs, ours], steps, np.random.default_rng(seed))
    assert_same_samples(theirs, ours, 30, seed, exact=False)
    ours = pickle.loads(pickle.dumps(ours))
    assert_same_samples(theirs, ours, 30, seed, exact=False)


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(2, 12), st.integers(1, 40), st.integers(0, 99))
def test_samples_with_less_memory_are_the_same(envs: int, rows: int, steps: int, seed: int) -> None:
    given = (rows * envs, BOX, CHOICE, "cpu", envs, True, False)
    theirs, ours = ReplayBuffer(*given), DistributedReplayBuffer(*given)
    feed([theirs, ours], steps, np.random.default_rng(seed))
    assert_same_samples(theirs, ours, 20, seed)


@pytest.mark.parametrize("steps", [1, 5])
def test_less_memory_survives_saving(steps: int) -> None:
    given = (8, BOX, CHOICE, "cpu", 1, True, False)
    theirs, ours = ReplayBuffer(*given), DistributedReplayBuffer(*given)
    feed([theirs, ours], steps, np.random.default_rng(0))
    assert_same_samples(theirs, pickle.loads(pickle.dumps(ours)), 20, 0)


@pytest.mark.parametrize("steps", [8, 11])
def test_a_full_ring_with_less_memory_survives_saving(steps: int) -> None:
    given = (8, BOX, CHOICE, "cpu", 1, True, False)
    theirs, ours = ReplayBuffer(*given), DistributedReplayBuffer(*given)
    feed([theirs, ours], steps, np.random.default_rng(0))
    ours = pickle.loads(pickle.dumps(ours))
    assert_same_samples(theirs, ours, 20, 0)
    feed([theirs, ours], 2, np.random.default_rng(1))
    assert_same_samples(theirs, ours, 20, 0)


def test_normalised_samples_are_the_same() -> None:
    env = VecNormalize(walks(BOX, TURN, 2)())
    env.reset()
    for _ in range(20):
        env.step(np.zeros((2, 2), np.float32))
    given = (40, BOX, TURN, "cpu", 2)
    theirs, ours = ReplayBuffer(*given), DistributedReplayBuffer(*given)
    feed([theirs, ours], 30, np.random.default_rng(0))
    assert_same_samples(theirs, ours, 50, 1, env)
    env.close()


def test_columns_look_like_those_of_sb3() -> None:
    for observation in (BOX, MIXED):
        kind = DictReplayBuffer if isinstance(observation, spaces.Dict) else ReplayBuffer
        theirs, ours = (one(20, observation, CHOICE, "cpu", 2) for one in (kind, DistributedReplayBuffer))
        feed([theirs, ours], 13, np.random.default_rng(0))
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            a, b = getattr(theirs, name), getattr(ours, name)
            for key in a if isinstance(a, dict) else ("",):
                assert np.array_equal(a[key] if key else a, b[key] if key else b), (name, key)


def test_what_is_sampled_is_nobody_elses() -> None:
    buffer = make(None, rows=20)
    write(buffer, 1, 20)
    first = buffer.sample(8)
    kept = first.observations.clone()
    first.rewards.add_(1000)
    buffer.sample(8)
    write(buffer, 2, 20)
    assert torch.equal(first.observations, kept) and buffer.rewards.max() < 1000


def test_dones_may_be_floats() -> None:
    buffer = DistributedReplayBuffer(9, BOX, TURN, "cpu")
    obs = np.zeros((1, 3), np.float32)
    buffer.add(obs, obs, np.zeros((1, 2)), np.zeros(1), np.ones(1, np.float32), [{}])
    assert buffer.sample(1).dones.item() == 1.0


def test_an_empty_buffer_says_so() -> None:
    with pytest.raises(ConfigError, match="Nothing was added"):
        make(None).sample(3)


def test_what_does_not_fit_says_what_to_do() -> None:
    buffer = make(None, rows=10**12)
    with pytest.raises(NoSpace, match=r"Lower buffer_size"):
        write(buffer, 1, 1)


@pytest.mark.parametrize("what", ["observation", "next observation", "action", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_that_holds_no_number_is_refused(what: str, value: float) -> None:
    buffer = make(None)
    write(buffer, 1, 5)
    obs, following = np.zeros((1, *OBSERVATION.shape)), np.zeros((1, *OBSERVATION.shape))
    action, reward = np.zeros((1, *ACTION.shape), np.float32), np.zeros(1, np.float32)
    parts = {"observation": obs, "next observation": following, "action": action, "reward": reward}
    parts[what].reshape(-1)[-1] = value
    with pytest.raises(EnvError, match=f"has {value} in its {what.split()[-1]} in row 5"):
        buffer.add(obs, following, action, reward, np.zeros(1), [{}])
    assert buffer.size() == 5


def test_a_part_of_an_observation_that_holds_no_number_is_refused() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3), "c": spaces.Box(-1, 1, (50,))})
    buffer = DistributedReplayBuffer(10, space, ACTION, "cpu", 1)
    fine = {"a": np.full((1, 2), 3e38, np.float32), "b": np.zeros((1, 1), int), "c": np.zeros((1, 50), np.float32)}
    rest = (np.zeros((1, *ACTION.shape), np.float32), np.zeros(1), np.zeros(1), [{}])
    buffer.add(fine, fine, *rest)
    with pytest.raises(EnvError, match="has nan in its observation"):
        buffer.add(fine, {**fine, "c": np.full((1, 50), np.nan, np.float32)}, *rest)
    assert buffer.size() == 1


# Saving and loading.


def draws(buffer: Any, seed: int = 5) -> list[list[int]]:
    np.random.seed(seed)
    return [one.tolist() for one in read(buffer.sample(64))]


@pytest.mark.parametrize("steps", [5, 20, 33])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_loaded_buffer_draws_the_same(nursery: Nursery, tmp_path: Path, steps: int, lanes: int) -> None:
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    buffer = make(None, rows=20, lanes=lanes)
    write(buffer, 1, steps)
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    before = draws(buffer)
    loaded = load_from_pkl(tmp_path / "buffer.pkl")
    twice = pickle.loads(pickle.dumps(loaded))  # not used in between
    assert draws(loaded) == before == draws(twice)
    child = nursery.start("run_loader", pickled=str(tmp_path / "buffer.pkl"), seed=5)
    said = nursery.report(child)
    assert [said["run"], said["step"], said["lane"]] == before and not said["shared"]
    assert nursery.wait(child) == 0
    for one in (buffer, loaded):
        write(one, 1, 9, start=steps)
    assert draws(buffer) == draws(loaded)


def test_a_model_saves_and_loads_its_buffer(tmp_path: Path) -> None:
    """As SB3's documentation does it, with a ring that is full."""
    models = []
    for theirs in (True, False):
        model = trained(SAC, make_vec_env("Pendulum-v1", 2, seed=1), theirs)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        again = SAC.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", 2, seed=2))
        again.load_replay_buffer(tmp_path / "buffer")
        assert again.replay_buffer.full and again.replay_buffer.pos == model.replay_buffer.pos > 0
        np.random.seed(0)
        torch.manual_seed(0)
        again.learn(60, reset_num_timesteps=False)
        models.append(weights(again))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_model_that_is_only_loaded_takes_no_memory(tmp_path: Path, held: Callable[[], int], group: Registry) -> None:
    before, env = held(), make_vec_env("Pendulum-v1", 1)
    kwargs = {"registry": group, "buffer_id": group.register_buffer("one", "SAC")}
    options = {**copy.deepcopy(SMALL), "replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": kwargs}
    model = SAC("MlpPolicy", env, **options, buffer_size=50_000)
    model.save(tmp_path / "model")
    assert held() < before + 100_000
    SAC.load(tmp_path / "model").predict(np.zeros(3, np.float32))
    assert held() < before + 100_000
    env.close()


@pytest.mark.parametrize("registry", ["there", "gone"])
@pytest.mark.parametrize("original", ["alive", "gone"])
def test_a_model_with_a_registry_is_loaded(tmp_path: Path, registry: str, original: str) -> None:
    made = create_distributed_registry(min_buffer_size=10)
    buffer_id = made.register_buffer("one", "SAC", "Pendulum-v1")
    kwargs = {"registry": made, "buffer_id": buffer_id, "cross_sample_ratio": 0.5}
    model = trained(SAC, make_vec_env("Pendulum-v1", 1, seed=1), False, replay_buffer_kwargs=kwargs)
    model.save(tmp_path / "model")
    if original == "gone":
        made.deregister_buffer(buffer_id)
        del model
    if registry == "gone":
        made.stop()
        with pytest.warns(UserWarning, match=r"registry .* is gone; this run shares with nobody"):
            again = SAC.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", 1, seed=2))
    else:
        again = SAC.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", 1, seed=2))
    again.learn(60)
    stats = again.replay_buffer.get_stats()
    if registry == "there":
        ids = [entry.buffer_id for entry in made.entries()]
        assert len(ids) == (2 if original == "alive" else 1)
        assert stats["foreign_fraction"] == (0.5 if original == "alive" else 0.0)
        assert (again.replay_buffer._member.buffer_id == buffer_id) == (original == "gone")
    else:
        assert stats["foreign_fraction"] == 0.0 and stats["local_samples"] > 0
    again.get_env().close()
    made.stop()


def test_a_shared_buffer_is_loaded_beside_the_original(group: Registry, nursery: Nursery, tmp_path: Path) -> None:
    from stable_baselines3.common.save_util import save_to_pkl

    buffer = make(group, "one", rows=20, cross_sample_ratio=0.5)
    write(buffer, 1, 33)
    save_to_pkl(tmp_path / "buffer.pkl", buffer)
    child = nursery.start("run_loader", pickled=str(tmp_path / "buffer.pkl"), seed=5)
    said = nursery.report(child)
    assert nursery.wait(child) == 0
    assert said["shared"] and said["buffer_id"] != buffer._member.buffer_id
    assert set(said["step"]) <= set(range(13, 33))


def test_a_buffer_whose_process_died_is_taken_over(group: Registry, nursery: Nursery, tmp_path: Path) -> None:
    """As a run that is resumed after a crash, under the id that its launcher gave it."""
    child = nursery.start("run_writer", registry=str(group.path), run=7, rows=50, steps=20)
    buffer_id = nursery.report(child)["buffer_id"]
    nursery.kill(child)
    buffer = make(group, rows=30, buffer_id=buffer_id)
    write(buffer, 8, 20)
    assert buffer._member.buffer_id == buffer_id and buffer._member.run_id == "run-7"
    assert group.get_buffer_stats()[buffer_id]["rows"] == 20
    assert set(read(buffer.sample(30))[0]) == {8}


def test_a_loaded_buffer_whose_registry_is_gone_warns() -> None:
    made = create_distributed_registry()
    buffer = make(made, "one", rows=20)
    write(buffer, 1, 20)
    pickled = pickle.dumps(buffer)
    made.stop()
    with pytest.warns(UserWarning, match="is gone"):
        pickle.loads(pickled).sample(3)


def test_a_loaded_buffer_whose_registry_is_gone_goes_on_alone() -> None:
    made = create_distributed_registry()
    buffer = make(made, "one", rows=20)
    write(buffer, 1, 33)
    pickled, before = pickle.dumps(buffer), draws(buffer)
    made.stop()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = pickle.loads(pickled)
        assert draws(loaded) == before and loaded.get_stats()["num_shared_buffers"] == 0


def test_reset_forgets() -> None:
    buffer = make(None, rows=20)
    write(buffer, 1, 33)
    buffer.reset()
    assert buffer.size() == 0
    write(buffer, 2, 5)
    assert set(read(buffer.sample(50))[0]) == {2} and buffer.size() == 5


def test_reset_forgets_what_was_loaded() -> None:
    buffer = make(None, rows=20)
    write(buffer, 1, 15)
    loaded = pickle.loads(pickle.dumps(buffer))
    loaded.reset()
    write(loaded, 2, 5)
    assert set(read(loaded.sample(50))[0]) == {2}
