"""Ends what a killed driver leaves behind: `python -m shoal.runtime.watchdog DRIVER_PID FOLDER MARK`.

A driver killed with -9 cannot clean up, and some of Ray's helper processes outlive it by minutes. This small process
ends those that are still there some seconds after the driver died or failed. It knows them in two ways, because each
misses some: it notes the driver's descendants while the run lasts (its standard input stays open), and it looks for a
mark in their environment. A worker that Ray started in the driver's last second was never noted but bears the mark;
Ray's agents have overwritten the memory where their mark was, but they are old and noted. Children that the driver had
before the run are left alone, and so is what the same driver starts after it: each run has a mark of its own. Last, it
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
"""How often to look again: a process that is being ended may have started another."""
MARK = "SHOAL_DRIVER"
"""The environment variable every process of a run inherits: which run."""


@contextlib.contextmanager
def watched(pid: int, folder: Path) -> Iterator[None]:
    """Keeps a watchdog beside this process.

    Args:
        pid: this process.
        folder: made for the run; removed when this process can no longer do it.
    """
    mark = f"{pid}-{folder.name}"
    earlier = (str(child.pid) for child in psutil.Process(pid).children())
    command = [sys.executable, "-m", "shoal.runtime.watchdog", str(pid), str(folder), mark, *earlier]
    dog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = mark
    try:
        yield
    except BaseException:
        _close(dog)  # what is left of the run is ended by the watchdog
        threading.Thread(target=dog.wait, daemon=True).start()  # else it stays as a zombie
        raise
    finally:
        del os.environ[MARK]
    dog.kill()  # the run has cleaned up itself
    dog.wait()
    _close(dog)


def _close(dog: subprocess.Popen[bytes]) -> None:
    assert dog.stdin is not None
    dog.stdin.close()


def remove_folder(folder: Path) -> None:
    """Removes it, also while the last of those who write there are ending."""
    deadline = time.monotonic() + GRACE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main(pid: int, folder: Path, mark: str, earlier: set[int]) -> None:
    """Watches until standard input ends, which is when the run does."""
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
    """Whether standard input ends within so many seconds."""
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
    """What still runs of the noted processes and of those that bear the mark."""
    alive = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            noted = process in family  # the process itself, not another that was given its number
            if process.status() != psutil.STATUS_ZOMBIE and (noted or _mark_of(process) == mark):
                alive.add(process)
    return alive


def _mark_of(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(MARK)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], {int(number) for number in sys.argv[4:]})
