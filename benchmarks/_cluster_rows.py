"""A lab of two nodes whose rows are mirrored, writers for it, and plain TCP beside it; for benchmarks/cluster.py.

Writers have no environments: they repeat frames of Pong. They and the watching process are outside of the lab's
nodes, and reach the nodes' shared memory as files, so that one clock measures both ends of a row's way.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _harness import say

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ACTORS, LANES, STEPS = 4, 16, 50_000
CHUNK = 8
"""Rows of all lanes that a writer adds at a time; paced ones add one."""
PLAYED = 128
"""Rows that differ; longer than what a codec looks back."""
AHEAD = 24 * 2**20
"""Bytes that writers at full speed are ahead of the mirrors at most: no row is lost."""
RECEIVE = """
import socket
server = socket.create_server(("", 7777))
print("up", flush=True)
connection, _ = server.accept()
buffer = memoryview(bytearray(2**23))
while connection.recv_into(buffer):
    pass
"""
SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 7777))
data, seconds = bytes(2**23), float(sys.argv[2])
connection.sendall(data)
start, sent = time.perf_counter(), 0
while (took := time.perf_counter() - start) < seconds:
    connection.sendall(data)
    sent += len(data)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(sent / 1e6 / (time.perf_counter() - start))
"""


def pong_frames() -> Any:
    """Frames [PLAYED, LANES, 84, 84] of random play, as an actor writes them."""
    from _cluster_home import make_rows_plan

    from shoal.envs import make_env

    settings, rng, frames = make_rows_plan(1, LANES, 4096, []).settings, np.random.default_rng(0), []
    env = make_env(settings.env, LANES, 1)
    env.reset()
    for _ in range(60 + PLAYED):  # the first second of a game shows little
        frames.append(env.step(rng.integers(0, 6, LANES)).obs[:, -1].copy())
    env.close()
    return np.stack(frames[-PLAYED:])


def columns(frames: Any) -> dict[str, Any]:
    """A chunk of a shard, [rows, lanes, ...]."""
    rng, shape = np.random.default_rng(0), frames.shape[:2]
    terminated = rng.random(shape) < 0.005
    boundary = np.zeros(shape, np.uint8)
    boundary[1:] = terminated[:-1]
    return {
        "obs": frames,
        "action": rng.integers(0, 6, shape),
        "reward": rng.random(shape, dtype=np.float32),
        "terminated": terminated,
        "truncated": np.zeros(shape, np.bool_),
        "boundary": boundary,
        "weights_version": np.ones(shape, np.uint32),
        "priority": rng.random(shape, dtype=np.float32),
    }


def _write(shards: Sequence[Path], mirrors: Sequence[Path], frames: Any, go: Any, pace: Any) -> None:
    """A writer of all these shards, while `go` is 1; ends when it is 2. `pace`: steps per second, 0 for no limit."""
    from shoal.replay import ShardReader, ShardWriter

    writers, seen = [ShardWriter(path) for path in shards], [ShardReader(path) for path in mirrors]
    played, lanes, at = columns(frames), writers[0].info.lanes, 0
    room = AHEAD // (len(writers) * writers[0].info.schema.bytes_per_step * lanes)
    due = time.perf_counter()
    while go.value != 2:
        rate, now, wrote = pace.value, time.perf_counter(), False
        if go.value == 1 and (not rate or now >= due):
            size = 1 if rate else CHUNK
            for number, (writer, mirror) in enumerate(zip(writers, seen or [None] * len(writers), strict=True)):
                begin = (at + number * PLAYED // len(writers)) % PLAYED  # else actors would write the same frames
                begin = min(begin, PLAYED - size)
                chunk = {name: column[begin : begin + size] for name, column in played.items()}
                if rate or mirror is None or writer.head - mirror.head < room:
                    writer.append_chunk(chunk)
                    wrote = True
            at = (at + size) % PLAYED
            due = max(due, now - 0.1) + len(writers) * lanes / (rate or 1e9)
        if not wrote:
            time.sleep(0.0005)


class Writers:
    """Processes without environments that fill shards."""

    def __init__(self, shards: Sequence[Path], mirrors: Sequence[Path], frames: Any, processes: int = 1) -> None:
        """Args:
        shards: to fill.
        mirrors: of them, which writers at full speed wait for; empty: nothing to wait for.
        frames: what they write.
        processes: that share the shards.
        """
        context = multiprocessing.get_context("spawn")
        self._go, self._pace = context.Value("i", 0, lock=False), context.Value("d", 0.0, lock=False)
        self._all = []
        for one in range(processes):
            mine = (shards[one::processes], mirrors[one::processes], frames, self._go, self._pace)
            self._all.append(context.Process(target=_write, args=mine, daemon=True))
            self._all[-1].start()

    @property
    def pids(self) -> list[int]:
        return [int(one.pid or 0) for one in self._all]

    @contextmanager
    def writing(self, pace: float = 0.0) -> Iterator[None]:
        """Write, all together so many steps per second."""
        self._pace.value, self._go.value = pace / len(self._all), 1
        try:
            yield
        finally:
            self._go.value = 0

    def close(self) -> None:
        self._go.value = 2
        for one in self._all:
            one.join(5)


@dataclass
class Flow:
    """What was measured while rows flowed."""

    mb_per_second: float
    steps_per_second: float
    lag: float
    """Age of the oldest row that is not mirrored, in seconds: the median of all looks."""
    worst_lag: float
    calls_per_1000: float
    cpu: dict[str, float]
    """Seconds of a core per second, by process."""
    carried: float
    """MB/s on the way, as the role counts them."""


class Rig:
    """Two nodes, the mirrors between them, and writers on the second."""

    def __init__(self, frames: Any, extra: Sequence[str] = (), actors: int = ACTORS) -> None:
        from tests.lab import namespaces

        self.actors = actors
        self.lab = namespaces(cpus=[2, 2], object_store=200 * 2**20)
        self.home, self.outpost = self.lab.nodes
        self.reports: deque[dict[str, Any]] = deque(maxlen=4000)
        try:
            given = {"actors": actors, "lanes": LANES, "steps": STEPS, "extra": list(extra)}
            given["node"] = self.outpost.node_id
            script = str(Path(__file__).with_name("_cluster_home.py"))
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._driver = self.home.run([sys.executable, script, json.dumps(given)], **pipes)
            told = json.loads(self._driver.stdout.readline() or "{}")
            if not told:
                raise RuntimeError("Home did not start; see its words above.")
            self.mirrors = self._shards(self.home, told["home"])
            self.shards = self._shards(self.outpost, told["outpost"])
            self.folder = self.home.files / Path(told["home"]).name
            threading.Thread(target=self._listen, daemon=True).start()
            self.writers = Writers(self.shards, self.mirrors, frames)
            self._wait_for_courier()
        except BaseException:
            self.lab.close()
            raise

    def _wait_for_courier(self) -> None:
        from shoal.replay import ShardReader

        mirror, deadline = ShardReader(self.mirrors[0]), time.monotonic() + 60
        with self.writers.writing():
            while not mirror.head:
                if time.monotonic() > deadline:
                    raise RuntimeError("No row was mirrored within 60 s.")
                time.sleep(0.05)
            time.sleep(2.0)  # every page is touched once

    def _shards(self, node: Any, path: str) -> list[Path]:
        folder = node.files / Path(path).relative_to(node.shared_memory)
        return [folder / f"shard_{actor:03d}" for actor in range(self.actors)]

    def _listen(self) -> None:
        for line in self._driver.stdout:
            self.reports.append(json.loads(line))

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.writers.close()
        self._driver.stdin.close()
        self._driver.wait(30)
        self.lab.close()

    def tcp(self, seconds: float) -> float:
        """MB/s of one plain connection."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
        receiver = self.home.run([sys.executable, "-c", RECEIVE], **pipes)
        assert receiver.stdout is not None and receiver.stdout.readline() == "up\n"
        sender = self.outpost.run([sys.executable, "-c", SEND, self.home.ip, str(seconds)], **pipes)
        rate = float(sender.communicate()[0])
        receiver.communicate()
        return rate

    def flow(self, seconds: float, pace: float = 0.0, settle: float = 1.0) -> Flow:
        """Lets rows flow, and watches both ends."""
        from shoal.replay import ShardReader

        ours = [ShardReader(path) for path in self.mirrors]
        theirs = [ShardReader(path) for path in self.shards]
        row_bytes = ours[0].info.schema.bytes_per_step * LANES
        written: deque[tuple[float, int]] = deque()
        lags: list[float] = []
        with self.writers.writing(pace):
            time.sleep(settle)
            self.reports.clear()
            cpu = self._cpu()
            began, first = time.perf_counter(), sum(one.head for one in ours)
            while (now := time.perf_counter()) - began < seconds:
                written.append((now, sum(one.head for one in theirs)))
                here = sum(one.head for one in ours)
                while written and written[0][1] <= here:
                    written.popleft()
                lags.append(now - written[0][0] if written else 0.0)
                time.sleep(0.004)
            rows, took = sum(one.head for one in ours) - first, time.perf_counter() - began
            spent = self._cpu()
        deadline = time.perf_counter() + 20
        while sum(one.head for one in ours) < sum(one.head for one in theirs) and time.perf_counter() < deadline:
            time.sleep(0.01)
        told = list(self.reports)
        calls, steps = sum(one["calls"] for one in told), LANES * max(1, sum(one["rows"] for one in told))
        carried = sum(one["bytes"] for one in told) / max(1e-9, sum(one["seconds"] for one in told))
        if told and told[-1]["lost"]:
            say(f"  {told[-1]['lost']} rows were lost")
        return Flow(
            rows * row_bytes / 1e6 / took,
            rows * LANES / took,
            statistics.median(lags),
            max(lags),
            1000 * calls / steps,
            {name: (spent[name] - before) / took for name, before in cpu.items()},
            carried / 1e6,
        )

    def _cpu(self) -> dict[str, float]:
        """Seconds of CPU time so far: home's role and raylet, the outpost's courier and raylet, the writers."""
        found = dict.fromkeys(("role", "home's raylet", "courier", "outpost's raylet", "writers"), 0.0)
        for node, raylet in ((self.home, "home's raylet"), (self.outpost, "outpost's raylet")):
            for process in node.processes():
                line = " ".join(process.cmdline()[:2])
                name = raylet if process.name() == "raylet" else "courier" if "Courier" in line else None
                name = "role" if "_cluster_home" in line and node is self.home else name
                if name:
                    found[name] += sum(process.cpu_times()[:2])
        found["writers"] = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.writers.pids)
        return found


def cut_flow(rig: Rig, seconds: float, rounds: int, measure: Callable[[], Flow]) -> list[tuple[float, Flow]]:
    """Plain TCP and mirrored rows in turn."""
    found = []
    for number in range(rounds):
        found.append((rig.tcp(seconds), measure()))
        tcp, flow = found[-1]
        cpu = ", ".join(f"{name} {value:.2f}" for name, value in flow.cpu.items())
        say(f"  round {number + 1}: TCP {tcp:,.0f} MB/s, rows {flow.mb_per_second:,.0f} MB/s; cores: {cpu}")
    return found
