"""A Shoal run and a Stable-Baselines3 run on one environment share replay, each reading the other's rows in place."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import prepared

from shoal.config.load import settings_for
from shoal.loops.assembly import build_actor, build_learner
from shoal.loops.sharing_group import sharing_id
from shoal.sharing import DistributedReplayBuffer, create_distributed_registry
from shoal.sharing.registry import Registry

OVERRIDES = (
    "actors=1",
    "env.lanes=2",
    "replay.capacity=4000",
    "replay.min_size=64",
    "replay.samples_per_insert=null",
    "learner.batch_size=50",
    "share.ratio=0.2",
    "algorithm.hidden=[16]",
)


@pytest.fixture
def registry(tmp_path: Path) -> Any:
    made = create_distributed_registry(10_000, path=tmp_path / "registry", min_buffer_size=100)
    yield made
    made.stop()


def _sb3_buffer(registry: Registry, steps: int, env_id: str = "CartPole-v1") -> tuple[DistributedReplayBuffer, Any]:
    from stable_baselines3 import DQN

    buffer_id = registry.register_buffer("sb3", "DQN", env_id)
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        seed=1,
        learning_starts=steps + 1,
        buffer_size=10_000,
        policy_kwargs={"net_arch": [16]},
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"registry": registry, "buffer_id": buffer_id, "cross_sample_ratio": 0.5},
    )
    model.learn(steps)
    assert isinstance(model.replay_buffer, DistributedReplayBuffer)
    return model.replay_buffer, model


def _run(registry: Registry, folder: Path, *overrides: str) -> Any:
    settings = settings_for("CartPole-v1", "apex-dqn", (*OVERRIDES, f"share.registry={registry.path}", *overrides))
    plan, _ = prepared(folder, settings)
    return build_actor(plan, 0), build_learner(plan)


def test_both_read_each_other(registry: Registry, tmp_path: Path) -> None:
    buffer, _ = _sb3_buffer(registry, 300)
    actor, learner = _run(registry, tmp_path / "run")
    actor.run(steps=200)
    report = learner.run(updates=40)
    assert report.updates == 40
    assert report.shared["share/foreign_fraction"] == pytest.approx(0.2)
    assert report.shared["share/sb3/fraction"] == pytest.approx(0.2)
    assert report.shared["share/peers"] == 1.0 and 0 <= report.shared["share/age"] < 300
    assert np.isfinite(report.metrics["loss"])

    buffer._pool._looked = -1e9  # type: ignore[union-attr]  # as if a second had gone by
    samples = buffer.sample(200)
    assert buffer.get_stats()["foreign_fraction"] == pytest.approx(0.5)
    assert samples.actions.shape == (200, 1) and samples.observations.shape == (200, 4)
    learner.end()
    assert [entry.run_id for entry in registry.entries()] == ["sb3"]


def test_another_environment_is_refused_by_name(registry: Registry, tmp_path: Path) -> None:
    _sb3_buffer(registry, 300, env_id="CartPole-v0")
    actor, learner = _run(registry, tmp_path / "run")
    actor.run(steps=100)
    report = learner.run(updates=5)
    assert report.shared["share/foreign_fraction"] == 0.0
    assert report.notes == ("not sharing with sb3: its environment is CartPole-v0, here it is CartPole-v1",)
    assert learner.run(updates=1).notes == ()
    learner.end()


def test_alone_in_a_group_is_as_alone(registry: Registry, tmp_path: Path) -> None:
    actor, learner = _run(registry, tmp_path / "run")
    actor.run(steps=100)
    assert learner.run(updates=5).shared["share/foreign_fraction"] == 0.0
    learner.end()


def test_a_peer_with_nan_is_refused_and_the_learner_goes_on(registry: Registry, tmp_path: Path) -> None:
    """Rows of a writer that checks nothing: none of them reaches a loss."""
    buffer, _ = _sb3_buffer(registry, 300)
    buffer._writer.columns["next_obs"][100:] = np.nan
    actor, learner = _run(registry, tmp_path / "run", "share.ratio=0.5")
    actor.run(steps=200)
    reports = [learner.run(updates=20), learner.run(updates=20)]  # one batch may find it out, and has no other then
    assert reports[1].updates == 20 and np.isfinite(reports[1].metrics["loss"])
    assert reports[0].notes + reports[1].notes == ("not sharing with sb3: it wrote nan in an observation",)
    learner.end()


def test_an_action_that_does_not_exist_is_refused(registry: Registry, tmp_path: Path) -> None:
    buffer, _ = _sb3_buffer(registry, 300)
    buffer._writer.columns["action"][:] = 7
    actor, learner = _run(registry, tmp_path / "run", "share.ratio=0.5")
    actor.run(steps=200)
    notes = learner.run(updates=20).notes + learner.run(updates=20).notes
    assert notes == ("not sharing with sb3: it wrote 7 in an action",)
    learner.end()


def test_everything_may_come_from_others(registry: Registry, tmp_path: Path) -> None:
    """With two shards of its own, of which nothing is drawn; of others' rows the weights' age is not known."""
    _sb3_buffer(registry, 300)
    actor, learner = _run(registry, tmp_path / "run", "share.ratio=1", "actors=2")
    actor.run(steps=200)
    report = learner.run(updates=20)
    assert report.updates == 20 and report.shared["share/foreign_fraction"] == 1.0
    assert math.isnan(report.staleness) and report.replay["dropped_priorities"] == 0
    registry.deregister_buffer(next(entry.buffer_id for entry in registry.entries() if entry.run_id == "sb3"))
    time.sleep(1.1)  # until the next look
    report = learner.run(updates=20)
    assert report.updates == 20 and 0 <= report.staleness < 40
    learner.end()


def test_a_run_that_was_taken_for_dead_says_so(registry: Registry, tmp_path: Path) -> None:
    registry.stale_seconds = 0.2
    (registry.path / "registry.json").write_text(
        (registry.path / "registry.json").read_text().replace('"stale_seconds": 300.0', '"stale_seconds": 0.2')
    )
    actor, learner = _run(registry, tmp_path / "run")
    actor.run(steps=100)
    (entry,) = registry.entries()
    shutil.rmtree(registry.folder(entry.buffer_id))
    until = time.monotonic() + 30
    while list(registry.entries()) != [entry]:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert learner.run(updates=1).notes == (
        "another run took this one for dead and removed its entry in the registry: announced again",
    )
    learner.end()
    assert list(registry.entries()) == []


def test_what_changes_the_meaning_of_a_step_makes_another_environment() -> None:
    def named(*overrides: str) -> str:
        return sharing_id(settings_for("CartPole-v1", "apex-dqn", overrides).env)

    assert named() == "CartPole-v1" == named("env.lanes=3")
    assert named("env.kwargs.sutton_barto_reward=true") == "CartPole-v1(sutton_barto_reward=True)"
    assert named("env.max_episode_steps=100") == "CartPole-v1(max_episode_steps=100)"
