"""`shoal compare`."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from pathlib import Path

import pytest
from tests.analysis.fakes import write_group, write_run
from tests.cli.conftest import Shoal

from shoal.cli.compare import _beside


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two groups of five launches, the second one better, and a folder without runs."""
    write_group(tmp_path / "runs" / "alone", [[[0, 1 + n, 2], [0, 1, 2]] for n in range(5)])
    write_group(tmp_path / "runs" / "shared", [[[0, 11 + n, 20], [0, 11, 20]] for n in range(5)], foreign=0.5)
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


def test_compare(run_shoal: Shoal, runs: Path) -> None:
    result = run_shoal("compare", "runs/alone", "runs/shared", "--threshold", 10)
    assert result.code == 0 and result.err == ""
    for text in (
        "eval/mean_reward over steps 0 to 20",
        "5 launches of 2 runs",
        "1.00 [1.00, 1.00]",
        "50.0 %",
        "time to eval/mean_reward = 10",
        "0 of 10",
        "10 of 10",
        "not reached",
        "shared against alone: area higher (p = 0.0079), final return higher (p = 0.0079).",
    ):
        assert text in result.out
    assert "Note:" not in result.out
    (folder,) = runs.glob("compare_*")
    for name in ("comparison.html", "curves.png", "comparison.json"):
        assert f" runs/{folder.name}/{name}" in result.out and (folder / name).stat().st_size > 0
    assert [one["name"] for one in json.loads((folder / "comparison.json").read_text())["groups"]] == [
        "alone",
        "shared",
    ]


def test_the_command_on_the_page_gives_the_same_numbers(run_shoal: Shoal, runs: Path) -> None:
    asked = ("compare", "runs/alone", "runs/shared", "--threshold", "-1234567.5", "--seed", 3, "--resamples", 150)
    assert run_shoal(*asked, "--out", "one").code == 0
    first = json.loads(Path("one/comparison.json").read_text())
    assert (first["seed"], first["resamples"], first["threshold"]) == (3, 150, -1234567.5)
    assert run_shoal(*shlex.split(first["command"])[1:], "--out", "two").code == 0
    assert json.loads(Path("two/comparison.json").read_text()) == first


def test_one_group_is_reported(run_shoal: Shoal, runs: Path) -> None:
    result = run_shoal("compare", "runs/alone/launch_0/run_0", "--out", "report")
    assert result.code == 0 and "There is nothing to compare run_0 with" in result.out
    assert "Note: run_0 is a single run" in result.out and Path("report/comparison.html").is_file()


def test_notes(run_shoal: Shoal, runs: Path) -> None:
    write_run(runs / "other" / "run [x]", [0.0, 1.0], env="Pong-v5", tail="{")
    result = run_shoal("compare", "runs/alone", "runs/other")
    assert "Note: Not all runs are of the same environment" in result.out
    assert "Note: 1 damaged line skipped in the metrics of other/run [x]." in result.out


def test_a_narrow_terminal(run_shoal: Shoal, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run_shoal("compare", "runs/alone", "runs/shared", "--threshold", 10)
    assert result.code == 0
    table = result.out.split("shared against alone")[0]
    assert "1.00 [" not in table and "[1.00" in table
    assert max(map(len, table.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs/alnoe",), "Unknown folder 'runs/alnoe'. Did you mean 'runs/alone'?"),
        (
            ("runs/empty",),
            "runs/empty holds no run: neither it nor a folder inside it, at any depth, has a metrics.jsonl",
        ),
        (("runs/alone", "runs/alone"), "runs/alone was given twice"),
        (("runs/alone", "--metric", "rollout"), "It has eval/mean_reward: try --metric eval."),
        (("runs/alone", "--metric", "rolout"), "Unknown metric 'rolout'. Did you mean 'rollout'?"),
        (("runs/alone", "--threshold", "nan"), "threshold = nan cannot be used"),
        (("runs/alone", "--out", "runs/alone/launch_0/run_0/run.json"), "Choose another --out."),
    ],
)
def test_what_is_asked_wrongly(run_shoal: Shoal, runs: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run_shoal("compare", *arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("Error: ") and message in result.err
    assert not list(runs.glob("compare_*"))


def test_beside_is_always_new(tmp_path: Path) -> None:
    now = datetime(2026, 1, 31, 15, 45)
    first = _beside(tmp_path / "group", now)
    assert first == tmp_path / "compare_20260131-154500"
    first.mkdir()
    assert _beside(tmp_path / "group", now) == tmp_path / "compare_20260131-154500-2"
