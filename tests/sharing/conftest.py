"""What the sharing tests have in common: registries, marked runs, and runs in processes of their own."""

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

import pytest

from shoal.replay.storage import folder_bytes
from shoal.sharing import Registry, create_distributed_registry, pool, registry
from shoal.sharing.registry import BUFFER_ID, ENV_ID, REGISTRY, RUN_ID

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("runs_process.py")


class Nursery:
    """Starts and kills runs; each is a real process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, 0
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._alive: dict[int, Path] = {}

    def _ask(self, **command: Any) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, what: str, **options: Any) -> int:
        """A process that runs one of the functions of `runs_process.py`; its number."""
        self._started += 1
        report = self._folder / f"report-{self._started}.json"
        pid = self._ask(do="start", what=what, report=str(report), options=options)
        self._alive[pid] = report
        return pid

    def report(self, pid: int, seconds: float = 60.0) -> dict[str, Any]:
        """What a process has to say, as soon as it does."""
        report, until = self._alive[pid], time.monotonic() + seconds
        while not report.exists():
            error = report.with_suffix(".error")
            assert not error.exists(), error.read_text()
            assert time.monotonic() < until, f"no word from {pid} in {seconds} s"
            time.sleep(0.01)
        said: dict[str, Any] = json.loads(report.read_text())
        return said

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it is gone. Fails when it had died of something else."""
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == -signal.SIGKILL

    def wait(self, pid: int) -> int:
        """The exit code of a process."""
        del self._alive[pid]
        return self._ask(do="wait", pid=pid)

    def clear(self) -> None:
        """Ends whatever a failed test left."""
        for pid in list(self._alive):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)

    def close(self) -> None:
        """Ends the nursery."""
        self.clear()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def _nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    pytest.importorskip("stable_baselines3")
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def nursery(_nursery: Nursery) -> Iterator[Nursery]:
    """Runs in processes of their own, none of which outlives the test."""
    yield _nursery
    _nursery.clear()


@pytest.fixture(autouse=True)
def _no_group_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (REGISTRY, BUFFER_ID, RUN_ID, ENV_ID, "SHOAL_SHARE_STRATEGY", "SHOAL_CROSS_SAMPLE_RATIO"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group() -> Iterator[Registry]:
    """A registry on shared memory whose buffers are sampled from their tenth row on."""
    made = create_distributed_registry(min_buffer_size=10)
    yield made
    made.stop()


@pytest.fixture
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers look for others at every sample, not once a second."""
    monkeypatch.setattr(pool, "REFRESH_SECONDS", 0.0)


@pytest.fixture
def held() -> Callable[[], int]:
    """Says how many bytes of shared memory Shoal holds."""

    def bytes_held() -> int:
        return folder_bytes(registry.sharing_folder("x").parent)

    return bytes_held
