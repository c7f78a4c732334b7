"""Launcher: starts a process per run and supervises them until the last one has ended.

It knows commands, folders and signals. What a run does, and that runs share rows, it does not know.

    ended = launch(runs, show=table.update, wish=lambda: Wish.GO, on_end=print_what_happened)

Each run has a process group of its own: a terminal's Ctrl-C reaches only the launcher, which tells the runs once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO

from shoal.sharing.live_table import RunRow, read_row

LOG = "log.txt"
STOP_SECONDS, TERMINATE_SECONDS, HURRY_SECONDS = 30.0, 5.0, 2.0
"""Time to save and stop; time after a second signal; time for a user who does not want to wait."""
_LOOK_SECONDS = 0.2


class Wish(IntEnum):
    """What the user wants the runs to do."""

    GO = 0
    STOP = 1
    HURRY = 2


@dataclass(frozen=True)
class PlannedRun:
    """A run to start.

    Attributes:
        name: unique among the runs.
        algorithm: for the table.
        folder: its own, which exists; its output goes to `log.txt` in it.
        command: what is run; SIGTERM stops it.
        environment: all its environment variables.
        target_steps: steps at which it ends; None when it does not end by steps.
        reads: whether it can learn from others' rows.
    """

    name: str
    algorithm: str
    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    target_steps: int | None = None
    reads: bool = True


@dataclass(frozen=True)
class Ended:
    """How a run's process ended. `code` is negative for the signal that ended it."""

    run: PlannedRun
    code: int
    stopped: bool
    """Whether it had been told to stop."""
    why: str = ""
    """What is known beyond its output, such as that its node died."""

    @property
    def failed(self) -> bool:
        """False for a run that was killed because it did not stop in time."""
        return self.code != 0 and not (self.stopped and self.code < 0)


@dataclass
class _Process:
    run: PlannedRun
    popen: subprocess.Popen[bytes]
    signals: int = 0
    """How many times it was told to stop."""

    def tell(self) -> None:
        self.signals += 1
        self.popen.terminate()

    def kill(self) -> None:
        """Kills it with all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)


def launch(
    runs: Sequence[PlannedRun],
    show: Callable[[Sequence[RunRow]], None],
    wish: Callable[[], Wish],
    on_end: Callable[[Ended], None],
) -> list[Ended]:
    """Starts all runs and waits for them. None is alive afterwards, whatever happens.

    Args:
        runs: what to start.
        show: takes the state of all runs, several times a second.
        wish: what the user wants now.
        on_end: told about every run when it has ended.
    """
    alive: list[_Process] = []
    ended: dict[str, Ended] = {}
    stopping: float | None = None
    try:
        for run in runs:
            if wish() is Wish.GO:
                alive.append(_Process(run, _start(run)))
        while alive:
            for process in [one for one in alive if one.popen.poll() is not None]:
                alive.remove(process)
                ended[process.run.name] = one = Ended(process.run, process.popen.returncode, process.signals > 0)
                on_end(one)
            if wish() is not Wish.GO:
                stopping = stopping or time.monotonic()
                _stop(alive, time.monotonic() - stopping, wish())
            show([_row(run, ended.get(run.name), stopping is not None) for run in runs])
            time.sleep(_LOOK_SECONDS)
    finally:
        for process in alive:
            process.kill()
            process.popen.wait()
    return list(ended.values())


def last_lines(folder: Path, count: int = 40) -> list[str]:
    """The end of a run's output."""
    try:
        return (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _start(run: PlannedRun) -> subprocess.Popen[bytes]:
    log: IO[bytes]
    with (run.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            run.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(run.environment),
            start_new_session=True,
        )


def _stop(alive: Sequence[_Process], seconds: float, wish: Wish) -> None:
    """Signals each run once; again when its time is over or the user hurries; then kills it."""
    patience = HURRY_SECONDS if wish is Wish.HURRY else STOP_SECONDS + TERMINATE_SECONDS
    for process in alive:
        if process.signals == 0:
            process.tell()
        elif process.signals == 1 and (wish is Wish.HURRY or seconds > STOP_SECONDS):
            process.tell()
        elif process.signals == 2 and seconds > patience:
            process.kill()


def _row(run: PlannedRun, ended: Ended | None, stopping: bool) -> RunRow:
    if ended is None:
        state = "stopping" if stopping else "running"
    elif ended.failed:
        state = "failed"
    else:
        state = "stopped" if ended.stopped else "finished"
    return read_row(run.name, run.algorithm, run.folder, state, run.target_steps, run.reads)
