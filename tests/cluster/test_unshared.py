"""Machines without shared storage: the run's folder is only copied, and the one with the original dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab import LabTraining, namespaces, unavailable

REASON = unavailable()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
TRAIN = ("train", "cartpole_apex_dqn", "--address", "auto", "--stop-return", "1000000", "--steps", "100000000")
QUIET = ("evaluation.every_steps=1000000", "replay.capacity=200000", "report_seconds=2", "learner.checkpoint_seconds=2")


def test_another_home_continues_from_the_copy_with_the_replay_of_the_others(tmp_path: Path) -> None:
    with namespaces(cpus=[1, 4, 2]) as lab:  # the head, where the command is typed, is too small for a learner
        command, home, _ = lab.nodes
        first = LabTraining(lab, command, tmp_path, *TRAIN, *QUIET, "--out", "/dev/shm/runs")
        first.out, first.home = command.files, home  # each node has its own
        first.wait_for(lambda: list((first.run / "checkpoints").glob("step_*")), "a copied checkpoint", 90)
        assert "and is copied here" in first.text
        first.wait_for_start(steps=6000)
        updates = max(int(path.stem[5:]) for path in (first.run / "checkpoints").glob("step_*"))
        home.kill()
        assert first.end(60) == 1, first.output

        other = lab.add_node(cpus=4)
        again = LabTraining(lab, command, tmp_path, "resume", "/dev/shm/runs/latest", "--address", "auto")
        again.out, again.home = command.files, other
        again.wait_for(lambda: "collected steps that other nodes still hold" in again.text, "the outposts", 120)
        again.wait_for(lambda: (ledger := again.ledger()) and ledger.updates > updates, "more updates", 60)
        again.press_ctrl_c()
        assert again.end(60) == 0, again.output
        assert again.read("summary.json")["status"] == "interrupted" and again.left_running() == []
