"""Plain lines, the live view on a real pseudo-terminal, and giving the terminal back."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shoal.runtime import progress as module
from shoal.runtime.progress import Progress, Snapshot, eta, plain_line

FULL = Snapshot(
    env_steps=12_345,
    elapsed=3725.9,
    target_steps=100_000,
    steps_per_second=3210.4,
    updates=2_340,
    updates_per_second=41.26,
    train_return=143.25,
    eval_return=201.5,
    stop_return=475.0,
    loss=0.0123456,
    staleness=2.125,
    replay_rows=5_000,
    replay_capacity=20_000,
    restarts=1,
    bottleneck="balanced",
    note="saving",
)


class Clock:
    """Seconds under the test's control."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    yield clock


def plain(quiet: bool = False) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress("title", console=Console(file=out, width=40), quiet=quiet), out


def test_a_full_line() -> None:
    # (100,000 - 12,345) / 3,210.4 = 27.3 s
    assert plain_line(FULL) == (
        "12,345 steps of 100,000 (12 %) | 3,210 steps/s | 41.3 updates/s | return 143.2 | eval 201.5 | loss 0.01235 | "
        "staleness 2.125 | replay 5,000 / 20,000 rows (25 %) | 1 restart | bottleneck: balanced | ETA 0:00:27 | saving"
    )


def test_what_is_unknown_is_left_out() -> None:
    assert plain_line(Snapshot(env_steps=5, elapsed=3725.9)) == "5 steps | 1:02:05 elapsed"
    unknown = replace(FULL, steps_per_second=math.nan, loss=math.inf, train_return=None, replay_capacity=None, note="")
    assert plain_line(unknown) == (
        "12,345 steps of 100,000 (12 %) | 41.3 updates/s | eval 201.5 | staleness 2.125 | replay 5,000 rows | "
        "1 restart | bottleneck: balanced | 1:02:05 elapsed"
    )


@pytest.mark.parametrize(
    ("steps", "target", "rate", "expected"),
    [(0, 100, 10.0, 10.0), (150, 100, 10.0, 0.0), (0, None, 10.0, None), (0, 100, 0.0, None), (0, 100, None, None)],
)
def test_eta(steps: int, target: int | None, rate: float | None, expected: float | None) -> None:
    assert eta(Snapshot(env_steps=steps, elapsed=1.0, target_steps=target, steps_per_second=rate)) == expected


@pytest.mark.parametrize(("left", "expected"), [(4.0, 4.0), (30.0, 10.0), (0.0, 0.0)])
def test_eta_knows_the_time_limit(left: float, expected: float) -> None:
    both = Snapshot(env_steps=0, elapsed=1.0, target_steps=100, steps_per_second=10.0, seconds_left=left)
    assert eta(both) == expected
    assert eta(replace(both, target_steps=None)) == eta(replace(both, steps_per_second=None)) == left
    assert plain_line(replace(both, target_steps=None, seconds_left=65.0)).endswith("ETA 0:01:05")


def test_both_views_show_the_steps_of_the_weights_that_were_evaluated() -> None:
    late = replace(FULL, eval_steps=9_000)
    assert "| eval 201.5 at 9,000 |" in plain_line(late)
    assert "| eval 201.5 |" in plain_line(replace(FULL, eval_steps=12_345))  # the newest
    assert "9,000" not in plain_line(replace(late, eval_return=None))
    console = Console(file=io.StringIO(), width=120)
    console.print(module._view("title", late))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "eval 201.5 at 9,000 (goal 475.0)" in shown


def test_percent_is_rounded_down() -> None:
    assert "(99 %)" in plain_line(Snapshot(env_steps=99_999, elapsed=1.0, target_steps=100_000))


def test_plain_lines_come_every_few_seconds_and_last(clock: Clock) -> None:
    progress, out = plain()
    with progress:
        for second in range(12):
            clock.now = float(second)
            progress.update(Snapshot(env_steps=second, elapsed=clock.now))
    assert [line.split()[0] for line in out.getvalue().splitlines()] == ["0", "5", "10", "11"]
    progress.stop()
    progress.update(FULL)
    assert len(out.getvalue().splitlines()) == 4  # nothing after the end


def test_each_evaluation_and_note_has_its_line(clock: Clock) -> None:
    progress, out = plain()
    with progress:
        progress.update(Snapshot(env_steps=1, elapsed=0.0))
        first = Snapshot(env_steps=2, elapsed=0.1, eval_return=9.5, evaluations=1, stop_return=475.0)
        for status in (first, replace(first, env_steps=3), replace(first, env_steps=4, evaluations=2, eval_steps=3)):
            progress.update(status)
        progress.note("actor 1 [bold]died[/bold] and was started again after a very long explanation")
    assert out.getvalue().splitlines() == [
        "1 steps | 0:00:00 elapsed",
        "2 steps | evaluation: return 9.5 (goal 475.0)",
        "3 steps | evaluation: return 9.5 (goal 475.0)",  # of the weights, though it ended at 4
        "actor 1 [bold]died[/bold] and was started again after a very long explanation",
        "4 steps | eval 9.5 at 3 | 0:00:00 elapsed",
    ]


def test_a_note_that_comes_again_is_counted() -> None:
    progress, out = plain()
    with progress:
        for count in range(1, 19):
            progress.recurring_note(f"actor {count % 2}: failed in step {3 * count} (/a/b.py:31)")
        progress.recurring_note("actor 0: failed in step 3 (/a/b.py:13)")  # another line of the file
        progress.recurring_note("actor 0: failed\nTraceback …")
        progress.recurring_note("actor 1: failed\nTraceback …")
    assert out.getvalue().splitlines() == [
        "actor 1: failed in step 3 (/a/b.py:31)",
        "actor 0: failed in step 30 (/a/b.py:31) … again (9 more)",
        "actor 0: failed in step 3 (/a/b.py:13)",
        "actor 0: failed",
        "Traceback …",
        "actor 0: failed in step 54 (/a/b.py:31) … again (17 more)",
        "actor 1: failed … again (1 more)",
    ]


@pytest.mark.parametrize("odd", ["<object at 0x7f3a{}c>", "reward -{}", "x = {}e-07", "[{}.5, -1.{}e+3]"])
def test_numbers_of_any_form_do_not_make_another_note(odd: str) -> None:
    progress, out = plain()
    with progress:
        for count in (3, 41):
            progress.recurring_note(f"failed: {odd.replace('{}', str(count))} (/a/b.py:31)")
    assert len(out.getvalue().splitlines()) == 2 and "again (1 more)" in out.getvalue()


def test_quiet_is_silent() -> None:
    progress, out = plain(quiet=True)
    with progress:
        progress.update(FULL)
        progress.note("x")
    assert out.getvalue() == ""


def test_colour_forced_in_a_log_file_is_still_plain() -> None:
    out = io.StringIO()
    with Progress(console=Console(file=out, force_terminal=True, color_system=None)) as progress:
        progress.update(FULL)
    assert "\x1b" not in out.getvalue() and "12,345 steps" in out.getvalue()


def test_a_poor_encoding_or_a_closed_terminal_does_not_end_a_run() -> None:
    raw = io.BytesIO()
    with Progress(console=Console(file=io.TextIOWrapper(raw, encoding="ascii"))) as progress:
        progress.note("Übung ━")
    assert raw.getvalue() == b"?bung ?\n"

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with Progress(console=Console(file=Gone())) as progress:
        progress.update(FULL)
        progress.note("x")


ON_TERMINAL = """
import sys, time
from shoal.runtime.progress import Progress, Snapshot
def status(n):
    return Snapshot(env_steps=n, elapsed=n / 100, target_steps=1000, steps_per_second=100.0, bottleneck="balanced")
with Progress("CartPole-v1") as progress:
    started = time.monotonic()
    n = 0
    while time.monotonic() - started < 1.0:
        n += 1
        progress.update(status(min(n, 500)))
    progress.note("a note that stays")
    progress.update(status(777))
    if sys.argv[1] == "raise":
        raise RuntimeError("as planned")
"""


def on_terminal(how: str) -> tuple[str, int]:
    """Runs ON_TERMINAL on a pseudo-terminal; returns all it wrote there and its exit status."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2]), "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", ON_TERMINAL, how], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux: the other side closed
            break
        if not chunk:
            break
        written += chunk
    os.close(ours)
    return written.decode(), process.wait()


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1)])
def test_the_live_view_is_drawn_seldom_and_gives_the_terminal_back(how: str, code: int) -> None:
    text, status = on_terminal(how)
    assert status == code
    assert text.count("\x1b[?25l") == 1 and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # cursor hidden, shown
    drawn = len(re.findall("CartPole-v1", text))
    assert 3 <= drawn <= 10  # at most 4 a second, one with the note, one at the end (stop() draws twice)
    assert "a note that stays" in text and "777 / 1,000" in text and "ETA 0:00:02" in text
    assert text.rfind("777 / 1,000") > text.rfind("a note that stays")
    if how == "raise":
        assert text.rfind("RuntimeError: as planned") > text.rfind("777 / 1,000")
