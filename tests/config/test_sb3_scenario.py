"""Scenarios of Stable-Baselines3: what is understood, and what is refused with which words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.config.sb3_scenario import dump_sb3_yaml, is_sb3_scenario, load_sb3_scenario, scenario_stem
from shoal.errors import ConfigError, UnknownName

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "src" / "shoal" / "scenarios").glob("sb3_*.yaml"))
SAC = ROOT / "src" / "shoal" / "scenarios" / "sb3_sac_pendulum.yaml"


def refused(*overrides: str, path: Path = SAC) -> str:
    with pytest.raises(ConfigError) as caught:
        load_sb3_scenario(path, list(overrides))
    assert "pydantic" not in str(caught.value) and "Input should" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_shipped_scenarios_load_and_survive_a_dump(path: Path, tmp_path: Path) -> None:
    settings = load_sb3_scenario(path)
    copy = tmp_path / "config.yaml"
    copy.write_text(dump_sb3_yaml(settings))
    assert load_sb3_scenario(copy) == settings
    assert is_sb3_scenario(path) and scenario_stem(path) == path.stem.removeprefix("sb3_")


def test_scenarios_of_shoal_are_told_from_those_of_sb3() -> None:
    assert not is_sb3_scenario(Path("cartpole_apex_dqn"))
    assert scenario_stem(Path("cartpole_apex_dqn")) == "cartpole_apex_dqn"


def test_names_may_be_short() -> None:
    changes = ["learning_rate=1e-4", "n_envs=3", "episodes=2", "env.kwargs.g=5", "policy_kwargs.net_arch=[8]", "seed=7"]
    settings = load_sb3_scenario(SAC, changes)
    assert settings.hyperparameters["learning_rate"] == 1e-4
    assert settings.hyperparameters["policy_kwargs"] == {"net_arch": [8]}
    assert settings.hyperparameters["batch_size"] == 256, "the rest stays"
    assert (settings.env.n_envs, settings.evaluation.episodes, settings.seed) == (3, 2, 7)
    assert settings.env.kwargs == {"g": 5} and settings.env.sharing_id == "Pendulum-v1(g=5)"


def test_overrides_leave_the_file_alone_and_later_ones_win() -> None:
    assert load_sb3_scenario(SAC, ["seed=1", "seed=2"]).seed == 2
    assert load_sb3_scenario(SAC).seed == 0


def test_short_form_of_env(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("framework: sb3\nalgo: DQN\nenv: CartPole-v1\n")
    assert load_sb3_scenario(path).env.id == "CartPole-v1"
    assert load_sb3_scenario(path, ["env.n_envs=2", "env=Acrobot-v1"]).env.id == "Acrobot-v1"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("learning_rat=1", "Did you mean 'hyperparameters.learning_rate'?"),
        (
            "hyperparameters.learning_rat=1",
            "Unknown setting 'hyperparameters.learning_rat'. Did you mean 'hyperparameters.learning_rate'?",
        ),
        ("hyperparameters.policy=x", "hyperparameters.policy cannot be set: it is set by policy."),
        ("hyperparameters={env: x}", "hyperparameters.env cannot be set: it is set by env."),
        ("hyperparameters.seed=3", "hyperparameters.seed cannot be set: it is set by --base-seed."),
        ("verbose=1", "hyperparameters.verbose cannot be set"),
        ("hyperparameters.foo=1", "Unknown setting 'hyperparameters.foo'. Known: action_noise, batch_size, "),
        ("nothing_like_it=1", "Known: algo, env.id"),
        ("env.n_env=3", "Did you mean 'env.n_envs'?"),
        ("algo=SACC", "Unknown Stable-Baselines3 algorithm 'SACC'. Did you mean 'SAC'?"),
        ("seed=-1", "seed = -1 cannot be used: it must be a whole number of at least 0."),
        ("n_envs=true", "env.n_envs = true cannot be used"),
        ("hyperparameters.verbose=1", "hyperparameters.verbose cannot be set"),
        ("action_noise=0.1", "write {type: normal or ornstein-uhlenbeck, std: 0.1}"),
        ("policy_kwargs={activation_fn: Relu}", "Did you mean 'ReLU'?"),
        ("framework=rllib", "framework = 'rllib' cannot be used: it must be sb3."),
        ("env.kwargs=3", "env.kwargs = 3 cannot be used"),
        ("n_steps_of_ppo", "write KEY=VALUE"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_remedy(override: str, words: str) -> None:
    assert words in refused(override)


def test_all_problems_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("framework: sb3\nalgo: PPO\nenv: {id: CartPole-v1, lanes: 3}\nhyperparameters: {buffer_size: 9}\n")
    message = refused(path=path)
    assert (
        message.startswith("2 problems in ") and "'env.lanes'" in message and "'hyperparameters.buffer_size'" in message
    )


def test_missing_environment_and_unknown_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("framework: sb3\nalgo: PPO\n")
    assert refused(path=path).startswith("env.id is missing: name an environment")
    with pytest.raises(UnknownName, match="sb3_sac_pendulum"):
        load_sb3_scenario(ROOT / "src" / "shoal" / "scenarios" / "sb3_sac_pendulm.yaml")


def test_without_stable_baselines3_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert 'pip install "shoal-rl[sb3]"' in refused()
