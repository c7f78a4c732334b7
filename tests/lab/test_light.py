"""The light form: nodes are real and separate, die when they are told to, and nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.lab import LightLab, Node, light_cluster

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
HELD = """
import time
from tests.lab import light_cluster
lab = light_cluster([1])
print(lab.folder, *lab._folders, *(one.pid for one in lab.nodes[0].processes()), flush=True)
time.sleep(600)
"""


@ray.remote(num_cpus=0)
def shared_memory() -> str:
    return os.environ["SHOAL_SHARED_MEMORY"]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def ask(node: Node) -> str:
    """What a task on that node says."""
    there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return ray.get(shared_memory.options(scheduling_strategy=there).remote(), timeout=30)


def listens_outside(lab: LightLab) -> list[str]:
    connections = (one for node in lab.nodes for process in node.processes() for one in process.net_connections("inet"))
    addresses = [one.laddr.ip.removeprefix("::ffff:") for one in connections if one.status == "LISTEN"]
    assert len(addresses) >= 2 * len(lab.nodes)
    return [address for address in addresses if address not in ("127.0.0.1", "::1")]


def test_nodes_are_separate_killed_frozen_and_added() -> None:
    with light_cluster(cpus=[1, 1]) as lab:
        head, other = lab.nodes
        assert listens_outside(lab) == []
        echo = other.run(["sh", "-c", "echo $RAY_ADDRESS $SHOAL_SHARED_MEMORY"], stdout=subprocess.PIPE, text=True)
        assert echo.communicate()[0].split() == [lab.address, str(other.shared_memory)]
        sleeper = other.run(["sleep", "600"])
        with lab.connected():
            assert alive() == {head.node_id, other.node_id}
            assert [ask(node) for node in lab.nodes] == [str(node.files) for node in lab.nodes]
            other.freeze()
            assert {process.status() for process in other.processes()} == {psutil.STATUS_STOPPED}
            other.thaw()
            assert ask(other) == str(other.shared_memory)
            other.kill()
            assert other.processes() == [] and sleeper.poll() is not None
            wait_until(lambda: alive() == {head.node_id})
            third = lab.add_node(cpus=1, resources={"extra": 1})
            assert alive() == {head.node_id, third.node_id} and ray.cluster_resources()["extra"] == 1
        lab.kill_head_services()
        wait_until(lambda: not any(one.name() == "gcs_server" for one in head.processes()))
        assert any(process.name() == "raylet" for process in head.processes())
        left = [process for node in lab.nodes for process in node.processes()]
    assert not any(process.is_running() for process in left)
    assert not any(folder.exists() for folder in lab._folders)


def test_a_lab_that_is_killed_or_fails_leaves_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", HELD], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        process.kill()
    folders = [Path(word) for word in said if not word.isdigit()]
    pids = [int(word) for word in said if word.isdigit()]
    assert len(folders) == 3 and len(pids) > 2
    wait_until(lambda: not any(folder.exists() for folder in folders) and not any(map(psutil.pid_exists, pids)))
    before = set(psutil.Process().children())
    with pytest.raises(RuntimeError, match="did not start"):
        light_cluster(cpus=[-1])
    assert set(psutil.Process().children()) == before
