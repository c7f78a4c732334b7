"""The launcher, with small programs in place of training runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from shoal.sharing import launcher
from shoal.sharing.launcher import Ended, PlannedRun, Wish, last_lines, launch
from shoal.sharing.live_table import RunRow

READY = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); print('ready', flush=True); time.sleep(60)"
DEAF, POLITE = READY.format("signal.SIG_IGN"), READY.format("lambda *_: sys.exit(0)")


def planned(folder: Path, name: str, code: str, **environment: str) -> PlannedRun:
    (folder / name).mkdir()
    return PlannedRun(name, "SAC", folder / name, (sys.executable, "-c", code), {**os.environ, **environment})


class Watcher:
    """Remembers what the launcher says, and wishes for something once all runs are ready."""

    def __init__(self, runs: Sequence[PlannedRun], wish: Wish = Wish.GO) -> None:
        self.runs, self.wanted = runs, wish
        self.states: list[list[str]] = []
        self.ended: list[Ended] = []

    def show(self, rows: Sequence[RunRow]) -> None:
        self.states.append([row.state for row in rows])

    def wish(self) -> Wish:
        ready = all("ready" in last_lines(run.folder) for run in self.runs)
        return self.wanted if ready else Wish.GO

    def launch(self) -> dict[str, Ended]:
        began = time.monotonic()
        ended = launch(self.runs, self.show, self.wish, self.ended.append)
        assert time.monotonic() - began < 30 and ended == self.ended
        return {one.run.name: one for one in ended}


def test_runs_end_by_themselves_and_one_fails(tmp_path: Path) -> None:
    good = planned(tmp_path, "good", "import os; print(os.environ['X'])", X="from the launcher")
    bad = planned(tmp_path, "bad", "import sys; [print('line', n) for n in range(100)]; sys.exit('broken')")
    watcher = Watcher([good, bad])
    ended = watcher.launch()
    assert not ended["good"].failed and ended["bad"].failed and ended["bad"].code == 1
    assert last_lines(good.folder) == ["from the launcher"]
    assert last_lines(bad.folder) == [*(f"line {n}" for n in range(61, 100)), "broken"]
    assert set(watcher.states[-1]) == {"finished", "failed"}


def test_a_run_that_dies_has_failed(tmp_path: Path) -> None:
    ended = Watcher([planned(tmp_path, "a", "import os; os.kill(os.getpid(), 9)")]).launch()
    assert ended["a"].failed and ended["a"].code == -9


def test_stop_is_told_once_and_waited_for(tmp_path: Path) -> None:
    watcher = Watcher([planned(tmp_path, name, POLITE) for name in "ab"], Wish.STOP)
    ended = watcher.launch()
    assert all(one.stopped and one.code == 0 and not one.failed for one in ended.values())
    assert watcher.states[-1] == ["stopped", "stopped"]


def test_who_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(launcher, "TERMINATE_SECONDS", 0.5)
    ended = Watcher([planned(tmp_path, "deaf", DEAF), planned(tmp_path, "polite", POLITE)], Wish.STOP).launch()
    assert ended["deaf"].code == -9 and not ended["deaf"].failed
    assert ended["polite"].code == 0


def test_who_is_in_a_hurry_does_not_wait(tmp_path: Path) -> None:
    assert Watcher([planned(tmp_path, "deaf", DEAF)], Wish.HURRY).launch()["deaf"].code == -9


def test_nothing_is_started_after_a_stop(tmp_path: Path) -> None:
    run = planned(tmp_path, "a", "print('started')")
    assert launch([run], lambda rows: None, lambda: Wish.STOP, lambda ended: None) == []
    assert last_lines(run.folder) == []


def test_whatever_happens_no_run_is_left(tmp_path: Path) -> None:
    def broken(rows: Sequence[RunRow]) -> None:
        raise OSError("the terminal is gone")

    before = psutil.Process().children(recursive=True)
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    with pytest.raises(OSError, match="the terminal is gone"):
        launch([planned(tmp_path, "a", child)], broken, lambda: Wish.GO, lambda ended: None)
    assert set(psutil.Process().children(recursive=True)) <= set(before)
