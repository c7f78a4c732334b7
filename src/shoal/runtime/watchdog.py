"""Kills what a killed driver leaves behind: `python -m shoal.runtime.watchdog DRIVER_PID FOLDER MARK`.

A driver killed with -9 cannot clean up, and some of Ray's helper processes outlive it by minutes. This small process
kills those that still run some seconds after the driver died or failed. It finds them in two ways, because each misses
some. During the run (while its standard input is open) it notes the driver's descendants. Afterwards it looks for a
mark in the environment of every process. A worker that Ray started in the driver's last second was not noted but has
the mark; Ray's agents have overwritten the memory of their mark, but they are old and were noted. Children that the
driver had before the run are left alone, and so is what it starts after the run: each run has its own mark. Finally it
removes the folder of the run's Ray.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

LOOK_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""Time for the descendants to notice by themselves and stop cleanly."""
ROUNDS = 3
"""How often to look again: a process may start another while it is being killed."""
MARK = "SHOAL_DRIVER"
"""The environment variable that names the run; every process of the run inherits it."""


@contextlib.contextmanager
def watched(pid: int, folder: Path) -> Iterator[None]:
    """Runs a watchdog for this process.

    Args:
        pid: this process.
        folder: made for the run; the watchdog removes it if this process cannot.
    """
    mark = f"{pid}-{folder.name}"
    earlier = (str(child.pid) for child in psutil.Process(pid).children())
    command = [sys.executable, "-m", "shoal.runtime.watchdog", str(pid), str(folder), mark, *earlier]
    dog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = mark
    try:
        yield
    except BaseException:
        _close(dog)  # the watchdog kills what is left of the run
        threading.Thread(target=dog.wait, daemon=True).start()  # otherwise it stays a zombie
        raise
    finally:
        del os.environ[MARK]
    dog.kill()  # the run has cleaned up
    dog.wait()
    _close(dog)


def _close(dog: subprocess.Popen[bytes]) -> None:
    assert dog.stdin is not None
    dog.stdin.close()


def remove_folder(folder: Path) -> None:
    """Removes a folder into which processes that are ending may still write."""
    deadline = time.monotonic() + GRACE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main(pid: int, folder: Path, mark: str, earlier: set[int]) -> None:
    """Watches until standard input is closed, which happens when the run ends."""
    family: set[psutil.Process] = set()
    earlier |= {os.getpid()}
    while True:
        seen = _descendants(pid, earlier)
        if _ended(0):
            break  # some of those just seen may be the driver's next run
        family |= seen
        if _ended(LOOK_SECONDS):
            break
    for _ in range(ROUNDS):
        _wait(family, mark)
        for process in _alive(family, mark):
            with contextlib.suppress(psutil.Error):
                process.kill()
    remove_folder(folder)


def _ended(seconds: float) -> bool:
    """Whether standard input is closed within this time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _descendants(pid: int, earlier: set[int]) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            if child.pid not in earlier:
                found |= {child, *child.children(recursive=True)}
    return found


def _wait(family: set[psutil.Process], mark: str) -> None:
    # Not psutil.wait_procs: it would wait for zombies too, and for no process that is only starting now.
    deadline = time.monotonic() + GRACE_SECONDS
    while _alive(family, mark) and time.monotonic() < deadline:
        time.sleep(0.2)


def _alive(family: set[psutil.Process], mark: str) -> set[psutil.Process]:
    """Noted processes and processes with the mark that still run."""
    alive = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            noted = process in family  # compares start times too: a process id may be reused
            if process.status() != psutil.STATUS_ZOMBIE and (noted or _mark_of(process) == mark):
                alive.add(process)
    return alive


def _mark_of(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], {int(number) for number in sys.argv[4:]})
