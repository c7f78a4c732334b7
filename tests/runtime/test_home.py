"""The process that supervises a run elsewhere; here it is an object of this process."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from tests.fakes import corridor

from shoal.errors import ConfigError, MachineError, ShoalError, UnknownName
from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.runtime import home as homes
from shoal.runtime.copies import Folder, hand_over
from shoal.runtime.home import Failure, Home, ProgressRecord, Sight
from shoal.runtime.looking_on import is_shared
from shoal.runtime.progress import Snapshot
from shoal.runtime.ray_hosts import without_settings
from shoal.runtime.run_folder import RunFolder


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("wrong"), ConfigError),
        (UnknownName("algorithm", "dqm", ["dqn"]), UnknownName),  # its constructor takes no text
        (OSError(28, "No space left on device"), MachineError),
        (KeyError("x"), ShoalError),
    ],
)
def test_an_error_keeps_its_type_and_text(error: Exception, kind: type[ShoalError]) -> None:
    rebuilt = Failure.of(error).error()
    assert type(rebuilt) is kind
    assert str(rebuilt).startswith(
        {OSError: "No space left on device. Free", KeyError: "KeyError: 'x'"}.get(type(error), str(error))
    )


def test_everybody_who_looks_on_gets_every_note_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "KEPT_NOTES", 3)
    with ProgressRecord() as record:
        record.note("a")
        assert record.notes_since(0) == (["a"], 1)
        for text in "bcde":
            record.note(text)
        record.update(Snapshot(env_steps=7, elapsed=1.0))
        assert record.notes_since(4) == (["e"], 5)
        assert record.notes_since(0) == (["c", "d", "e"], 5)  # who comes late misses the oldest
        assert record.snapshot is not None and record.snapshot.env_steps == 7


def started(tmp_path: Path, settings: RunSettings, monkeypatch: pytest.MonkeyPatch) -> tuple[Home, RunFolder]:
    """A run whose home is a folder of another name, as if it were another machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shoal"])
    folder, home, plan = RunFolder.create(tmp_path, "Corridor", "apex-dqn", datetime.now()), Home(), make_plan(settings)
    (folder.path / "config.yaml").write_text("seed: 1\n")
    home.open(str(tmp_path / "home"), shared=False)
    hand_over(Folder(folder.path), home)
    plain, content = without_settings(plan)
    home.start(plain, content, resume=False, wandb=None, command=["shoal", "train"], place=str(tmp_path))
    return home, folder


def end_of(home: Home) -> Sight:
    deadline = time.monotonic() + 60
    while not (sight := home.look(0)).ended:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return sight


def test_a_run_at_home_ends_with_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = started(tmp_path, corridor(stop={"steps": 400}), monkeypatch)
    sight = end_of(home)
    assert sight.failure is None and sight.summary is not None and sight.summary.status == "finished"
    assert "apex-dqn on" in sight.notes[0] and sight.snapshot is not None
    assert {"config.yaml", "summary.json", "metrics.jsonl", "run.json"} <= set(home.stamps())
    assert not home.is_over()  # its files are only there
    home.take()
    assert home.is_over()


def test_a_run_at_home_stops_when_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, _ = started(tmp_path, corridor(stop={"steps": 10**9}), monkeypatch)
    home.stop(hurry=False)
    home.stop(hurry=False)  # somebody else asks too: nobody is in a hurry
    sight = end_of(home)
    assert sight.summary is not None and sight.summary.status == "interrupted"
    assert not home._signals.hurry


def test_a_run_that_fails_at_home_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = corridor(env={"kwargs": {"fail_at": 40}}, actor={"on_env_error": "stop"})
    home, _ = started(tmp_path, settings, monkeypatch)
    failure = end_of(home).failure
    assert failure is not None and failure.kind == "EnvError" and "the simulator crashed" in failure.text


def test_shared_storage_is_recognized_and_leaves_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home()
    assert is_shared(home, tmp_path)
    monkeypatch.setattr(Home, "sees", lambda self, path: False)
    assert not is_shared(home, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_made_among_the_homes_own_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert Home().open(str(tmp_path / "file" / "run"), shared=False) == str(tmp_path / "runs" / "run")
    assert (tmp_path / "runs" / "run").is_dir()
