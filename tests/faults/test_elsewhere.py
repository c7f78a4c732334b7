"""Runs whose home is another node: two raylets of this machine, of which the first is too small for a learner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import torch
from tests.faults.conftest import ROOT, Training

pytestmark = pytest.mark.faults
Start = Callable[..., Training]
SMALL = ("cartpole_apex_dqn", "--actors", "1", "evaluation.every_steps=1000000", "stop.mean_return=null")

# 127.0.0.2: Ray takes 127.0.0.1 for this machine's outer address, where a cluster on loopback does not listen.
CLUSTER = """
import sys
import ray._private.utils
from ray.cluster_utils import Cluster

ray._private.utils.write_ray_address = lambda *_: None  # what `auto` means on this machine stays as it is
node = {"node_ip_address": "127.0.0.2", "object_store_memory": 80 * 2**20, "temp_dir": sys.argv[1]}
cluster = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=4, num_gpus=1, **node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a cluster, and the process that holds it."""
    paths, folder = os.pathsep.join((str(ROOT / "src"), str(ROOT))), tempfile.mkdtemp(prefix="shoal-", dir="/tmp")
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": paths}  # for Ray's workers, too
    command = [sys.executable, "-c", CLUSTER, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        with subprocess.Popen(command, text=True, env=environment, **pipes) as cluster:
            assert cluster.stdout is not None
            yield cluster.stdout.readline().strip(), cluster
            cluster.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def address(nodes: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The cluster's; after the test, none of the run's processes is left on it."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    found, cluster = nodes
    yield found
    deadline, left = time.monotonic() + 20, ["?"]
    while left and time.monotonic() < deadline:
        time.sleep(0.3)
        names = [name_of(process) for process in psutil.Process(cluster.pid).children(recursive=True)]
        left = [name for name in names if name.startswith(("ray::Home", "ray::Host"))]
    assert left == []


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def lines(training: Training) -> int:
    """Lines of metrics that tell of learning."""
    metrics = training.run / "metrics.jsonl"
    return metrics.read_text().count('"train/loss"') if metrics.exists() else 0


def test_a_run_needs_nobody_who_looks_on_and_is_found_again(train: Start, address: str) -> None:
    first = train("train", *SMALL, "--address", address)
    first.wait_for(lambda: lines(first), "metrics")
    assert "the run is supervised there" in first.text
    first.process.kill()
    first.process.wait()
    written = lines(first)
    second = train("attach", "runs/latest")
    second.wait_for(lambda: lines(first) > written and "steps/s" in second.output, "more metrics")
    second.press_ctrl_c()
    assert second.end(60) == 0, second.output
    assert "Interrupted: apex-dqn on CartPole-v1" in second.output
    summary = first.read("summary.json")
    assert summary["status"] == "interrupted" and summary["updates"] > 0
    assert list((first.run / "checkpoints").glob("step_*"))

    third = train("resume", "runs/latest")
    third.wait_for(lambda: "collected steps in the replay" in third.text, "a resumed run")
    fourth = train("stop", "runs/latest")
    assert fourth.end(60) == 0 and third.end(60) == 0, fourth.output + third.output
    assert "Interrupted" in third.output and "Interrupted" in fourth.output  # both saw the end


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_the_gpu_is_looked_for_where_ray_has_one_and_an_error_there_is_told_here(train: Start, address: str) -> None:
    training = train("train", *SMALL, "--address", address, "--device", "cuda")
    assert training.end(60) == 2, training.output
    assert "the run is supervised there" in training.text
    assert "learner.device = 'cuda', but this machine has no usable GPU" in training.text
    assert "Traceback" not in training.output
    assert training.read("summary.json")["status"] == "failed"


def test_what_no_node_has_is_named(train: Start, address: str) -> None:
    training = train("train", *SMALL, "--address", address, "--actors", "5", "learners=5")
    assert training.end(30) == 1
    assert "need 6 free CPUs on one node" in training.text and "has 4 CPUs and 1 GPUs" in training.text
    assert training.read("summary.json")["status"] == "failed"
    late = train("attach", "runs/latest")
    assert late.end(30) == 2 and "is not running: it has ended (failed)" in late.text
