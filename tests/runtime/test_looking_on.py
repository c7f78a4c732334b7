"""What those who look on at a run do with signals, notes and its end."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from shoal.errors import EnvError
from shoal.runtime import looking_on
from shoal.runtime.copies import Folder
from shoal.runtime.home import Failure, Home, Sight
from shoal.runtime.looking_on import Answer, Ask, look_on
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.signals import StopSignals
from shoal.runtime.summary import Summary


class FakeHome(Folder):
    """A run that ends when it is asked to, or at the third look. Signals arrive while somebody looks."""

    def __init__(self, path: Path, signals: dict[int, list[int]] | None = None, looks: int = 3) -> None:
        super().__init__(path)
        self.signals, self.left = signals or {}, looks
        self.looks, self.stops, self.taken = 0, list[bool](), False
        self.failure: Failure | None = None

    def look(self, first_note: int) -> Sight:
        self.looks += 1
        for number in self.signals.get(self.looks, []):
            os.kill(os.getpid(), number)
        ended = self.looks >= self.left or (bool(self.stops) and self.looks > max(self.signals, default=0))
        notes = ["one", "two"][first_note:]
        return Sight(notes, 2, None, ended, Summary.not_begun("x"), self.failure)

    def stop(self, *, hurry: bool) -> None:
        self.stops.append(hurry)

    def take(self) -> None:
        self.taken = True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(looking_on, "POLL_SECONDS", 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").touch()
    (tmp_path / "home").mkdir()
    return RunFolder(tmp_path / "run")


def look(home: FakeHome, folder: RunFolder, *, ask: Ask | None = None, shared: bool = True, stop: bool = False) -> str:
    """Looks on to the end; returns what was shown and "detached" if the run goes on."""
    seen = io.StringIO()
    with StopSignals() as signals:
        result = look_on(
            cast(Home, home),
            folder,
            signals,
            shared=shared,
            console=Console(file=seen, width=200),
            ask=ask,
            stop=stop,
            first="zero",
        )
    return seen.getvalue() + ("detached" if result is None else "")


def test_notes_are_shown_once_and_the_result_is_taken(folder: RunFolder) -> None:
    home = FakeHome(folder.path)
    assert look(home, folder).splitlines() == ["zero", "one", "two"]
    assert home.taken and home.stops == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_terminal_a_signal_stops_the_run_and_a_second_one_at_once(folder: RunFolder, number: int) -> None:
    home = FakeHome(folder.path, {1: [number]}, looks=99)
    look(home, folder)
    assert home.stops == [False]
    home = FakeHome(folder.path, {1: [number], 3: [number]}, looks=99)
    look(home, folder)
    assert home.stops == [False, True]


def answering(*answers: Answer | None) -> Ask:
    """Answers in turn; None: another Ctrl-C instead of an answer."""
    left = iter(answers)

    def ask() -> Answer:
        answer = next(left)
        if answer is None:
            os.kill(os.getpid(), signal.SIGINT)
        assert answer is not None
        return answer

    return ask


def test_on_a_terminal_the_user_decides(folder: RunFolder) -> None:
    once, interrupt = {1: [signal.SIGINT]}, signal.SIGINT
    home = FakeHome(folder.path, once, looks=99)
    assert "detached" in look(home, folder, ask=answering("detach")) and home.stops == [] and not home.taken
    home = FakeHome(folder.path, once, looks=9)
    assert "detached" not in look(home, folder, ask=answering("watch")) and home.stops == [] and home.looks == 9
    home = FakeHome(folder.path, once, looks=99)
    look(home, folder, ask=answering("stop"))
    assert home.stops == [False]
    home = FakeHome(folder.path, {1: [interrupt], 3: [interrupt]}, looks=99)
    look(home, folder, ask=answering(None))  # the second Ctrl-C ends the question, the third does not ask
    assert home.stops == [False, True]
    home = FakeHome(folder.path, {1: [signal.SIGTERM]}, looks=99)
    look(home, folder, ask=answering())  # SIGTERM is no question
    assert home.stops == [False]


def test_stop_asks_once_and_waits_for_the_end(folder: RunFolder) -> None:
    home = FakeHome(folder.path, looks=99)
    look(home, folder, stop=True, ask=answering())
    assert home.stops == [False] and home.taken


def test_the_error_of_the_run_is_raised_here(folder: RunFolder) -> None:
    home = FakeHome(folder.path)
    home.failure = Failure("EnvError", "actor 0: the simulator crashed")
    with pytest.raises(EnvError, match="actor 0: the simulator crashed"):
        look(home, folder)


def test_files_are_brought_by_one_of_those_who_look_on(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "home" / "summary.json").write_text("{}")
    home = FakeHome(tmp_path / "home")
    with folder.lock():  # another terminal
        look(home, folder, shared=False)
    assert not folder.summary_json.exists() and not home.taken
    look(FakeHome(tmp_path / "home"), folder, shared=False)
    assert folder.summary_json.exists() and folder.owner() is None
