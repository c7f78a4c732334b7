"""A run with a copy at a URL, whose home dies with its folder: it goes on from the copy, with the others' replay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.lab import LabTraining, light_cluster

pytestmark = pytest.mark.faults
TRAIN = ("train", "cartpole_apex_dqn", "--address", "auto", "--stop-return", "1000000", "--steps", "100000000")
QUIET = ("evaluation.every_steps=1000000", "replay.capacity=200000", "report_seconds=2", "learner.checkpoint_seconds=2")


def test_a_run_goes_on_from_its_copy_when_home_and_its_folder_are_lost(tmp_path: Path) -> None:
    here, other, nas = tmp_path / "here", tmp_path / "other", tmp_path / "nas"
    here.mkdir()
    other.mkdir()
    with light_cluster(cpus=[1, 4, 2]) as lab:  # the head is too small for a learner
        command, home, node = lab.nodes
        first = LabTraining(lab, command, here, *TRAIN, *QUIET, f"checkpoints.path=file://{nas}")
        first.home = home
        first.wait_for_start(steps=6000)
        assert "the run is supervised there" in first.text and first.outposts()[0][0] in (command, node)
        name = first.run.resolve().name
        first.wait_for(lambda: list((nas / name / "checkpoints").glob("step_*")), "a checkpoint at the URL", 30)
        updates = max(int(path.stem[5:]) for path in (nas / name / "checkpoints").glob("step_*"))
        collected = first.steps()
        home.kill()
        assert first.end(60) == 1, first.output
        shutil.rmtree(here / "runs")  # all that home had is lost: its folder, and its memory
        shutil.rmtree(home.files)

        lab.add_node(cpus=4)
        again = LabTraining(lab, command, other, "resume", f"file://{nas}/{name}", "--address", "auto")
        again.wait_for(lambda: "watching its copy for" in again.text and "fetched" in again.text, "the copy", 90)
        again.wait_for(lambda: "collected steps that other nodes still hold" in again.text, "the outposts", 90)
        again.home = lab.nodes[3]
        again.wait_for(lambda: again.steps() > 0.5 * collected, "the replay from the other nodes", 60)
        again.wait_for(lambda: (ledger := again.ledger()) and ledger.updates > updates, "more updates", 60)
        again.press_ctrl_c()
        assert again.end(60) == 0, again.output
        assert again.left_running() == []
    copied = {path.name for path in (nas / name / "checkpoints").iterdir()}
    assert copied == {path.name for path in (again.run / "checkpoints").iterdir()}
    assert (nas / name / "summary.json").read_bytes() == (again.run / "summary.json").read_bytes()
