"""Keeps all processes of one node of a lab: `python keeper.py FOLDERS COMMAND...`.

It prints `up`, waits for the line `go`, runs the command (a `ray start`) and prints its exit status. From then on every
process of the node that loses its parent becomes a child of this one, so that none can escape. When standard input
closes, which happens even if the lab is killed with -9, it ends them all and removes the lab's folders.

Args:
    FOLDERS: to remove at the end, separated by colons.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

SET_CHILD_SUBREAPER = 36  # of prctl(2)
ROUNDS = 100


def main(folders: list[str], command: list[str]) -> None:
    """Runs until standard input closes."""
    ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    print("up", flush=True)
    if sys.stdin.readline() == "go\n":
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        # Only now: before, it would have taken the command's status away from `call`.
        signal.signal(signal.SIGCHLD, _reap)
        _reap()
        print(status, flush=True)
        sys.stdin.read()
    _end_all()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_all() -> None:
    for _ in range(ROUNDS):  # a process may start another while it is being killed
        family = psutil.Process().children(recursive=True)
        if not family:
            return
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)
        _reap()


if __name__ == "__main__":
    main(sys.argv[1].split(":"), sys.argv[2:])
