"""Actors on other nodes: whoever dies there or at home, the run goes on, and its counts stay exact."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from ray._private.state import state
from tests.lab import LabTraining, Node, light_cluster

from shoal.replay import ShardReader

pytestmark = pytest.mark.faults
QUIET = ("evaluation.every_steps=1000000", "replay.capacity=200000", "report_seconds=2", "restart_limit=20")
ENDLESS = ("--stop-return", "1000000", "--steps", "100000000")


def require_equal(own: ShardReader, mirror: ShardReader) -> None:
    """Row for row and word for word what the actor wrote."""
    assert (mirror.head, mirror.steps) == (own.head, own.steps)
    for row in range(max(own.oldest, mirror.oldest), own.head):
        for name, column in own.columns.items():
            assert np.array_equal(column[row % own.rows], mirror.columns[name][row % own.rows]), (name, row)


def test_processes_a_node_and_home_may_be_lost(tmp_path: Path) -> None:
    with light_cluster(cpus=[3, 1, 1]) as lab:
        first = LabTraining(
            lab, lab.nodes[0], tmp_path, "train", "cartpole_apex_dqn", "--address", "auto", *ENDLESS, *QUIET
        )
        first.wait_for_start()
        node = first.outposts()[0][0]
        assert {first.outposts()[0][0], first.outposts()[1][0]} == set(lab.nodes[1:])
        _kill_processes(first, node)
        first.press_ctrl_c()
        assert first.end() == 0, first.output
        assert first.left_running() == []
        _require_exact(first)
        with lab.connected():  # Ray's head would keep a record of each of their calls
            assert len(state._get_all_task_events()) < 10
        collected, replay = first.steps(), first.replay
        assert replay is not None
        shutil.rmtree(replay)

        again = LabTraining(lab, lab.nodes[0], tmp_path, "resume", "runs/latest", "--seconds", "20")
        again.wait_for(lambda: again.steps() > 1500, "steps of the resumed run", 120)
        assert f"resuming with {collected:,} collected steps that other nodes still hold" in again.text
        again.wait_for(lambda: again.steps() >= collected, "the replay from the outposts")
        _lose_a_node(again)
        folders = [path for _, path in again.outposts().values()]
        assert again.end() == 0, again.output
        assert again.read("summary.json")["status"] == "finished"
        assert again.left_running() == []
        assert not any(path.exists() for path in folders) and not (again.replay and again.replay.exists())


def _kill_processes(training: LabTraining, node: Node) -> None:
    """Kills a courier, its counterpart at home, an actor and the learner with -9; one courier hangs for a while."""
    courier = training.courier_on(node)
    assert courier is not None
    courier.kill()
    training.wait_for(lambda: training.courier_on(node) not in (None, courier), "another courier", 20)
    training.wait_for(lambda: "the courier of outpost 0 has ended" in training.text, "a note on the courier")
    training.wait_for_steps(300, "the courier's death")
    for name in ("mirrors", "learner"):
        training.role(name).kill()
        training.wait_for(lambda name=name: f"{name} died" in training.text, "a note", 20)
        training.wait_for_steps(300, f"the {name}'s death")
    training.roles_on(node)[0].kill()
    training.wait_for(lambda: "actor 0 died" in training.text, "a note on the actor", 20)
    training.wait_for(lambda: training.roles_on(node), "another actor", 20)
    training.wait_for_steps(300, "the actor's death")
    hangs = training.courier_on(node)
    assert hangs is not None
    hangs.suspend()
    training.wait_for(lambda: "has not sent anything" in training.text, "a note on silence", 20)
    training.wait_for_steps(100, "the courier was stopped")  # of the other outpost
    hangs.resume()


def _require_exact(training: LabTraining) -> None:
    assert training.replay is not None
    shards = training.shards()
    assert sorted(shards) == [0, 1]
    for actor, own in shards.items():
        require_equal(own, ShardReader(training.replay / f"shard_{actor:03d}"))
    assert training.steps() == training.outpost_steps() > 0


def _lose_a_node(training: LabTraining) -> None:
    assert training.replay is not None
    outpost, (node, _) = next(iter(training.outposts().items()))
    actor = next(iter(training.shards()))
    mirrored = ShardReader(training.replay / f"shard_{actor:03d}").head
    node.kill()
    took = training.wait_for(lambda: training.outposts()[outpost][0] is not node, "another node", 20)
    took += training.wait_for(lambda: training.roles_on(training.outposts()[outpost][0]), "its roles there", 20 - took)
    assert ShardReader(training.replay / f"shard_{actor:03d}").head >= mirrored
    assert re.search(r"rows that it had not sent are lost, about [\d,]+\); its actors go on on", training.text)
    training.wait_for_steps(200, "the node's death")
