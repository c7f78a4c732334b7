"""ProcessId: one process of one machine, distinct from a later one with the same number."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil


@dataclass(frozen=True)
class ProcessId:
    """`started` counts from the machine's start, where that is known, so that setting the clock does not change it."""

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
        """Whether its number is valid here: same machine, not restarted since, same container."""
        return self.machine == _machine()

    @property
    def lives(self) -> bool:
        """Whether it runs or is suspended. False for processes elsewhere: ask `here` first."""
        return self.here and _started(self.pid) == self.started


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
