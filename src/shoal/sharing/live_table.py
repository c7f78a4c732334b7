"""LiveTable: what a group of runs shows while it runs. A live table on a terminal, plain lines anywhere else.

The numbers are the newest ones in each run's metrics.jsonl, so no run has to be asked for them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.errors import UnsafePath
from shoal.metrics_file import METRICS_FILE, read_whole_lines

_TAIL_BYTES = 32_768
_PACE_ROWS = 10
_REFRESH_SECONDS = 0.5
_UNKNOWN = "-"
_METRICS = (
    ("return", "rollout/ep_rew_mean", "{:,.1f}", "return {}"),
    ("eval", "eval/mean_reward", "{:,.1f}", "eval {}"),
    ("steps/s", "time/fps", "{:,.0f}", "{} steps/s"),
    ("peers", "share/peers", "{:.0f}", "{} peers"),
    ("foreign", "share/foreign_fraction", "{:.1%}", "{} foreign"),
)
"""Column, metric, its format, and its form on a plain line."""
_COLOURS = {"failed": "red", "finished": "green", "stopped": "yellow", "stopping": "yellow"}


@dataclass(frozen=True)
class RunRow:
    """A moment of a run."""

    name: str
    algorithm: str
    state: str
    reads: bool = True
    """Whether it can learn from others' rows."""
    target: int | None = None
    """Steps at which it ends; None when it does not end by steps."""
    values: Mapping[str, float | None] = field(default_factory=dict)
    """The newest value of every metric; None when it was not finite."""
    pace: float | None = None
    """Steps per second of late, evaluations included."""

    @property
    def eta(self) -> float | None:
        """Seconds until its target at its speed; None when that is unknown."""
        if self.state in ("finished", "stopped", "failed"):
            return 0.0
        steps = self.values.get("step")
        if not self.target or steps is None or not self.pace:
            return None
        return max(0.0, self.target - steps) / self.pace


def read_row(name: str, algorithm: str, folder: Path, state: str, target: int | None, reads: bool) -> RunRow:
    """A run's newest numbers."""
    rows = _read_rows(folder / METRICS_FILE)
    state = "starting" if not rows and state == "running" else state
    newest = {name: value for row in rows for name, value in row.items()}
    return RunRow(name, algorithm, state, reads, target, newest, _pace(rows[-_PACE_ROWS:]))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError, UnsafePath):
        return read_whole_lines(path, last_bytes=_TAIL_BYTES)
    return []


def _pace(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps per second between the first and the last of some rows."""
    if not rows or not rows[0]["wall"] < rows[-1]["wall"]:
        return None
    return float((rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["wall"] - rows[0]["wall"]))


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
        """Leaves the last state on the screen, as a table."""
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
            self._live.stop()
            self._live = None
        elif self._rows:
            self._console.print(table(self._rows))

    def update(self, rows: Sequence[RunRow]) -> None:
        """Takes the newest numbers, and shows them when they are due."""
        self._rows = rows
        now = time.monotonic()
        if now < self._next:
            return
        if self._live is not None:
            self._next = now + _REFRESH_SECONDS
            self._live.update(self._view(), refresh=True)
        elif any(row.values.get("step") for row in rows):  # lines that only say "starting" are noise
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
    for name in ("run", "algorithm"):
        made.add_column(name, no_wrap=True)
    for name in ("steps", *(column for column, *_ in _METRICS)):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for row in rows:
        cells = (row.name, row.algorithm, *_cells(row).values())
        made.add_row(*map(Text, cells), Text(row.state, style=_COLOURS.get(row.state, "")))
    return made


def plain_line(row: RunRow) -> str:
    """A run on one line; what is not known is left out."""
    forms = {"steps": "{} steps"} | {column: form for column, _, _, form in _METRICS}
    known = {column: cell for column, cell in _cells(row).items() if cell != _UNKNOWN}
    if not row.reads:
        known.pop("foreign")
    parts = [
        f"{row.name} ({row.algorithm})",
        row.state,
        *(forms[column].format(cell) for column, cell in known.items()),
    ]
    if row.state == "running" and (eta := row.eta) is not None:
        parts.append(f"ETA {clock(eta)}")
    return " | ".join(parts)


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _cells(row: RunRow) -> dict[str, str]:
    """The numbers of a run, by column."""
    cells = {"steps": _shown(row.values.get("step"), "{:,.0f}")}
    if row.target and cells["steps"] != _UNKNOWN:
        cells["steps"] += f" of {row.target:,}"
    cells |= {column: _shown(row.values.get(metric), form) for column, metric, form, _ in _METRICS}
    return cells if row.reads else cells | {"peers": _UNKNOWN, "foreign": "writes only"}


def _shown(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else form.format(value)
