"""Runs of Stable-Baselines3 that read each other: how much, from whom, and whether every row is what was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from tests.sharing.conftest import ROOT, Nursery
from tests.sharing.runs_process import ACTION, OBSERVATION, WORDS, make, read, write

from shoal.errors import ConfigError, UnknownName
from shoal.replay import ShardReader
from shoal.replay.storage import folder_bytes
from shoal.sharing import DistributedReplayBuffer, Registry, create_distributed_registry, pool
from shoal.sharing.registry import BUFFER_ID, ENV_ID, REGISTRY, RUN_ID, Look

always_look = pytest.mark.usefixtures("always_look")


def four(group: Registry, strategy: str = "self_heavy", ratio: float = 0.5, **options: Any) -> list[Any]:
    """Runs 1 to 4 of 100, 200, 300 and 400 rows; the last of two lanes."""
    buffers = [make(group, f"run-{run}", lanes=1 + run // 4, sample_strategy=strategy, cross_sample_ratio=ratio,
                    **options) for run in (1, 2, 3, 4)]  # fmt: skip
    for run, buffer in enumerate(buffers, start=1):
        write(buffer, run, 100 * run // buffer.n_envs)
    return buffers


@pytest.mark.parametrize(
    ("strategy", "own", "others"),
    [
        ("self_heavy", 0.5, [2 / 9, 3 / 9, 4 / 9]),
        ("uniform", 0.5 + 0.5 / 4, [1 / 4, 1 / 4, 1 / 4]),
        ("weighted", 0.5 + 0.5 / 10, [2 / 10, 3 / 10, 4 / 10]),
        ("newest", 0.5 + 0.5 / 10, [2 / 10, 3 / 10, 4 / 10]),
        ("local_only", 1.0, [0, 0, 0]),
    ],
)
def test_each_strategy_reads_what_it_says(group: Registry, strategy: str, own: float, others: list[float]) -> None:
    first = four(group, strategy)[0]
    runs, steps = [], []
    for _ in range(150):
        run, step, lane = read(first.sample(101))
        runs.append(run)
        steps.append(step)
        assert (lane[run < 4] == 0).all()
    run, step = np.concatenate(runs), np.concatenate(steps)
    shares = [(run == one).mean() for one in (1, 2, 3, 4)]
    assert shares == pytest.approx([own, *(0.5 * one for one in others)], abs=0.015)
    stats = first.get_stats()
    assert stats["foreign_fraction"] == pytest.approx((run != 1).mean()), "measured, not intended"
    assert {name: one["samples"] for name, one in stats["peers"].items() if one["samples"]} == {
        f"run-{one}": (run == one).sum() for one in (2, 3, 4) if (run == one).any()
    }
    if strategy == "newest":
        assert [step[run == one].min() for one in (2, 3, 4)] == [160, 240, 160]
        assert step[run == 1].min() < 20, "a run's own part is of all its rows"
    elif strategy != "local_only":
        assert [step[run == one].min() < 20 for one in (2, 3, 4)] == [True] * 3
        assert stats["num_shared_buffers"] == 3 and stats["peers"]["run-4"]["rows"] == 400
    assert stats["local_samples"] + stats["distributed_samples"] == 150 * 101


@pytest.mark.parametrize(("ratio", "batch"), [(0.2, 256), (0.2, 32), (0.3, 7), (0.05, 1), (1.0, 10)])
def test_the_part_of_others_is_exact_in_the_mean(group: Registry, ratio: float, batch: int) -> None:
    buffers = [make(group, f"run-{run}", cross_sample_ratio=ratio) for run in (1, 2)]
    for run, buffer in enumerate(buffers, start=1):
        write(buffer, run, 50)
    counts = [int((read(buffers[0].sample(batch))[0] == 2).sum()) for _ in range(800)]
    exact = ratio * batch
    assert set(counts) <= {int(exact), int(exact) + 1}
    assert np.mean(counts) == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(800))
    stats = buffers[0].get_stats()
    assert stats["foreign_fraction"] == stats["distributed_ratio"] == pytest.approx(np.mean(counts) / batch)


def test_all_rows_and_lanes_are_equally_likely(group: Registry) -> None:
    one, two = make(group, "run-1", cross_sample_ratio=1.0), make(group, "run-2", rows=30, lanes=3)
    write(one, 1, 20)
    write(two, 2, 30)
    counts = np.zeros((30, 3))
    for _ in range(100):
        _, step, lane = read(one.sample(300))
        np.add.at(counts, (step, lane), 1)
    expected = counts.sum() / counts.size
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 89) < 6 * np.sqrt(2 * 89), chi2


def test_alone_everything_is_ones_own(group: Registry) -> None:
    one = make(group, "run-1", cross_sample_ratio=0.9)
    write(one, 1, 50)
    for _ in range(5):
        assert set(read(one.sample(64))[0]) == {1}
    stats = one.get_stats()
    assert (stats["local_samples"], stats["distributed_samples"], stats["num_shared_buffers"]) == (320, 0, 0)
    assert stats["foreign_fraction"] == 0.0 and stats["peers"] == {} and stats["refused"] == {}


@always_look
def test_a_peer_is_read_from_its_least_size_on(group: Registry) -> None:
    one, two = make(group, "run-1"), make(group, "run-2")
    assert one.get_stats()["local_size"] == 0
    write(one, 1, 50)
    write(two, 2, 9)
    assert set(read(one.sample(200))[0]) == {1}
    write(two, 2, 1, start=9)
    run, _, _ = read(one.sample(200))
    assert (run == 2).sum() == 40 and one.get_stats()["peers"]["run-2"]["rows"] == 10


@always_look
def test_a_run_that_is_alone_again_reads_its_own(group: Registry) -> None:
    one, two = make(group, "run-1", cross_sample_ratio=0.5), make(group, "run-2")
    write(one, 1, 50)
    write(two, 2, 50)
    assert (read(one.sample(100))[0] == 2).sum() == 50
    group.deregister_buffer(two._member.buffer_id)
    assert (read(one.sample(100))[0] == 2).sum() == 0
    stats = one.get_stats()
    assert stats["peers"]["run-2"]["samples"] == 50 and stats["num_shared_buffers"] == 0
    write(two, 2, 50, start=50)
    assert set(read(two.sample(100))[0]) == {1, 2}, "one that left still learns from the others"


def test_a_look_is_not_taken_at_every_sample(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make(group, "run-1")
    write(one, 1, 50)
    looks = []
    monkeypatch.setattr(Registry, "look", lambda self: looks.append(1) or Look([], {}))
    for _ in range(50):
        one.sample(8)
    assert len(looks) == 1


def test_sharing_leaves_ones_own_draws_as_they_were(group: Registry) -> None:
    """The part of one's own comes from SB3's generator, the part of others from another."""
    alone, one, two = make(None), make(group, "run-1", cross_sample_ratio=0.25), make(group, "run-2")
    for buffer in (alone, one):
        write(buffer, 1, 50)
    write(two, 2, 50)
    np.random.seed(0)
    expected = [part.tolist() for part in read(alone.sample(75))]
    np.random.seed(0)
    assert [part[:75].tolist() for part in read(one.sample(100))] == expected


@always_look
def test_time_outs_of_others_are_masked(group: Registry) -> None:
    """An end by time-out is bootstrapped from, whoever it came from; `read` checks every row."""
    one, two = make(group, "run-1", cross_sample_ratio=1.0), make(group, "run-2", lanes=2)
    plain = make(group, "run-3", handle_timeout_termination=False)
    write(one, 1, 20)
    write(two, 2, 140)
    sample = one.sample(2000)
    _, step, _ = read(sample)
    dones = sample.dones.numpy()[:, 0]
    assert dones[step % 14 == 6].all() and not dones[step % 14 == 13].any() and (step % 14 == 13).any()
    group.deregister_buffer(two._member.buffer_id)
    write(plain, 3, 140)
    with pytest.warns(UserWarning, match="run-3: its handling of time-outs is as ends, here it is told apart"):
        sample = one.sample(2000)
    assert (read(sample)[0] == 1).all(), "who does not tell time-outs from ends is not read by who does"


@always_look
@pytest.mark.parametrize("writer", ["whole", "less memory"])
@pytest.mark.parametrize("reader", ["whole", "less memory"])
def test_rows_with_and_without_next_observations_are_shared(group: Registry, writer: str, reader: str) -> None:
    less = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    whole = {"handle_timeout_termination": False}
    one = make(group, "one", rows=64, cross_sample_ratio=1.0, **(less if reader == "less memory" else whole))
    two = make(group, "two", rows=64, **(less if writer == "less memory" else whole))

    def chain(buffer: Any, run: int, steps: int, start: int = 0) -> None:
        for step in range(start, start + steps):
            obs = np.full((1, WORDS), run * 1e6 + step)
            done = np.array([step % 9 == 8])
            buffer.add(obs, obs + 1, np.zeros((1, 2), np.float32), np.array([float(step)]), done, [{}])

    chain(one, 1, 30)
    for start in range(0, 200, 40):  # wraps
        chain(two, 2, 40, start)
        sample = one.sample(500)
        obs, following = sample.observations.numpy()[:, 0], sample.next_observations.numpy()[:, 0]
        assert (obs >= 2e6).all() and (sample.rewards.numpy()[:, 0] == obs - 2e6).all()
        assert (sample.dones.numpy()[:, 0] == ((obs - 2e6) % 9 == 8)).all()
        assert (following == obs + 1)[sample.dones.numpy()[:, 0] == 0].all()


@always_look
def test_n_steps_over_rows_of_others(group: Registry) -> None:
    one = make(group, "run-1", cross_sample_ratio=1.0, n_steps=3, gamma=0.5)
    two = make(group, "run-2", lanes=2, rows=64)
    write(one, 1, 30)
    for start in (0, 60):
        write(two, 2, 60, start)
        sample = one.sample(1000)
        obs = sample.observations.numpy()[:, 0]
        step, lane = np.divmod(obs % 2.0**32, 16)
        taken = np.minimum(3, 7 - step % 7)
        reward = sum(np.where(k < taken, 0.5**k * ((step + k) * 4 + lane), 0) for k in range(3))
        assert np.allclose(sample.rewards.numpy()[:, 0], reward)
        last = step + taken - 1
        ended = last % 14 == 6
        assert (sample.dones.numpy()[:, 0] == ended).all() and ended.any() and (last % 14 == 13).any()
        assert np.allclose(sample.discounts.numpy()[~ended, 0], 0.5 ** taken[~ended])
        assert (sample.next_observations.numpy()[:, 0] == obs + 16 * (taken - 1) + 0.5).all()


def test_dict_observations_are_shared(group: Registry) -> None:
    space = spaces.Dict({"a": spaces.Box(-1e9, 1e9, (2,), np.float64), "b": spaces.Discrete(1000)})
    buffers = []
    for run in (1, 2):
        options = {"registry": group, "buffer_id": group.register_buffer(f"run-{run}", "SAC")}
        buffer = DistributedReplayBuffer(200, space, ACTION, "cpu", 2, cross_sample_ratio=1.0, **options)
        for step in range(60):
            obs = {"a": np.full((2, 2), run * 1000.0 + step), "b": np.array([step, step + 500])}
            following = {"a": obs["a"] + 0.5, "b": obs["b"] + 1}
            buffer.add(obs, following, np.zeros((2, 2), np.float32), np.full(2, step), np.zeros(2, bool), [{}, {}])
        buffers.append(buffer)
    sample = buffers[0].sample(300)
    a, b = (sample.observations[key].numpy() for key in "ab")
    step = sample.rewards.numpy()[:, 0]
    assert (a == (2000 + step)[:, None]).all() and (b[:, 0] % 500 == step).all() and {0, 1} == set(b[:, 0] // 500)
    assert (sample.next_observations["a"].numpy() == a + 0.5).all()
    assert (sample.next_observations["b"].numpy() == b + 1).all()


def test_dicts_of_another_order_are_not_mistaken(group: Registry) -> None:
    box = spaces.Box(-9, 9, (1,), np.float32)
    buffers = []
    for run, keys in enumerate(("xy", "yx")):
        space = spaces.Dict(OrderedDict((key, box) for key in keys))
        options = {"registry": group, "buffer_id": group.register_buffer(f"run-{run}", "SAC")}
        buffer = DistributedReplayBuffer(100, space, ACTION, "cpu", cross_sample_ratio=1.0, **options)
        for _ in range(20):
            obs = {"x": np.full((1, 1), 1, np.float32), "y": np.full((1, 1), 2, np.float32)}
            buffer.add(obs, obs, np.zeros((1, 2), np.float32), np.zeros(1), np.zeros(1, bool), [{}])
        buffers.append(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (buffers[0].sample(10).observations["x"] == 1).all()


def test_each_run_normalises_with_its_own_statistics(group: Registry) -> None:
    """Raw values are shared: a foreign row is scaled by the reader's statistics."""
    import gymnasium

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    env.reset()
    for _ in range(30):
        env.step(np.zeros((1, 1), np.float32))
    space, action = env.observation_space, env.action_space
    buffers = []
    for run in (1, 2):
        options = {"registry": group, "buffer_id": group.register_buffer(f"run-{run}", "SAC")}
        buffer = DistributedReplayBuffer(200, space, action, "cpu", cross_sample_ratio=1.0, **options)
        for step in range(50):
            obs = np.full((1, 3), (run - 1) * step / 50, np.float32)
            buffer.add(obs, obs, np.zeros((1, 1), np.float32), np.full(1, -step), np.zeros(1, bool), [{}])
        buffers.append(buffer)
    sample = buffers[0].sample(100, env)
    step = np.rint(-env.unnormalize_reward(sample.rewards.numpy()[:, 0]))
    raw = np.repeat((step / 50).astype(np.float32)[:, None], 3, axis=1)
    assert np.allclose(sample.observations.numpy(), env.normalize_obs(raw), atol=1e-5)
    env.close()


# Who is refused.


def other(group: Registry, run: str, observation: Any, action: Any = ACTION, env_id: str = "") -> Any:
    buffer_id = group.register_buffer(run, "SAC", env_id)
    buffer = DistributedReplayBuffer(200, observation, action, "cpu", registry=group, buffer_id=buffer_id)
    for _ in range(20):
        obs = np.zeros((1, *observation.shape), observation.dtype)
        taken = np.zeros((1, *action.shape), action.dtype)
        buffer.add(obs, obs, taken, np.zeros(1), np.zeros(1, bool), [{}])
    return buffer


@pytest.mark.parametrize(
    ("observation", "action", "env_id", "what"),
    [
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), ACTION, "", "observation space is Box(-inf, inf, [3]"),
        (spaces.Box(-np.inf, np.inf, (WORDS,), np.float32), ACTION, "", f"[{WORDS}], float32)"),
        (spaces.Box(-1, 1, (WORDS,), np.float64), ACTION, "", "observation space is Box(-1, 1"),
        (spaces.Discrete(7), ACTION, "", "observation space is Discrete(7)"),
        (OBSERVATION, spaces.Box(-2, 2, (2,), np.float32), "", "action space is Box(-2, 2"),
        (OBSERVATION, spaces.Box(-1, 1, (3,), np.float32), "", "action space is Box(-1, 1, [3]"),
        (OBSERVATION, spaces.Discrete(2), "", "action space is Discrete(2)"),
        (OBSERVATION, ACTION, "Else-v0", "environment is Else-v0, here it is Toy-v0"),
    ],
)
@always_look
def test_who_differs_is_refused_by_name_once(
    group: Registry, observation: Any, action: Any, env_id: str, what: str
) -> None:
    one = make(group, buffer_id=group.register_buffer("run-1", "SAC", "Toy-v0"), cross_sample_ratio=0.5)
    two = make(group, buffer_id=group.register_buffer("run-2", "SAC", ""))  # does not say: spaces decide
    write(one, 1, 20)
    write(two, 2, 20)
    other(group, "odd", observation, action, env_id)
    with pytest.warns(UserWarning, match=r"^Not sharing with odd: its ") as told:
        run, _, _ = read(one.sample(100))
    assert len(told) == 1 and what in str(told[0].message)
    assert (run == 2).sum() == 50, "the others are still used"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.sample(10)
    stats = one.get_stats()
    assert list(stats["refused"]) == ["odd"] and what in stats["refused"]["odd"] and list(stats["peers"]) == ["run-2"]


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'uniform'"):
        make(None, sample_strategy="unifrom")
    with pytest.raises(ConfigError, match=r"cross_sample_ratio is 1\.5"):
        make(None, cross_sample_ratio=1.5)
    with pytest.raises(ConfigError, match="without a registry"):
        make(None, buffer_id="x")
    with pytest.raises(ConfigError, match="is no registry"):
        DistributedReplayBuffer(9, OBSERVATION, ACTION, registry="/nowhere")


def test_a_ratio_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CROSS_SAMPLE_RATIO", "a fifth")
    with pytest.raises(ConfigError, match="SHOAL_CROSS_SAMPLE_RATIO"):
        make(None)


def test_the_registry_bounds_a_buffer() -> None:
    made = create_distributed_registry(60)
    with pytest.warns(UserWarning, match=r"2,000 is cut to the registry's max_buffer_size, 60"):
        buffer = make(made, "one", rows=1000, lanes=2)
    assert buffer.buffer_size == 30
    write(buffer, 1, 45)
    assert buffer.get_stats()["local_size"] == 60 == next(iter(made.get_buffer_stats().values()))["rows"]
    made.stop()


# Environment variables.

RUN = """
import json, gymnasium, warnings
from stable_baselines3 import SAC
from shoal.sharing import DistributedReplayBuffer
model = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), learning_starts=20, batch_size=8, buffer_size=500, seed=0,
            policy_kwargs={"net_arch": [8]}, device="cpu", replay_buffer_class=DistributedReplayBuffer)
model.learn(60)
print(json.dumps(model.replay_buffer.get_stats()))
"""


@pytest.mark.parametrize(("strategy", "fraction"), [("self_heavy", 0.5), ("uniform", 0.25), ("local_only", 0.0)])
def test_variables_turn_sharing_on(group: Registry, nursery: Nursery, strategy: str, fraction: float) -> None:
    giver = make(group, "giver")
    write(giver, 1, 50)
    variables = {REGISTRY: str(group.path), RUN_ID: "taker", "SHOAL_SHARE_STRATEGY": strategy}
    child = nursery.start("run_from_variables", variables={**variables, "SHOAL_CROSS_SAMPLE_RATIO": "0.5"})
    assert nursery.report(child)["foreign_fraction"] == pytest.approx(fraction, abs=0.05)
    assert nursery.wait(child) == 0
    assert {entry.run_id for entry in group.entries()} == {"giver", "taker"}


@pytest.mark.slow
def test_variables_turn_sharing_on_in_a_training_without_arguments(group: Registry) -> None:
    import gymnasium

    env = gymnasium.make("Pendulum-v1")
    giver = group.register_buffer("giver", "TD3", "Pendulum-v1")
    kwargs = {"registry": group, "buffer_id": giver}
    options = {"replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": kwargs, "learning_starts": 100}
    SAC("MlpPolicy", env, **options, buffer_size=100, device="cpu").learn(30)
    variables = {REGISTRY: str(group.path), ENV_ID: "Pendulum-v1", "SHOAL_SHARE_STRATEGY": "uniform"}
    variables["SHOAL_CROSS_SAMPLE_RATIO"] = "0.5"
    variables[BUFFER_ID] = group.register_buffer("taker", "SAC", "Pendulum-v1")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    stats = json.loads(done.stdout.splitlines()[-1])
    assert stats["foreign_fraction"] == pytest.approx(0.25, abs=0.1) and stats["distributed_ratio"] == 0.5
    assert list(stats["peers"]) == ["giver"]
    entries = {entry.run_id: entry for entry in group.entries()}
    assert set(entries) == {"giver", "taker"}
    assert all(one.description and one.description.env_id == "Pendulum-v1" for one in entries.values())
    env.close()


# Loading, leaving, forgetting.


def test_reset_forgets_for_the_others_too(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make(group, "run-1", cross_sample_ratio=1.0), make(group, "run-2")
    monkeypatch.setattr(pool, "REFRESH_SECONDS", 0.0)
    write(one, 1, 20)
    write(two, 2, 50)
    assert set(read(one.sample(50))[0]) == {2}
    two.reset()
    assert set(read(one.sample(50))[0]) == {1}
    write(two, 2, 50, start=500)
    run, step, _ = read(one.sample(50))
    assert set(run) == {2} and step.min() >= 500


def test_reset_between_two_looks_is_seen(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REFRESH_SECONDS", 0.1)
    one, two = make(group, "run-1", cross_sample_ratio=1.0), make(group, "run-2")
    write(one, 1, 20)
    write(two, 2, 50)
    assert set(read(one.sample(50))[0]) == {2}
    two.reset()
    write(two, 2, 50, start=500)
    time.sleep(0.2)
    _, step, _ = read(one.sample(50))
    assert step.min() >= 500


def test_a_run_does_not_read_what_it_replaced_by_loading(group: Registry, tmp_path: Any) -> None:
    import gymnasium

    kwargs = {"registry": group, "buffer_id": group.register_buffer("one", "SAC"), "cross_sample_ratio": 0.5}
    options = {"replay_buffer_class": DistributedReplayBuffer, "replay_buffer_kwargs": kwargs, "learning_starts": 10}
    model = SAC("MlpPolicy", gymnasium.make("Pendulum-v1"), **options, batch_size=8, buffer_size=100, device="cpu")
    model.learn(30)
    model.save_replay_buffer(tmp_path / "buffer")
    model.load_replay_buffer(tmp_path / "buffer")
    model.learn(10, reset_num_timesteps=False)
    assert model.replay_buffer.get_stats()["foreign_fraction"] == 0.0
    assert len(list(group.entries())) == 1


def overwritten(group: Registry, steps: int) -> tuple[Any, Any]:
    """A run, and another that wrote some more steps into its ring of 64 since the run's last look."""
    one, two = make(group, "run-1", cross_sample_ratio=0.5), make(group, "run-2", rows=64)
    write(one, 1, 50)
    write(two, 2, 100)
    read(one.sample(100))
    write(two, 2, steps, start=100)
    return one, two


def test_rows_that_are_overwritten_meanwhile_are_drawn_again(group: Registry) -> None:
    run, step, _ = read(overwritten(group, 30)[0].sample(100))
    assert step[run == 2].min() >= 130 - 64 and (run == 2).sum() == 50


def test_what_is_drawn_again_is_counted_once(group: Registry) -> None:
    one, _ = overwritten(group, 30)
    one.sample(100)
    assert one.get_stats()["foreign_fraction"] == 0.5


def test_a_window_that_is_all_overwritten_is_looked_at_again(group: Registry) -> None:
    one, _ = overwritten(group, 200)
    drawn: list[Any] = []
    torn = one._table.torn
    one._table.torn = lambda keys, at: drawn.append(torn(keys, at)) or drawn[-1]
    one.sample(100)
    assert len(drawn[-1]) == 0, "the last rows that were read were whole"
    assert len(drawn) < 10


@always_look
def test_a_peer_without_any_start_does_not_spoil_ones_own_rows(group: Registry) -> None:
    """Two peers: one fine, one whose rows are all cut, as a run's whose actor cannot start."""
    one = make(group, "run-1", cross_sample_ratio=0.5, sample_strategy="uniform")
    two, cut = make(group, "a-fine"), make(group, "z-cut")
    write(one, 1, 50)
    write(two, 2, 50)
    write(cut, 3, 1)
    cut._writer.cut(100)
    for _ in range(20):
        before = one.get_stats()["distributed_samples"]
        run, _, _ = read(one.sample(64))
        drawn = one.get_stats()["distributed_samples"] - before
        assert (run != 1).sum() <= drawn, "rows of others among those that are counted as one's own"


@always_look
def test_a_machine_that_slept_goes_on_sharing(group: Registry) -> None:
    one, two = make(group, "run-1", cross_sample_ratio=0.5), make(group, "run-2")
    write(one, 1, 50)
    write(two, 2, 50)
    for buffer in (one, two):
        os.utime(group.folder(buffer._member.buffer_id) / "alive", (1, 1))
    one.sample(8)
    assert any(entry.run_id == "run-1" for entry in group.entries()), "nobody removes himself"


# Memory.


def test_no_row_is_held_twice(group: Registry, held: Callable[[], int]) -> None:
    before = held()
    buffers = [make(group, f"run-{run}", rows=3000, cross_sample_ratio=1.0) for run in (1, 2, 3)]
    for run, buffer in enumerate(buffers, start=1):
        write(buffer, run, 100)
    for buffer in buffers:
        buffer.sample(256)
    shards = [ShardReader(path) for entry in group.entries() for path in entry.shards]
    rows = sum(shard.info.nbytes for shard in shards)
    assert len(shards) == 3 and rows == 3 * 3000 * (2 * WORDS * 8 + 8 + 4 + 3)
    assert rows <= held() - before < rows + 3 * 40_000, "pages and small files besides"
    assert rows <= folder_bytes(group.path) < rows + 3 * 40_000
    for buffer in buffers:
        group.deregister_buffer(buffer._member.buffer_id)
    assert folder_bytes(group.path) < 10_000


def test_reading_others_takes_no_memory_of_ones_own(group: Registry, nursery: Nursery) -> None:
    rows = 3000  # 3 MB of rows each
    writers = [
        nursery.start("run_writer", registry=str(group.path), run=run, rows=rows, steps=rows) for run in (1, 2, 3)
    ]
    for writer in writers:
        nursery.report(writer)
    reader = nursery.start("run_reader", registry=str(group.path), rows=3 * rows)
    said = nursery.report(reader)
    assert nursery.wait(reader) == 0
    assert said["seen"] > 0.9 * 3 * rows and said["stats"]["foreign_fraction"] == 1.0
    assert said["grown"] < 2_000_000, "of 9 MB that were read"


def test_nothing_is_left_after_stop(held: Callable[[], int]) -> None:
    before = held()
    made = create_distributed_registry(min_buffer_size=10)
    buffers = [make(made, f"run-{run}") for run in (1, 2)]
    for run, buffer in enumerate(buffers, start=1):
        write(buffer, run, 50)
        buffer.sample(10)
    assert held() > before + 1_000_000
    made.stop()
    assert held() == before and not made.path.exists()
    write(buffers[0], 1, 50)
    assert set(read(buffers[0].sample(64))[0]) <= {1, 2}, "what is mapped stays readable"
    assert held() == before
