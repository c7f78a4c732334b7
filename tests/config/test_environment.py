"""Defaults that suit an environment: which layer wins, what is chosen, and that it is said and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms import ALGORITHMS
from shoal.config.dump import dump_yaml
from shoal.config.environment import actors_for_images, look_at
from shoal.config.load import load_scenario, load_target, scenario_names, settings_for
from shoal.config.values import parse_yaml
from shoal.errors import ConfigError
from shoal.types import EnvSpec

DISCRETE = [name for name, one in ALGORITHMS.items() if one.actions != "continuous"]
CONTINUOUS = [name for name, one in ALGORITHMS.items() if one.actions != "discrete"]


@pytest.mark.parametrize(
    ("env", "algo"),
    [("CartPole-v1", "ppo"), ("FrozenLake-v1", "ppo"), ("Pendulum-v1", "sac"), ("ALE/Pong-v5", "impala")],
)
def test_an_algorithm_is_chosen_and_the_reason_is_given(env: str, algo: str) -> None:
    settings = load_target(env)
    assert settings.algo == algo
    assert any(reason.startswith(f"algo = {algo}: ") for reason in settings.reasons)
    assert not any("algo = " in reason for reason in load_target(env, [f"algo={algo}"]).reasons)


@pytest.mark.parametrize("algo", [name for name in DISCRETE if name not in ("ppo", "a3c")])
def test_what_suits_is_below_what_is_set(algo: str) -> None:
    """Those that are left out learn from rollouts: their batch cannot be set."""
    suited = ALGORITHMS[algo].suited(look_at("CartPole-v1"))  # type: ignore[arg-type]
    settings = settings_for("CartPole-v1", algo)
    if algo != "ppo":  # whose batch is all lanes, wherever
        assert settings.learner.batch_size == suited["learner"]["batch_size"]
        assert settings_for("CartPole-v1", algo, ["batch_size=160"]).learner.batch_size == 160
    assert settings.algorithm.learning_rate == suited["algorithm"]["learning_rate"]
    assert settings_for("CartPole-v1", algo, ["learning_rate=0.123"]).algorithm.learning_rate == 0.123


@pytest.mark.parametrize("algo", ["apex-dqn", "apex-qr-dqn"])
def test_small_images_are_learned_as_often_as_vectors(algo: str) -> None:
    small = EnvSpec("Small-v0", (10, 10, 4), "uint8", 1, 3, (), unit_observations=True, binary_observations=True)
    suited, large = (ALGORITHMS[algo].suited(spec) for spec in (small, replace(small, obs_shape=(84, 84, 4))))
    assert suited["replay"] == ALGORITHMS[algo].suited(look_at("CartPole-v1"))["replay"]  # type: ignore[arg-type]
    assert suited["algorithm"]["center_images"] and not suited["algorithm"]["normalize_observations"]
    assert large["replay"] == {"samples_per_insert": 6}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_papers_numbers_can_be_had(algo: str) -> None:
    env = "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"
    settings = settings_for(env, algo, ["defaults=paper"])
    assert settings.algorithm == ALGORITHMS[algo].config()
    assert settings.reasons == ()


def test_scenarios_of_the_package_do_not_depend_on_what_suits() -> None:
    for name in scenario_names():
        if not name.startswith("sb3_"):
            assert load_scenario(Path(name)).defaults == "paper", name


def test_a_scenario_of_the_users_own_gets_what_suits(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("env: CartPole-v1\nalgo: apex-dqn\nlearner: {batch_size: 64}\n")
    settings = load_scenario(path)
    assert settings.learner.batch_size == 64 and settings.algorithm == settings_for("CartPole-v1", "apex-dqn").algorithm


def test_one_hot_observations_are_not_normalised() -> None:
    def normalises(env: str) -> bool:
        return bool(settings_for(env, "apex-dqn").model_dump()["algorithm"]["normalize_observations"])

    assert normalises("CartPole-v1") and not normalises("FrozenLake-v1")


@pytest.mark.parametrize("env", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
def test_observations_of_zeros_and_ones_have_settings_of_their_own(env: str) -> None:
    def found(env: str, algo: str, name: str) -> Any:
        return settings_for(env, algo).model_dump()["algorithm"][name]

    for algo, entropy in {"ppo": 0.05, "impala": 0.05, "impact": 0.1, "a3c": 0.05}.items():
        assert found(env, algo, "entropy_cost") == entropy > found("CartPole-v1", algo, "entropy_cost")
    for algo in ("apex-dqn", "apex-qr-dqn"):
        assert found(env, algo, "n_step") == 1 < found("CartPole-v1", algo, "n_step")


def test_numbers_between_zero_and_one_are_not_zeros_and_ones() -> None:
    spec = look_at("shoal/TMaze-v0")
    assert spec is not None and spec.unit_observations and not spec.binary_observations


@pytest.mark.parametrize("batch", [1, 2, 3, 10, 100])
def test_any_batch_can_be_set(batch: int) -> None:
    """The ratios of selectors that nobody set follow it."""
    selectors = settings_for("CartPole-v1", "impala", [f"batch_size={batch}"]).replay.selectors
    draws = [one.ratio * batch for one in selectors]
    assert draws[0] >= 1 and sum(draws) == pytest.approx(batch)
    assert draws == pytest.approx([round(one) for one in draws])


def test_the_step_size_falls_until_the_last_step_if_that_is_known() -> None:
    def found(*words: str) -> tuple[float, int]:
        own: Any = settings_for("CartPole-v1", "apex-dqn", words).algorithm
        return own.learning_rate_end, own.schedule_updates

    assert found() == (0.0, 0)
    assert found("stop.steps=100_000") == (2.5e-5, 25_000)
    assert found("stop.steps=100_000", "batch_size=64", "samples_per_insert=8") == (2.5e-5, 12_500)
    assert found("stop.steps=100_000", "learning_rate=1e-5") == (0.0, 0)
    assert found("stop.steps=100_000", "schedule_updates=0") == (0.0, 0)
    assert found("stop.steps=100_000", "learning_rate_end=1e-4", "schedule_updates=7") == (1e-4, 7)
    assert found("stop.steps=100_000", "samples_per_insert=null") == (0.0, 0)


def test_a_replay_of_large_images_is_smaller() -> None:
    large, set_by_user = load_target("CarRacing-v3"), load_target("CarRacing-v3", ["capacity=90_000"])
    assert large.replay.capacity * 96 * 96 * 3 <= 2 << 30 and any("replay.capacity" in one for one in large.reasons)
    assert set_by_user.replay.capacity == 90_000 and not any("capacity" in one for one in set_by_user.reasons)


def test_reasons_of_a_copied_file_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "copied.yaml"
    path.write_text("env: Pendulum-v1\nalgo: sac\nreasons: [of another run]\n")
    assert not any("another" in reason for reason in load_scenario(path).reasons)


def test_what_was_chosen_is_saved() -> None:
    settings = load_target("CartPole-v1")
    assert parse_yaml(dump_yaml(settings), "it")["reasons"] == list(settings.reasons) != []


@pytest.mark.parametrize(("cores", "actors"), [(1, 1), (2, 2), (4, 2), (16, 14), (64, 14)])
def test_images_take_the_cores_that_are_free(cores: int, actors: int) -> None:
    assert actors_for_images(cores) == actors


def test_auto_takes_every_core_that_the_other_roles_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.config.environment.usable_cores", lambda: 9)
    settings = load_target("CartPole-v1", ["algo=apex-dqn", "actors=auto", "learners=2"])
    assert settings.actors == 6
    assert settings.reasons[-1] == "actors = 6: all of this machine with 9 cores, less 3 for the other roles."
    monkeypatch.setattr("shoal.config.environment.usable_cores", lambda: 1)
    assert load_target("CartPole-v1", ["actors=auto"]).actors == 1
    with pytest.raises(ConfigError, match=r"actors = .*all"):
        load_target("CartPole-v1", ["actors=all"])
