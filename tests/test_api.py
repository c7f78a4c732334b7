"""Shoal from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.api import begin_again, wandb_settings
from shoal.envs import EnvSettings, describe_env
from shoal.errors import ConfigError, RunInUse, UnknownName
from shoal.runtime.run_folder import RunFolder
from shoal.sharing import create_distributed_registry
from shoal.types import EnvSpec

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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    """A finished run."""
    out = tmp_path_factory.mktemp("runs")
    return shoal.train("CartPole-v1", steps=400, seed=3, runtime="inline", quiet=True, out=out, settings=SMALL)


def test_import_is_light() -> None:
    code = "import shoal, sys; dir(shoal); assert not {'torch', 'ray', 'gymnasium', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(shoal.__file__).parents[1])})


def test_public_names() -> None:
    assert all(hasattr(shoal, name) for name in shoal.__all__)
    assert set(shoal.__all__) <= set(dir(shoal))
    assert isinstance(shoal.__version__, str)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = shoal.nothing


def test_a_run_knows_what_was_asked_and_what_came_out(run: shoal.Run) -> None:
    assert run.settings.seed == 3 and run.settings.learner.batch_size == 16 and run.settings.stop.steps == 400
    summary = run.summary
    assert summary is not None and summary.status == "finished" and summary.env_steps >= 400 and summary.updates > 0
    assert run.metrics()[-1]["step"] >= 400
    assert "finished" in repr(run) and "CartPole-v1" in repr(run)
    assert (run.path / "config.yaml").is_file() and (run.path.parent / "latest").resolve() == run.path


def test_train_takes_scenarios_and_named_settings_win(tmp_path: Path) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("env: CartPole-v1\nseed: 5\nactors: 1\nruntime: inline\nstop: {steps: 50}\n")
    run = shoal.train(scenario, actors=2, quiet=True, out=tmp_path, settings={**SMALL, "actors": 3})
    assert (run.settings.seed, run.settings.actors, run.settings.stop.steps) == (5, 2, 50)


def test_one_seed_one_result(run: shoal.Run, tmp_path: Path) -> None:
    again = shoal.train("CartPole-v1", steps=400, seed=3, runtime="inline", quiet=True, out=tmp_path, settings=SMALL)
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    assert (run.predict(obs)[0] == again.predict(obs)[0]).all()
    assert run.evaluate(4).returns == again.evaluate(4).returns


def test_what_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    for target, error in (("CartPol-v1", UnknownName), ("Pendulum-v1", ConfigError), ("nothing.yaml", UnknownName)):
        with pytest.raises(error):
            shoal.train(target, algo="apex-dqn", out=tmp_path)
    with pytest.raises(ConfigError, match=r"learner\.batch_size = 0"):
        shoal.train("CartPole-v1", out=tmp_path, settings={"learner.batch_size": 0})
    assert list(tmp_path.iterdir()) == []


def test_no_stop_means_the_environments_own(run: shoal.Run, tmp_path: Path) -> None:
    from shoal.api import begin
    from shoal.config.checks import DEFAULT_STEPS
    from shoal.config.load import settings_for

    plan, folder = begin(settings_for("CartPole-v1", "apex-dqn", []), tmp_path)
    assert plan.settings.stop.mean_return == 475.0 and plan.settings.stop.steps == DEFAULT_STEPS
    assert "mean_return: 475.0" in folder.config_yaml.read_text()


def test_resume(tmp_path: Path) -> None:
    settings = {**SMALL, "replay.path": str(tmp_path / "replay"), "replay.keep": True}
    run = shoal.train("CartPole-v1", steps=200, runtime="inline", quiet=True, out=tmp_path, settings=settings)
    with pytest.raises(ConfigError, match=r"ends at stop\.steps = 200: raise it"):
        shoal.resume(run)
    with pytest.raises(ConfigError, match="the replay is laid out for it"):
        shoal.resume(run, steps=300, settings={"actors": 3})
    assert shoal.load(run.path).settings.stop.steps == 200
    more = shoal.resume(run.path, steps=300, quiet=True)
    assert more.settings.stop.steps == 300
    assert more.summary is not None and more.summary.env_steps >= 300
    assert more.metrics()[0]["step"] < 300


def test_the_environment_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[EnvSettings] = []

    def describe(settings: EnvSettings) -> EnvSpec:
        described.append(settings)
        return describe_env(settings)

    monkeypatch.setattr("shoal.loops.plan.describe_env", describe)
    run = shoal.train("CartPole-v1", steps=50, runtime="inline", quiet=True, out=tmp_path, settings=SMALL)
    assert len(described) == 1
    shoal.resume(run, steps=100, quiet=True)
    assert len(described) == 2


def test_a_run_without_a_summary_needs_a_way_to_go_too(tmp_path: Path) -> None:
    run = shoal.train("CartPole-v1", steps=300, runtime="inline", quiet=True, out=tmp_path, settings=SMALL)
    (run.path / "summary.json").unlink()  # as after kill -9
    with pytest.raises(ConfigError, match=r"has made 3\d\d steps and ends at stop\.steps = 200: raise it"):
        shoal.resume(run, steps=200)


def test_a_run_outlives_its_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = create_distributed_registry(path=tmp_path / "registry")
    settings = {**SMALL, "share.registry": str(registry.path)}
    run = shoal.train("CartPole-v1", steps=300, runtime="inline", quiet=True, out=tmp_path / "runs", settings=settings)
    registry.stop()
    with pytest.raises(ConfigError, match="registry"):
        shoal.train("CartPole-v1", steps=300, runtime="inline", out=tmp_path / "none", settings=settings)
    assert not (tmp_path / "none").exists()
    more = shoal.resume(run, steps=1000)
    assert more.summary is not None and more.summary.status == "finished"
    assert "is gone: this run shares with nobody" in capsys.readouterr().out.replace("\n", " ")


def test_a_solved_run_needs_another_goal(tmp_path: Path) -> None:
    run = shoal.train(
        "CartPole-v1", steps=9_000, stop_return=1, runtime="inline", quiet=True, out=tmp_path, settings=SMALL
    )
    assert run.summary is not None and run.summary.status == "solved"
    with pytest.raises(ConfigError, match=r"solved: it reached stop\.mean_return = 1\."):
        shoal.resume(run)
    plan, _ = begin_again(run.path, ["stop.mean_return=null", "steps=10000"])
    assert plan.settings.stop.mean_return is None


def test_a_live_run_is_not_resumed(run: shoal.Run) -> None:
    with RunFolder(run.path).lock(), pytest.raises(RunInUse):
        shoal.resume(run, steps=10_000)


def test_wandb_goes_on_under_the_same_name(run: shoal.Run) -> None:
    board = wandb_settings(run.settings, run.folder)
    assert board.run_id == board.name == run.path.name
    assert board.config["learner"]["batch_size"] == 16
    json.dumps(dict(board.config))
