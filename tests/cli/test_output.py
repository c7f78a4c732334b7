"""What commands print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shoal
from shoal.cli.output import duration, next_commands, print_outcome, relative
from shoal.loops.settings import StopSettings


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (119.94, "119.9 s"), (120, "2 min 00 s"), (3599, "59 min 59 s"), (7384, "2 h 03 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative(tmp_path / "runs" / "x") == "runs/x"
    assert relative(tmp_path.parent / "y") == str(tmp_path.parent / "y")


def test_next_commands(finished: Path) -> None:
    run = shoal.load(finished)
    settings, summary = run.settings, run.summary
    assert summary is not None
    assert next_commands(settings, run.folder, summary)[-1] == f"shoal resume {finished} --steps 600"
    timed = settings.model_copy(update={"stop": StopSettings(seconds=3)})
    assert next_commands(timed, run.folder, summary)[-1] == f"shoal resume {finished}"
    for status in ("interrupted", "failed"):
        early = replace(summary, status=status, env_steps=10)
        assert next_commands(settings, run.folder, early)[-1] == f"shoal resume {finished}"
    assert not any("resume" in one for one in next_commands(settings, run.folder, replace(summary, status="solved")))


def test_a_run_that_learned_nothing_says_why(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shoal.load(finished)
    assert run.summary is not None
    nothing = replace(run.summary, updates=0, eval_return_mean=float("nan"))
    print_outcome(run.settings, run.folder, replace(nothing, env_steps=120))
    assert "Nothing was learned: it ended before a first batch was there." in capsys.readouterr().out
    print_outcome(run.settings, run.folder, replace(nothing, env_steps=90))
    out = capsys.readouterr().out
    assert "Nothing was learned: it ended before replay.min_size = 100 steps were there." in out
    assert "none yet" in out and "shoal eval" not in out


def test_what_is_wrong_at_the_end_is_said(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shoal.load(finished)
    assert run.summary is not None and run.summary.health == ()
    print_outcome(run.settings, run.folder, replace(run.summary, health=("health: it is ill since step 5: rest.",)))
    assert "\nhealth: it is ill since step 5: rest.\n" in capsys.readouterr().out
