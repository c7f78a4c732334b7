"""A training run as a user starts it: a process of its own, with Ray under it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]


class Training:
    """A `shoal` command in a process of its own."""

    def __init__(self, out: Path, *arguments: str) -> None:
        self.out = out
        self._log = (out / f"log_{time.time_ns()}.txt").open("w+")
        command = [sys.executable, "-m", "shoal", *arguments]
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=out,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # a process group of its own, as a shell gives it
        )
        self.family: set[psutil.Process] = set()

    @property
    def run(self) -> Path:
        return self.out / "runs" / "latest"

    @property
    def output(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def text(self) -> str:
        """The output without the terminal's line breaks."""
        return " ".join(self.output.split())

    def read(self, name: str) -> dict[str, Any]:
        path = self.run / name
        return json.loads(path.read_text()) if path.exists() else {}

    def pids(self) -> dict[str, int]:
        return self.read("processes.json")

    def wait_for(self, condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
        """Polls until something holds, and remembers every process the run ever had."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is None:
                self.family |= set(psutil.Process(self.process.pid).children(recursive=True))
            if value := condition():
                return value
            assert self.process.poll() is None or condition(), f"ended before {what}:\n{self.output}"
            time.sleep(0.3)  # looking at all processes costs time that the run needs
        raise AssertionError(f"no {what} within {seconds} s:\n{self.output}")

    def service(self, name: str) -> psutil.Process:
        """One of Ray's own processes: raylet or gcs_server."""
        return next(p for p in psutil.Process(self.process.pid).children() if p.name() == name)

    def ray_option(self, name: str) -> str:
        """What the run's raylet was started with."""
        words = " ".join(self.service("raylet").cmdline()).replace("=", " ").split()
        return words[words.index(f"--{name}") + 1]

    @property
    def ray_folder(self) -> Path:
        """The folder that was made for the run's Ray."""
        return Path(self.ray_option("session-dir")).parents[1]

    def kill_role(self, name: str) -> None:
        """kill -9 of one role; waits until another process has taken its place."""
        before = self.wait_for(lambda: self.pids().get(name), f"process of {name}")
        os.kill(before, signal.SIGKILL)
        self.wait_for(lambda: self.pids().get(name) not in (None, before), f"new {name}")

    def close(self) -> None:
        self._log.close()

    def press_ctrl_c(self) -> None:
        """What a terminal does: SIGINT to every process of the group, Ray's included."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, seconds: float = 180) -> int:
        self.wait_for(lambda: self.process.poll() is not None, "end", seconds)
        return int(self.process.returncode)

    def survivors(self, seconds: float = 20) -> list[str]:
        """What is still running of all the processes the run ever had."""
        deadline = time.monotonic() + seconds
        while True:
            alive = [p for p in self.family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            if not alive or time.monotonic() > deadline:
                return [" ".join(p.cmdline())[:80] for p in alive]
            time.sleep(0.2)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def start(*arguments: str) -> Training:
        started.append(Training(tmp_path, *arguments))
        return started[-1]

    yield start
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
        training.process.wait()
        training.close()
        for process in training.family:
            if process.is_running():
                process.kill()
