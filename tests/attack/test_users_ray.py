"""Training inside a program that uses Ray itself: its Ray and its actors stay as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.faults.conftest import ROOT

pytestmark = pytest.mark.attack

PROGRAM = """
import json, signal, sys, time
import psutil
import ray

ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=sys.argv[1],
         object_store_memory=100 * 2**20)
import shoal
from shoal.errors import ShoalError

@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

@ray.remote(num_cpus=0)
class Trial:
    def train(self, **settings):
        return str(train(**settings).path.resolve())

def train(env="CartPole-v1", actors=1, **more):
    small = {"algo": "apex-dqn", "replay.capacity": 2000, "replay.min_size": 200, "evaluation.episodes": 1, **more}
    return shoal.train(env, runtime="ray", actors=actors, steps=600, quiet=True, settings=small)

def refusal(*env, **settings):
    try:
        train(*env, **settings)
    except ShoalError as error:
        return str(error)

def state():
    return ray.is_initialized(), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

def settled():
    deadline = time.monotonic() + 30  # what is killed is not gone at once
    while ray.available_resources().get("CPU", 0) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    return ray.available_resources()["CPU"]

counter = Counter.remote()
ray.get(counter.add.remote())
before = state()
raylet = next(p for p in psutil.Process().children() if p.name() == "raylet")
said = {
    "here": train(address=ray.get_runtime_context().gcs_address).summary.status,
    "elsewhere": refusal(address="127.0.0.1:1"),
    "too few": refusal(actors=5),
    "failed": refusal("tests.fakes:TestCorridor-v0", **{"env.kwargs": {"fail_at": 40}, "actor.on_env_error": "stop"}),
    "in an actor": shoal.load(ray.get(Trial.remote().train.remote())).summary.status,
}
said |= {
    "same": state() == before and raylet.is_running(),
    "count": ray.get(counter.add.remote(), timeout=30),
    "free": settled(),
}
print(json.dumps(said))
"""


def test_the_users_ray_is_joined_and_left_as_it_was(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:  # sockets need a short path
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        environment = {**os.environ, "PYTHONPATH": paths, "HOME": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM, short]
        program = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert program.returncode == 0, program.stderr
    said = json.loads(program.stdout.splitlines()[-1])
    assert said["here"] == said["in an actor"] == "finished"
    assert "'127.0.0.1:1', but this process is connected to the Ray at" in said["elsewhere"]
    assert "Leave address out" in said["elsewhere"]
    assert "7 roles need 7 CPUs" in said["too few"] and "has 6 CPUs" in said["too few"]
    assert "the simulator crashed" in said["failed"]
    assert said["same"] is True and said["count"] == 2 and said["free"] == 6
