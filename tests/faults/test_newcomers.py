"""Nodes that join a running cluster get actors, if the run asked for all cores."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab import LabTraining, light_cluster

pytestmark = pytest.mark.faults
ROOT = Path(__file__).parents[2]
QUIET = ("replay.min_size=500", "evaluation.every_steps=1000000", "replay.capacity=40000", "report_seconds=2")


def test_a_node_that_joins_gets_actors_and_a_resumed_run_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with light_cluster(cpus=[3, 1]) as lab:
        endless = ("--stop-return", "1000000", "--steps", "100000000")
        command = ("train", "tests.fakes:Corridor", "--algo", "apex-dqn", "--address", "auto", "--actors", "auto")
        run = LabTraining(lab, lab.nodes[0], tmp_path, *command, *endless, *QUIET)
        run.wait_for_start()
        assert len(run.shards()) == 1 and "actors = 2" in run.text
        pythonpath = lab.env.pop("PYTHONPATH")
        stranger = lab.add_node(cpus=1)
        lab.env["PYTHONPATH"] = pythonpath
        run.wait_for(lambda: "gets none: " in run.text, "a refusal of a node without the environment's module", 90)
        collected, newcomer = run.steps(), lab.add_node(cpus=2)
        run.wait_for(lambda: "goes on with 4 actors" in run.text, "a note on the newcomer", 90)
        run.wait_for(lambda: len(run.roles_on(newcomer)) == 2, "actors on the newcomer")
        run.wait_for(lambda: run.steps() > collected and min(run._mirrored()) > 200, "steps of the newcomer", 90)
        assert len(run.shards()) == 3 and "is gone" not in run.text and not run.roles_on(stranger)
        assert run.read("summary.json")["updates"] > 0, "the learner has stopped for it"
        run.press_ctrl_c()
        assert run.end() == 0, run.output
        assert run.left_running() == []
        ended = run.read("summary.json")
        assert ended["status"] == "interrupted" and ended["restarts"] == 0
        assert ended["env_steps"] == run.steps() > collected

        stranger.kill()
        again = LabTraining(lab, lab.nodes[0], tmp_path, "resume", "runs/latest", "--seconds", "5")
        assert again.end(120) == 0, again.output
        assert f"resuming with {ended['env_steps']:,} collected steps in the replay" in again.text
        assert "4 actors" in again.text
        assert again.read("summary.json")["status"] == "finished"


def test_a_node_that_joined_between_two_executions_is_used_fully_even_if_the_copy_cannot_be_written(
    tmp_path: Path,
) -> None:
    nas, away = tmp_path / "nas", tmp_path / "away"
    with light_cluster(cpus=[3]) as lab:
        endless = ("--stop-return", "1000000", "--steps", "100000000", f"checkpoints.path=file://{nas}")
        command = ("train", "CartPole-v1", "--algo", "apex-dqn", "--address", "auto", "--actors", "auto")
        run = LabTraining(lab, lab.nodes[0], tmp_path, *command, *endless, *QUIET)
        run.wait_for_start()
        run.press_ctrl_c()
        assert run.end() == 0, run.output
        newcomer = lab.add_node(cpus=3)
        again = LabTraining(lab, lab.nodes[0], tmp_path, "resume", "runs/latest")
        again.wait_for(lambda: "outpost 0 on node" in again.text, "the only actor on the newcomer", 90)
        nas.rename(away)
        nas.touch()  # a file: nothing can be written below it
        again.wait_for(lambda: "goes on with 4 actors" in again.text, "a note on cores of the newcomer and of home", 90)
        again.wait_for(lambda: len(again.roles_on(newcomer)) == 3, "actors on every core of the newcomer")
        nas.unlink()
        away.rename(nas)
        again.wait_for(lambda: "is copied to" in again.text, "a copy again", 60)
        again.press_ctrl_c()
        assert again.end() == 0, again.output
        assert again.left_running() == []
    name = again.run.resolve().name
    assert (nas / name / "actors.json").read_bytes() == (again.run / "actors.json").read_bytes()
