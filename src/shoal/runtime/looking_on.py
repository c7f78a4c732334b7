"""Looks on at a run that is supervised on another machine: shows its progress, brings its files, passes signals on."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from shoal.errors import RunInUse
from shoal.runtime.copies import OF_THE_USER, Folder, update_copy
from shoal.runtime.home import Home
from shoal.runtime.progress import Progress
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.signals import StopSignals
from shoal.runtime.summary import Summary

POLL_SECONDS = 0.5
FETCH_SECONDS = 15.0

Answer = Literal["stop", "detach", "watch"]
Ask = Callable[[], Answer]
"""Asks the user what a Ctrl-C means; a KeyboardInterrupt is taken for `stop`."""


def is_shared(home: Home, folder: Path) -> bool:
    """Whether the home sees this very folder."""
    mark = folder / f".mark-{secrets.token_hex(8)}"
    mark.touch()
    try:
        return home.sees(str(mark))
    finally:
        mark.unlink(missing_ok=True)


def look_on(
    home: Home,
    folder: RunFolder,
    signals: StopSignals,
    *,
    shared: bool,
    console: Any = None,
    quiet: bool = False,
    ask: Ask | None = None,
    stop: bool = False,
    first: str = "",
) -> Summary | None:
    """Shows a run until it ends.

    Args:
        home: of the run, or calls to it.
        folder: the run's, here.
        signals: of this process, handled already. They stop the run, unless the user answers otherwise.
        shared: whether the home uses this folder. Otherwise its files are brought here, now and then and at the end.
        console, quiet: as for `execute`.
        ask: what the user wants at a Ctrl-C; None: to stop the run.
        stop: ask the run to stop at once.
        first: a note before all others.

    Returns:
        The run's result; None: the user looks away, and the run goes on.

    Raises:
        ShoalError: the run failed, or its home is gone.
    """
    signals.listen(lambda: None)  # they are looked at below
    stopping, first_note, fetched = False, 0, time.monotonic()
    with contextlib.ExitStack() as stack:
        bring = stack.enter_context(_copier(home, folder, shared))
        progress = stack.enter_context(Progress(folder.path.name, console=console, quiet=quiet))
        if first:
            progress.note(first)
        while True:
            if signals.asked or (stop and not stopping):
                twice, question = signals.hurry, ask if signals.last == signal.SIGINT and not stopping else None
                answer: Answer = "stop"
                if question is not None and not twice:
                    progress.stop()
                    answer = _asked(question, signals)
                    progress = stack.enter_context(Progress(folder.path.name, console=console, quiet=quiet))
                signals.forget()
                if answer == "detach":
                    bring(bulky=False)
                    return None
                if answer == "stop":
                    home.stop(hurry=stopping or twice)
                    stopping = True
            sight = home.look(first_note)
            first_note = sight.next_note
            for text in sight.notes:
                progress.note(text)
            if sight.snapshot is not None:
                progress.update(sight.snapshot)
            if sight.ended:
                break
            if time.monotonic() - fetched > FETCH_SECONDS or not folder.run_json.exists():
                bring(bulky=False)
                fetched = time.monotonic()
            time.sleep(POLL_SECONDS)
        progress.stop()
        if bring(bulky=True):
            home.take()
    if sight.failure is not None:
        raise sight.failure.error()
    return sight.summary


@contextlib.contextmanager
def _copier(home: Home, folder: RunFolder, shared: bool) -> Iterator[Callable[..., bool]]:
    """Brings the run's files here, and says whether they are here now. Only one process does so: it has the lock."""

    def bring(*, bulky: bool) -> bool:
        update_copy(home, Folder(folder.path), bulky=bulky, keep=OF_THE_USER)
        return True

    if shared:
        yield lambda *, bulky: True
        return
    try:
        lock = folder.lock()
    except RunInUse:  # another terminal looks on, too
        yield lambda *, bulky: False
        return
    with lock:
        yield bring


def _asked(ask: Ask, signals: StopSignals) -> Answer:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # one that ends the question
    try:
        return ask()
    except KeyboardInterrupt:
        return "stop"
    finally:
        signal.signal(signal.SIGINT, before)
