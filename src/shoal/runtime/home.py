"""A run's home: where its supervisor works when that is not where the command was typed.

The process there runs `Home`; whoever looks on calls its methods from elsewhere. It needs nobody: when all who look on
are gone, the run goes on.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import errors
from shoal.errors import MachineError, ShoalError, explained
from shoal.files import atomic_write
from shoal.loops.plan import Plan
from shoal.loops.settings import RunSettings
from shoal.runtime.copies import Folder
from shoal.runtime.execution import execute
from shoal.runtime.progress import Progress, Snapshot
from shoal.runtime.run_folder import RUNS, RunFolder
from shoal.runtime.signals import StopSignals
from shoal.runtime.sinks import WandbSettings
from shoal.runtime.summary import Summary

KEPT_NOTES = 1000
ALONE_SECONDS = 60.0
"""How long a home without a run waits for somebody: to start it, or to see its end."""
TAKEN_SECONDS = 3.0
"""How long it waits for others who look on, after somebody has its result."""


@dataclass(frozen=True)
class Failure:
    """An error as plain data: Python cannot rebuild every exception from its parts."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, ShoalError):
            return cls(type(error).__name__, str(error))
        if isinstance(error, OSError):
            return cls(MachineError.__name__, explained(error))
        return cls(ShoalError.__name__, f"{type(error).__name__}: {error}")

    def error(self) -> ShoalError:
        """The error with its type and text."""
        kind = getattr(errors, self.kind, ShoalError)
        made: ShoalError = kind.__new__(kind, self.text)  # not by its constructor, which may want other arguments
        return made


@dataclass(frozen=True)
class Sight:
    """What there is to see of a run now."""

    notes: Sequence[str]
    """New ones."""
    next_note: int
    """The number of the first one that is not among them."""
    snapshot: Snapshot | None
    ended: bool
    summary: Summary | None
    failure: Failure | None


class ProgressRecord(Progress):
    """Keeps what a run says for those who look on, instead of showing it."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self._notes: list[str] = []
        self._dropped = 0

    def update(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def notes_since(self, number: int) -> tuple[list[str], int]:
        """Notes from this number on, if they are still kept; and the number of the next one."""
        dropped, notes = self._dropped, list(self._notes)
        return notes[max(0, number - dropped) :], dropped + len(notes)

    def note(self, text: str) -> None:
        self._notes.append(text)
        if len(self._notes) > KEPT_NOTES:
            self._dropped += 1
            del self._notes[0]


class Home(Folder):
    """One run, in this process; its folder can be copied from and to."""

    def __init__(self, *, own_process: bool = False) -> None:
        """Args:
        own_process: whether this process is for the run alone, and ends when nobody needs it.
        """
        super().__init__(Path())
        self._progress, self._signals = ProgressRecord(), StopSignals()
        self._summary: Summary | None = None
        self._failure: Failure | None = None
        self._work: threading.Thread | None = None
        self._alone_since = time.monotonic()
        self._unfetched = self._taken = False
        if own_process:
            threading.Thread(target=self._leave_when_alone, daemon=True).start()

    def sees(self, path: str) -> bool:
        """Whether a file is here, too: then its folder is shared storage."""
        self._alone_since = time.monotonic()
        return Path(path).is_file()

    def open(self, path: str, *, shared: bool) -> str:
        """Takes the run's folder, or makes it here: with the same path if possible, else in this machine's `runs`."""
        self.path, self._unfetched = Path(path), not shared
        if not shared:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError:
                self.path = RUNS.absolute() / self.path.name
                self.path.mkdir(parents=True, exist_ok=True)
        return str(self.path)

    def start(
        self,
        plan: Plan,
        settings: dict[str, Any],
        *,
        resume: bool,
        wandb: WandbSettings | None,
        command: Sequence[str],
        place: str,
    ) -> None:
        """Begins to execute the run.

        Args:
            plan: without its settings, which may be of a type of the user's.
            settings: as plain data.
            resume, wandb: as for `execute`.
            command: what the user typed.
            place: in which folder; it is ours too if it exists here.
        """
        sys.argv = list(command)
        with contextlib.suppress(OSError):
            os.chdir(place)

        def work() -> None:
            try:
                # The address as seen from there may be another one from here, and we are connected already.
                own = RunSettings.model_validate({**settings, "address": "auto"})
                self._summary = execute(
                    replace(plan, settings=own),
                    RunFolder(self.path),
                    resume=resume,
                    wandb=wandb,
                    progress=self._progress,
                    signals=self._signals,
                )
            except BaseException as error:
                self._failure = Failure.of(error)
                if not isinstance(error, ShoalError | OSError):
                    with contextlib.suppress(OSError):
                        atomic_write(self.path / "error.txt", traceback.format_exc().encode(errors="replace"))

        self._work = threading.Thread(target=work, name="run", daemon=True)
        self._work.start()

    def look(self, first_note: int) -> Sight:
        """What there is to see, with the notes from this number on."""
        self._alone_since = time.monotonic()
        ended = self._work is not None and not self._work.is_alive()
        notes, after = self._progress.notes_since(first_note)
        return Sight(notes, after, self._progress.snapshot, ended, self._summary, self._failure)

    def take(self) -> None:
        """Somebody who looks on has seen the end and has the files."""
        self._taken, self._unfetched = True, False

    def is_over(self) -> bool:
        """Whether nobody needs this process: the run has ended, or never began, and its files are where they belong."""
        return (self._work is None or not self._work.is_alive()) and not (self._work and self._unfetched)

    def stop(self, *, hurry: bool) -> None:
        """Asks the run to stop cleanly; `hurry`: without waiting for anything."""
        if hurry or not self._signals.asked:
            self._signals.ask()

    def _leave_when_alone(self) -> None:
        """Ends this process when it is of no use, and nobody has looked on for a while. A folder that only this machine
        has waits for somebody to fetch it.
        """
        while True:
            time.sleep(0.5)
            patience = TAKEN_SECONDS if self._taken else ALONE_SECONDS
            if self.is_over() and time.monotonic() - self._alone_since > patience:
                os._exit(0)
