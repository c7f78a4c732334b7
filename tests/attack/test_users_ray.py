"""Training inside a program that uses Ray itself: its Ray and its actors stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.conftest import ROOT

pytestmark = pytest.mark.attack

PROGRAM = """
import json, os, signal, time
import psutil
import ray

ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=os.environ["SHORT"])
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
        return str(train(**settings).path)

def train(env="CartPole-v1", actors=1, **more):
    small = {"replay.capacity": 2000, "replay.min_size": 200, "evaluation.episodes": 1, **more}
    return shoal.train(env, runtime="ray", actors=actors, steps=600, quiet=True, settings=small)

def refusal(**settings):
    try:
        train(**settings)
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
    "here": train().summary.status,
    "too few": refusal(actors=5),
    "failed": refusal(env="tests.fakes:TestCorridor-v0", **{"env.kwargs": {"fail_at": 40}, "actor.on_env_error": "stop"}),
    "crashed": refusal(env="tests.cli.broken_env:Unbuildable-v0"),
    "in an actor": shoal.load(ray.get(Trial.remote().train.remote())).summary.status,
}
time.sleep(8)  # longer than the watchdog waits before it ends what a failed run leaves
said |= {
    "same": state() == before and raylet.is_running(),
    "count": ray.get(counter.add.remote(), timeout=30),
    "free": settled(),
    "mark": os.environ.get("SHOAL_DRIVER"),
}
print(json.dumps(said))
"""
