"""A `shoal` command on a node of a lab, and what can be seen of its run from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from tests.lab.nodes import Lab, Node

from shoal.replay import Ledger, ShardReader

ROOT = Path(__file__).parents[2]


class LabTraining:
    """A run whose home is the node on which the command is typed; in the light form always the head."""

    def __init__(self, lab: Lab, home: Node, out: Path, *arguments: str) -> None:
        self.lab, self.home, self.out = lab, home, out
        self.log = out / f"log_{time.time_ns()}.txt"
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        command = [sys.executable, "-m", "shoal", *arguments]
        with self.log.open("w") as log:
            options: dict[str, Any] = {"cwd": out, "stdout": log, "stderr": subprocess.STDOUT}
            self.command = home.run(command, env={"PYTHONPATH": paths}, **options)

    # ---- what it says

    @property
    def run(self) -> Path:
        return self.out / "runs" / "latest"

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def text(self) -> str:
        """The output without the terminal's line breaks."""
        return " ".join(self.output.split())

    def read(self, name: str) -> dict[str, Any]:
        path = self.run / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 60.0) -> float:
        """Polls until something holds; returns how long that took."""
        began = time.monotonic()
        while not condition():
            took = time.monotonic() - began
            assert took < seconds, f"no {what} within {seconds:.0f} s:\n{self.output}"
            assert self.command.poll() is None or condition(), f"ended before {what}:\n{self.output}"
            time.sleep(0.1)
        return time.monotonic() - began

    def end(self, seconds: float = 60.0) -> int:
        self.wait_for(lambda: self.command.poll() is not None, "end", seconds)
        return int(self.command.returncode)

    def press_ctrl_c(self) -> None:
        self.home.signal(self.command, signal.SIGINT)

    # ---- its folders

    @property
    def replay(self) -> Path | None:
        """Home's replay folder, as seen from this process."""
        path = self.read("replay.json").get("path")
        return None if path is None else self._seen(self.home, Path(path))

    def outposts(self) -> dict[int, tuple[Node, Path]]:
        """Node and folder of each outpost."""
        nodes = {node.node_id: node for node in self.lab.nodes}
        sites = [site for site in self.read("nodes.json").get("sites", ()) if site["outpost"] is not None]
        return {site["outpost"]: self._place(nodes[site["node"]], Path(site["path"])) for site in sites}

    def ledger(self) -> Ledger | None:
        replay = self.replay
        shards = sorted(replay.glob("shard_???")) if replay is not None else []
        return Ledger(replay, shards) if replay and shards and (replay / "ledger.bin").exists() else None

    def steps(self) -> int:
        ledger = self.ledger()
        return 0 if ledger is None else ledger.env_steps

    def outpost_steps(self) -> int:
        """Steps that the outposts' own shards count."""
        return sum(reader.steps for reader in self.shards().values())

    def shards(self) -> dict[int, ShardReader]:
        """The actors' own shards on the outposts, by actor."""
        found = {}
        for _, path in self.outposts().values():
            for folder in path.glob("shard_???"):
                if (folder / "schema.json").exists():
                    found[int(folder.name[6:])] = ShardReader(folder)
        return found

    def wait_for_start(self, steps: int = 1500, seconds: float = 120.0) -> None:
        """Waits until all outposts send rows."""
        self.wait_for(lambda: self.steps() >= steps and all(self._mirrored()), "steps of every outpost", seconds)

    def _mirrored(self) -> list[int]:
        """Rows of each outpost's shard that are at home."""
        replay = self.replay
        assert replay is not None
        return [ShardReader(replay / f"shard_{actor:03d}").head for actor in self.shards()]

    def wait_for_steps(self, more: int, after: str, seconds: float = 60.0) -> float:
        """Waits until so many more steps are counted at home; returns how long that took."""
        before = self.steps()
        return self.wait_for(lambda: self.steps() >= before + more, f"steps after {after}", seconds)

    # ---- its processes

    def role(self, name: str) -> psutil.Process:
        """A role at home, by name, once it is built."""
        self.wait_for(lambda: self._role(name), f"process of the {name}")
        return self._role(name)[0]

    def _role(self, name: str) -> list[psutil.Process]:
        pid = self.read("processes.json").get(name, -1)
        return [one for one in self.home.processes() if pid in (one.pid, _inner_pid(one))]

    def roles_on(self, node: Node) -> list[psutil.Process]:
        return _named(node, "ray::Host")

    def courier_on(self, node: Node) -> psutil.Process | None:
        return next(iter(_named(node, "ray::Courier")), None)

    def left_running(self, seconds: float = 10.0) -> list[str]:
        """Processes of the run that still are on any node."""
        deadline = time.monotonic() + seconds
        while True:
            found = [
                one for node in self.lab.nodes for word in ("Host", "Courier") for one in _named(node, f"ray::{word}")
            ]
            if not found or time.monotonic() > deadline:
                return [f"{one.pid} {one.name()}" for one in found]
            time.sleep(0.1)

    def _place(self, node: Node, path: Path) -> tuple[Node, Path]:
        return node, self._seen(node, path)

    @staticmethod
    def _seen(node: Node, path: Path) -> Path:
        """A path on a node as seen from this process."""
        memory = node.shared_memory
        return node.files / path.relative_to(memory) if path.is_relative_to(memory) else path


def _named(node: Node, word: str) -> list[psutil.Process]:
    found = []
    for one in node.processes():
        with suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE and " ".join(one.cmdline()).startswith(word):
                found.append(one)
    return found


def _inner_pid(process: psutil.Process) -> int | None:
    """Its number in its own namespace."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None
