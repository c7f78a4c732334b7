"""What a group of runs shows while it runs: a live table on a terminal, plain lines anywhere else.

The numbers are the newest ones in each run's metrics.jsonl, so nobody has to be asked for them.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_TAIL_BYTES = 32_768
_PACE_ROWS = 10
_REFRESH_SECONDS = 0.5
_UNKNOWN = "-"
_COLUMNS = ("run", "algorithm", "steps", "return", "eval", "steps/s", "peers", "foreign", "")
_COLOURS = {"failed": "red", "finished": "green", "stopped": "yellow", "stopping": "yellow"}


@dataclass(frozen=True)
class RunRow:
    """A moment of a run; None is not known (yet)."""

    name: str
    algorithm: str
    state: str
    reads: bool = True
    steps: int | None = None
    target: int | None = None
    train_return: float | None = None
    eval_return: float | None = None
    steps_per_second: float | None = None
    """The mean so far, evaluations not counted."""
    pace: float | None = None
    """Steps per second of late, with everything."""
    peers: float | None = None
    foreign: float | None = None

    @property
    def eta(self) -> float | None:
        """Seconds until its target at its speed; None when that is unknown."""
        if self.state in ("finished", "stopped", "failed"):
            return 0.0
        if not self.target or self.steps is None or not self.pace:
            return None
        return max(0.0, self.target - self.steps) / self.pace


def read_row(name: str, algorithm: str, folder: Path, state: str, target: int | None, reads: bool) -> RunRow:
    """A run's newest numbers."""
    rows = _read_rows(folder / "metrics.jsonl")
    values = _newest(rows)
    if not values and state == "running":
        state = "starting"
    return RunRow(
        name=name,
        algorithm=algorithm,
        state=state,
        reads=reads,
        steps=None if (steps := _number(values, "step")) is None else int(steps),
        target=target,
        train_return=_number(values, "rollout/ep_rew_mean"),
        eval_return=_number(values, "eval/mean_reward"),
        steps_per_second=_number(values, "time/fps"),
        pace=_pace(rows[-_PACE_ROWS:]),
        peers=_number(values, "share/peers"),
        foreign=_number(values, "share/foreign_fraction"),
    )


def read_tail(path: Path) -> dict[str, Any]:
    """The newest value of every name in the last lines of a metrics file; empty when there is none."""
    return _newest(_read_rows(path))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]  # what follows the last newline is being written
    except OSError:
        return []
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the first one may be cut
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _newest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for row in rows:
        values |= row
    return values


def _pace(rows: Sequence[dict[str, Any]]) -> float | None:
    ends = [(_number(row, "step"), _number(row, "wall")) for row in (*rows[:1], *rows[-1:])]
    if len(ends) < 2:
        return None
    (first, began), (last, now) = ends
    if first is None or last is None or began is None or now is None or now <= began:
        return None
    return (last - first) / (now - began)


class LiveTable:
    """Shows the runs. Cheap to call often. Use it as a context.

    Args:
        console: where to.
        interval: seconds between blocks of plain lines.
    """

    def __init__(self, console: Console, interval: float = 10.0) -> None:
        self._console, self._interval = console, interval
        self._live: Live | None = None
        self._next = -math.inf
        self._rows: Sequence[RunRow] = ()

    def __enter__(self) -> LiveTable:
        # FORCE_COLOR makes rich call any file a terminal, so the file itself is asked as well.
        if self._console.is_terminal and not self._console.is_dumb_terminal and self._console.file.isatty():
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last state stays, as a table."""
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
            self._live.stop()
            self._live = None
        elif self._rows:
            self._console.print(table(self._rows))

    def update(self, rows: Sequence[RunRow]) -> None:
        """Takes the newest numbers, and shows them when it is time to."""
        self._rows = rows
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + _REFRESH_SECONDS
            self._live.update(self._view(), refresh=True)
        elif any(row.steps for row in rows):  # lines that only say "starting" are noise
            self._next = now + self._interval
            for row in rows:
                self.note(plain_line(row))

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(Text(text), soft_wrap=True)

    def _view(self) -> Group:
        seconds = group_eta(self._rows)
        return Group(table(self._rows), Text("" if not seconds else f"ETA {clock(seconds)}"))


def group_eta(rows: Sequence[RunRow]) -> float | None:
    """Seconds until the last run ends; None while that of any is unknown."""
    known = [row.eta for row in rows]
    return None if None in known else max((eta for eta in known if eta is not None), default=None)


def table(rows: Sequence[RunRow]) -> Table:
    """All runs, a row each."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(_COLUMNS):
        made.add_column(name, justify="right" if 2 <= number < len(_COLUMNS) - 1 else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(cell) for cell in _cells(row)), Text(row.state, style=_COLOURS.get(row.state, "")))
    return made


def plain_line(row: RunRow) -> str:
    """A run on one line; what is not known is left out."""
    _, _, steps, train, judged, rate, peers, foreign = _cells(row)
    parts = [f"{row.name} ({row.algorithm})", row.state]
    named = [("", steps, " steps"), ("return ", train, ""), ("eval ", judged, ""), ("", rate, " steps/s")]
    if row.reads:
        named += [("", peers, " peers"), ("", foreign, " foreign")]
    parts += [f"{before}{value}{after}" for before, value, after in named if value != _UNKNOWN]
    if row.state == "running" and (eta := row.eta) is not None:
        parts.append(f"ETA {clock(eta)}")
    return " | ".join(parts)


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _cells(row: RunRow) -> tuple[str, ...]:
    steps = _UNKNOWN if row.steps is None else f"{row.steps:,}"
    if row.steps is not None and row.target:
        steps += f" of {row.target:,}"
    return (
        row.name,
        row.algorithm,
        steps,
        _shown(row.train_return, "{:,.1f}"),
        _shown(row.eval_return, "{:,.1f}"),
        _shown(row.steps_per_second, "{:,.0f}"),
        _shown(row.peers, "{:.0f}") if row.reads else _UNKNOWN,
        _shown(row.foreign, "{:.1%}") if row.reads else "gives only",
    )


def _shown(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else form.format(value)


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
