"""Nodes that are apart: links are cut, home dies, Ray's head dies. What a run may lose, and how soon it goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.lab import LabTraining, NamespaceNode, namespaces, unavailable

from shoal.replay import ShardReader

REASON = unavailable()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
TRAIN = ("train", "cartpole_apex_dqn", "--address", "auto", "--stop-return", "1000000", "--steps", "100000000")
QUIET = ("evaluation.every_steps=100000000", "replay.capacity=400000", "report_seconds=2", "restart_limit=20")


def rows_lost(training: LabTraining) -> int:
    return sum(site.get("rows_lost", 0) for site in training.read("nodes.json")["sites"])


def head_of(training: LabTraining, actor: int) -> int:
    assert training.replay is not None
    return ShardReader(training.replay / f"shard_{actor:03d}").head


def test_links_are_cut_and_nodes_stop(tmp_path: Path) -> None:
    with namespaces(cpus=[0, 2, 3, 3]) as lab:
        training = LabTraining(lab, lab.nodes[1], tmp_path, *TRAIN, *QUIET)
        training.wait_for_start()
        node = training.outposts()[0][0]
        assert isinstance(node, NamespaceNode)
        actor = int(training.read("nodes.json")["sites"][1]["roles"][0].removeprefix("actor "))
        # For a few seconds: nothing is lost.
        node.cut()
        time.sleep(3)
        node.mend()
        before = head_of(training, actor)
        assert training.wait_for(lambda: head_of(training, actor) > before + 100, "rows after the link was mended") < 15
        assert rows_lost(training) == 0 and "go on on" not in training.text
        # For long: noticed, and its roles go elsewhere.
        node.cut()
        noticed = training.wait_for(lambda: "has not sent anything" in training.text, "a note on silence", 10)
        moved = noticed + training.wait_for(lambda: training.outposts()[0][0] is not node, "another node", 20)
        moved += training.wait_for(lambda: training.roles_on(training.outposts()[0][0]), "its roles there", 20)
        before = head_of(training, actor)
        moved += training.wait_for(lambda: head_of(training, actor) > before + 100, "rows from there", 30)
        assert moved < 40
        node.mend()
        # Its old actors end, and nobody writes into its mirror but the new one.
        training.wait_for(lambda: not training.roles_on(node) and training.courier_on(node) is None, "its end", 30)
        # The whole node stops.
        frozen = lab.add_node(cpus=3)
        other = training.outposts()[1][0]
        other.freeze()
        training.wait_for(lambda: training.outposts()[1][0] is not other, "a node instead of the stopped one", 60)
        assert training.outposts()[1][0] in (frozen, lab.nodes[1], training.outposts()[0][0])
        training.wait_for_steps(300, "the node stopped")
        other.thaw()
        training.press_ctrl_c()
        assert training.end() == 0, training.output
        assert training.left_running() == []
        assert training.steps() == training.outpost_steps()


def test_home_and_then_rays_head_are_lost(tmp_path: Path) -> None:
    with namespaces(cpus=[0, 2, 3, 3]) as lab:
        _, home, second, third = lab.nodes
        training = LabTraining(lab, home, tmp_path, *TRAIN, *QUIET)
        training.wait_for_start(steps=6000)
        learner = training.role("learner")
        ledger = training.ledger()
        assert ledger is not None
        learner.kill()
        before = ledger.updates
        assert training.wait_for(lambda: ledger.updates > before + 20, "updates after the learner's death", 30) < 30
        collected = training.steps()
        home.kill()
        killed = time.monotonic()
        again = LabTraining(lab, second, tmp_path, "resume", "runs/latest", "--address", "auto")
        again.wait_for(lambda: again.steps() > 0.9 * collected, "the replay from the other nodes", 60)
        resumed = again.ledger()
        assert resumed is not None
        before = resumed.updates
        again.wait_for(lambda: resumed.updates > before + 20, "updates after home's death", 60)
        assert time.monotonic() - killed < 60
        assert "collected steps that other nodes still hold" in again.text

        lab.kill_head_services()
        assert again.end(60) == 1
        assert "Ray's gcs_server has died" in again.text and "shoal resume" in again.text
        collected = again.steps()
        address = lab.restart_ray([second, third])
        last = LabTraining(lab, second, tmp_path, "resume", "runs/latest", "--address", address, "--seconds", "10")
        assert last.end(180) == 0, last.output
        assert "resuming with" in last.text and "weights only" not in last.text
        summary = last.read("summary.json")
        assert summary["status"] == "finished" and summary["env_steps"] > 0.9 * collected
        assert last.left_running() == []
        assert [path for node in (second, third) for path in node.files.glob("shoal-*/*") if path.is_dir()] == []
