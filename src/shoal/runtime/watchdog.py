"""Ends what a killed driver leaves behind: `python -m shoal.runtime.watchdog DRIVER_PID`.

A driver killed with -9 cannot clean up, and some of Ray's helper processes outlive it by minutes. This small process
notes the driver's descendants while the run lasts (its standard input stays open) and ends those that are still there
some seconds after it died or failed.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator

import psutil

LOOK_SECONDS = 1.0
GRACE_SECONDS = 5.0
"""Time for the descendants to notice by themselves and end in order."""


@contextlib.contextmanager
def watched(pid: int) -> Iterator[None]:
    """Keeps a watchdog beside this process."""
    command = [sys.executable, "-m", "shoal.runtime.watchdog", str(pid)]
    dog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    except BaseException:
        _close(dog)  # what is left of the run is ended by the watchdog
        raise
    dog.kill()  # the run has cleaned up itself
    dog.wait()
    _close(dog)


def _close(dog: subprocess.Popen[bytes]) -> None:
    assert dog.stdin is not None
    dog.stdin.close()


def main(pid: int) -> None:
    """Watches until standard input ends, which is when the driver does."""
    family: set[psutil.Process] = set()
    alive = True
    while alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            family |= set(psutil.Process(pid).children(recursive=True))
        alive = not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]
    orphans = [process for process in family if process.pid != psutil.Process().pid]
    _, left = psutil.wait_procs(orphans, timeout=GRACE_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
