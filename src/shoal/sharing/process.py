"""ProcessId: one process of one machine, told apart from a later one that got the same number."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class ProcessId:
    """`started` counts from the machine's start where that is known: a clock that is set does not change it."""

    machine: str
    pid: int
    started: float

    @staticmethod
    def current() -> ProcessId:
        """This process."""
        pid = os.getpid()
        return ProcessId(_machine(), pid, _started(pid) or 0.0)

    @property
    def here(self) -> bool:
        """Whether its number means something here: same machine, not restarted since, same container."""
        return self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether it is at work, or only suspended. False for processes elsewhere: ask `here` first."""
        return self.here and _started(self.pid) == self.started

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ProcessId:
        """The inverse of `to_json`."""
        return ProcessId(str(data["machine"]), int(data["pid"]), float(data["started"]))


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()


def _started(pid: int) -> float | None:
    """When a process was started; None when it has ended, whether or not its parent has waited for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else float(fields[19])
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError):
        return None
