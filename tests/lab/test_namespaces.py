"""The namespace form: own networks that can be cut and limited, own shared memory, and no trace afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.lab import NamespaceLab, NamespaceNode, namespaces, unavailable

REASON = unavailable()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
HASTY = {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
"""Finds a silent node in seconds."""
DRIVER = """
import os, sys, time, ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(ray.get_runtime_context().get_node_id(), os.listdir("/dev/shm"), flush=True)
living = None
while True:
    now = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    if now != living:
        print("alive", *now, flush=True)
    living = now
    time.sleep(0.1)
"""
SERVE = "import socket; s = socket.create_server(('', 7777)); print('up', flush=True); c, _ = s.accept(); c.recv(9)"
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 7777), timeout=1)"
SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7777))
connection.sendall(bytes(4 * 2**20))
"""
RECEIVE = """
import socket, time
server = socket.create_server(("", 7777))
print("up", flush=True)
connection, _ = server.accept()
start = time.perf_counter()
while connection.recv(2**20):
    pass
print(time.perf_counter() - start)
"""


Python = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def python() -> Iterator[Python]:
    """Runs code on a node; its pipes are closed at the end."""
    with ExitStack() as stack:

        def start(node: NamespaceNode, code: str, *args: str) -> subprocess.Popen[str]:
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            return stack.enter_context(node.run([sys.executable, "-c", code, *args], text=True, **pipes))

        yield start


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (said := process.stdout.readline()).strip() != line:
        assert said, process.stderr and process.stderr.read()


def living(*nodes: NamespaceNode) -> str:
    return " ".join(["alive", *sorted(node.node_id for node in nodes)])


def send_seconds(python: Python, lab: NamespaceLab) -> float:
    receiver = python(lab.nodes[0], RECEIVE)
    read_until(receiver, "up")
    assert python(lab.nodes[1], SEND, lab.nodes[0].ip).wait(60) == 0
    return float(receiver.communicate()[0])


def test_nodes_die_are_cut_off_and_join(python: Python) -> None:
    interfaces, mounts = sorted(Path("/sys/class/net").iterdir()), Path("/proc/mounts").read_text()
    with namespaces(cpus=[1, 1, 1], settings=HASTY) as lab:
        head, second, third = lab.nodes
        (second.files / "mark").touch()
        driver = python(second, DRIVER)
        read_until(driver, f"{second.node_id} ['mark']")
        read_until(driver, living(head, second, third))
        third.kill()
        assert third.processes() == []
        read_until(driver, living(head, second))
        fourth = lab.add_node(cpus=1)
        read_until(driver, living(head, second, fourth))
        watcher = python(head, DRIVER)
        read_until(watcher, living(head, second, fourth))
        second.cut()
        read_until(watcher, living(head, fourth))
        head.signal(watcher, signal.SIGTERM)
        assert watcher.wait(20) != 0
        left = [process for node in lab.nodes for process in node.processes()]
    assert driver.poll() is not None
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)
    assert sorted(Path("/sys/class/net").iterdir()) == interfaces and Path("/proc/mounts").read_text() == mounts
    assert not lab.folder.exists()


def test_the_network_is_cut_mended_and_limited(python: Python) -> None:
    with namespaces(cpus=[1, 1]) as lab:
        head, other = lab.nodes
        server = python(head, SERVE)
        read_until(server, "up")
        other.cut()
        blind = python(other, REACH, head.ip)
        assert blind.wait(20) != 0 and "timed out" in str(blind.communicate()[1])
        other.mend()
        assert python(other, REACH, head.ip).wait(20) == 0
        assert server.wait(20) == 0
        other.limit("40mbit")
        slow = send_seconds(python, lab)
        other.limit(None)
        assert 0.5 < slow < 5.0 and send_seconds(python, lab) < slow
        start = time.monotonic()
        head.freeze()
        head.thaw()
        assert time.monotonic() - start < 5.0
