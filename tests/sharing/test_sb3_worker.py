"""One run of Stable-Baselines3, in this process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import SAC
from stable_baselines3.common.vec_env import VecNormalize

from shoal.sharing import Registry, create_distributed_registry
from shoal.sharing.registry import BUFFER_ID, REGISTRY
from shoal.sharing.sb3_models import check_hyperparameters, hyperparameter_names, make_model
from shoal.sharing.sb3_settings import SB3_ALGORITHMS, Sb3Settings
from shoal.sharing.sb3_summary import Sb3Summary
from shoal.sharing.sb3_worker import train

OFF_POLICY = {"batch_size": 16, "buffer_size": 2_000, "learning_starts": 50, "policy_kwargs": {"net_arch": [8]}}
ON_POLICY = {"n_steps": 32, "policy_kwargs": {"net_arch": [8]}}
DISCRETE = {"DQN", "QRDQN"}


def settings(algo: str, **changes: Any) -> Sb3Settings:
    env = {"id": "CartPole-v1" if algo in DISCRETE else "Pendulum-v1", **changes.pop("env", {})}
    given = ON_POLICY if algo in ("PPO", "A2C") else OFF_POLICY
    given = {**given, "batch_size": 16} if algo == "PPO" else given
    data = {"algo": algo, "env": env, "total_timesteps": 200, "hyperparameters": given, "seed": 1}
    return Sb3Settings.model_validate({**data, "evaluation": {"every_steps": 100, "episodes": 1}, **changes})


class Lines:
    """Takes the lines of a run."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        self.lines.append({"step": step, "wall": wall, **values})


def run(asked: Sb3Settings, folder: Path, stop_after: int | None = None) -> tuple[Sb3Summary, list[dict[str, float]]]:
    lines, looks = Lines(), iter(range(1_000_000))
    return train(asked, folder, lines.write, lambda: stop_after is not None and next(looks) >= stop_after), lines.lines


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A group, as a worker of `shoal share` finds it."""
    made = create_distributed_registry(min_buffer_size=50)
    monkeypatch.setenv(REGISTRY, str(made.path))
    monkeypatch.delenv(BUFFER_ID, raising=False)
    yield made
    made.stop()


def join(registry: Registry, name: str, algo: str, monkeypatch: pytest.MonkeyPatch) -> str:
    buffer_id = registry.register_buffer(name, algo, settings(algo).env.sharing_id)
    monkeypatch.setenv(BUFFER_ID, buffer_id)
    return buffer_id


def test_a_run_alone_is_judged_and_saved(tmp_path: Path) -> None:
    summary, lines = run(settings("SAC", total_timesteps=250), tmp_path)
    assert (summary.status, summary.env_steps, summary.foreign_fraction) == ("finished", 250, 0.0)
    assert math.isfinite(summary.eval_return_mean) and math.isfinite(summary.steps_per_second)
    judged = [line["step"] for line in lines if "eval/mean_reward" in line]
    assert judged == [100, 200, 250]
    assert {"rollout/ep_rew_mean", "time/fps", "train/critic_loss", "share/foreign_fraction"} <= lines[-1].keys()
    assert SAC.load(tmp_path / "model.zip").num_timesteps == 250


def test_it_stops_when_told_to_and_saves(tmp_path: Path) -> None:
    summary, lines = run(settings("SAC"), tmp_path, stop_after=30)
    assert (summary.status, summary.env_steps) == ("interrupted", 31)
    assert lines[-1]["step"] == 31 and (tmp_path / "model.zip").exists()


def test_it_stops_in_the_middle_of_an_evaluation(tmp_path: Path) -> None:
    summary, lines = run(settings("SAC"), tmp_path, stop_after=150)
    assert (summary.status, summary.env_steps) == ("interrupted", 100)
    assert all("eval/mean_reward" not in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("giver", "taker"), [("TD3", "SAC"), ("DQN", "QRDQN"), ("PPO", "TQC"), ("A2C", "DDPG")])
def test_runs_share(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, giver: str, taker: str
) -> None:
    monkeypatch.setenv("SHOAL_CROSS_SAMPLE_RATIO", "0.25")
    kept = join(registry, "giver", giver, monkeypatch)
    first, _ = run(settings(giver), tmp_path)
    assert first.foreign_fraction == 0.0 or math.isnan(first.foreign_fraction)
    assert registry.get_buffer_stats()[kept]["rows"] >= 190
    join(registry, "taker", taker, monkeypatch)
    second, lines = run(settings(taker), tmp_path)
    assert second.foreign_fraction == pytest.approx(0.25, abs=0.01)
    assert lines[-1]["share/giver/fraction"] == pytest.approx(0.25, abs=0.01) and lines[-1]["share/peers"] == 1


def test_on_policy_runs_write_their_own_lines_only(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(registry, "ppo", "PPO", monkeypatch)
    summary, lines = run(settings("PPO", env={"n_envs": 2}), tmp_path)
    assert math.isnan(summary.foreign_fraction) and not any(name.startswith("share/") for name in lines[-1])


@pytest.mark.parametrize("algo", ["SAC", "PPO"])
def test_normalised_environments_keep_their_statistics(tmp_path: Path, algo: str) -> None:
    summary, _ = run(settings(algo, env={"normalize": True, "n_envs": 2}), tmp_path)
    assert summary.eval_return_mean < -100, "true returns, not normalised ones"
    env = VecNormalize.load(str(tmp_path / "vecnormalize.pkl"), make_model(settings(algo)).get_env())
    assert env.obs_rms.count > 100


@pytest.mark.parametrize("algo", SB3_ALGORITHMS)
def test_every_algorithm_has_hyperparameters(algo: str) -> None:
    names = hyperparameter_names(algo)
    assert {"learning_rate", "gamma", "policy_kwargs", "device"} <= set(names)
    assert not {"env", "seed", "self", "replay_buffer_class"} & set(names)
    assert check_hyperparameters(settings(algo)) == []


def test_n_step_returns_reach_the_buffer_without_a_warning() -> None:
    given = OFF_POLICY | {"n_steps": 3, "gamma": 0.9}
    model = make_model(settings("SAC", hyperparameters=given))
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma, model.gamma) == (3, 0.9, 0.9)
    assert given["n_steps"] == 3
    model.get_env().close()


def test_values_that_yaml_has_no_type_for() -> None:
    noise = {"type": "ornstein-uhlenbeck", "std": 0.3}
    given = OFF_POLICY | {
        "action_noise": noise,
        "train_freq": [1, "episode"],
        "policy_kwargs": {"activation_fn": "Tanh"},
    }
    model = make_model(settings("TD3", hyperparameters=given))
    assert type(model.action_noise).__name__ == "OrnsteinUhlenbeckActionNoise"
    assert model.train_freq.unit.value == "episode" and "Tanh" in str(model.actor)
    model.get_env().close()


def test_an_evaluation_ends_where_no_episode_does(tmp_path: Path) -> None:
    cut = {"every_steps": 100, "episodes": 2, "max_episode_steps": 25}
    _, lines = run(settings("DQN", env={"id": "tests.fakes:TestEndless-v0"}, evaluation=cut), tmp_path)
    assert [line["eval/mean_reward"] for line in lines if "eval/mean_reward" in line] == [25.0, 25.0]
