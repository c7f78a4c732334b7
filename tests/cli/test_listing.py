"""`shoal algorithms`, `shoal scenarios` and `shoal config`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Shoal

from shoal.algorithms import ALGORITHMS
from shoal.config.load import load_scenario, scenario_names


def test_algorithms(run_shoal: Shoal) -> None:
    result = run_shoal("algorithms")
    assert result.code == 0
    for name, algorithm in ALGORITHMS.items():
        assert name in result.out and algorithm.summary in result.out


def test_scenarios_of_the_package_and_of_this_folder(run_shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("# My own. More.\nenv: me:Mine-v0\nalgo: sac\n", encoding="utf-8")
    (tmp_path / "scenarios" / "odd.yaml").write_text("env: [", encoding="utf-8")
    result = run_shoal("scenarios")
    assert result.code == 0 and result.err == ""
    lines = {line.split()[0]: line.split(maxsplit=3)[1:] for line in result.out.splitlines()}
    assert set(lines) == set(scenario_names()) - {"odd"}
    assert lines["mine"] == ["sac", "me:Mine-v0", "My own"]  # nothing of it is imported
    assert lines["pendulum_sac"] == ["sac", "Pendulum-v1", "Pendulum with SAC"]
    assert lines["sb3_sac_halfcheetah"][-1].endswith("(needs mujoco, sb3)")
    assert lines["hopper_td3"][-1].endswith("(needs mujoco)")


def test_config_prints_what_train_takes(run_shoal: Shoal, tmp_path: Path) -> None:
    result = run_shoal("config", "apex-dqn", "env=Acrobot-v1", "batch_size=32")
    assert result.code == 0
    (tmp_path / "mine.yaml").write_text(result.out)
    settings = load_scenario(tmp_path / "mine.yaml")
    assert (settings.env.id, settings.learner.batch_size) == ("Acrobot-v1", 32)
    assert run_shoal("config", "mine.yaml").out == result.out
    assert run_shoal("config", "cartpole_apex_dqn").code == 0


def test_config_says_that_it_imports_nothing(run_shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("env: {id: 'somebody:Theirs-v0'}\nalgo: impala\n")
    result = run_shoal("config", "own.yaml")
    assert result.code == 0 and result.out.startswith("# somebody:Theirs-v0 is not imported here")


def test_config_shows_where_a_run_would_end(run_shoal: Shoal) -> None:
    result = run_shoal("config", "apex-dqn", "stop={steps: null, seconds: null, mean_return: null}")
    assert "mean_return: 475.0" in result.out and "steps: 1000000" in result.out


def test_config_errors(run_shoal: Shoal) -> None:
    result = run_shoal("config", "apexdqn")
    assert result.code == 2 and "Did you mean 'apex-dqn'?" in result.err
    result = run_shoal("config", "apex-dqn", "batchsize=3")
    assert result.code == 2 and "Did you mean 'learner.batch_size'?" in result.err
    result = run_shoal("config", "apex-dqn", "env=CartPol-v1")
    assert result.code == 2 and "Did you mean 'CartPole-v1'?" in result.err
