"""`metrics.jsonl`, the numbers of a run: its only writer and its only reader.

A line is a JSON object with `step` (environment steps), `wall` (seconds of training) and a number for each metric; null
stands for a number that was not finite, and values that are no numbers are read as null. Runs get killed and disks fill
up: a line is written whole or not at all, and readers can tell whole lines from damaged ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ConfigError
from shoal.files import open_file

METRICS_FILE = "metrics.jsonl"
_RESERVED = frozenset({"step", "wall"})


class MetricsLine(NamedTuple):
    """A line as it is in the file, its number from 1 on, and its values: None if it is damaged."""

    number: int
    text: bytes
    values: dict[str, Any] | None


class MetricsFile:
    """Appends lines. A full disk does not stop the run: lines are skipped, and `note` gets a sentence about it.

    Args:
        path: the file. A line that a kill cut short is removed from its end.
        note: takes sentences for the user.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._path, self._note = path, note
        self._skips = False
        self._file = open_file(path, "a+b", buffering=0)
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        """Appends a line.

        Raises:
            ValueError: a metric is called `step` or `wall`.
            OSError: the file was deleted, and cannot be created again.
            UnsafePath: the file was replaced by a link or a device.
        """
        if clash := _RESERVED & values.keys():
            raise ValueError(f"a metric cannot be called {' or '.join(sorted(clash))}")
        line: dict[str, float | None] = {"step": step, "wall": round(float(wall), 3)}
        line.update({name: value if math.isfinite(value) else None for name, value in values.items()})
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._file.close()  # it was deleted: create it again, which raises if the folder is gone too
            self._file = open_file(self._path, "a+b", buffering=0)
        size = self._file.seek(0, io.SEEK_END)
        rest = json.dumps(line).encode() + b"\n"
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._skips = False
        except OSError as error:
            self._file.truncate(size)
            if not self._skips:
                self._note(f"No metrics are written from step {step} on ({error.strerror}); training goes on.")
            self._skips = True

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path, *, unfinished: bool = False, last_bytes: int = 0) -> list[MetricsLine]:
    """Every line that is not blank; none when there is no file.

    Args:
        path: the file.
        unfinished: include what follows the last line break: being written, or cut short by a kill.
        last_bytes: read only this much of the end, where the first line may be cut; 0: the whole file.

    Raises:
        OSError, UnsafePath: the file cannot be read, or is not an ordinary file.
    """
    if not os.path.lexists(path):
        return []
    with open_file(path, "rb") as file:
        if last_bytes:
            file.seek(max(0, file.seek(0, io.SEEK_END) - last_bytes))
        lines: list[bytes] = file.read().split(b"\n")
    numbered = enumerate(lines if unfinished else lines[:-1], start=1)
    return [MetricsLine(number, text, _values(text)) for number, text in numbered if text.strip()]


def read_whole_lines(path: Path, *, last_bytes: int = 0) -> list[dict[str, Any]]:
    """The values of all undamaged lines. Arguments and errors as in `read_lines`."""
    return [line.values for line in read_lines(path, last_bytes=last_bytes) if line.values is not None]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The values of all lines, oldest first; an unfinished last line is left out.

    Raises:
        ConfigError: the file cannot be read, or a line is damaged.
        UnsafePath: it is not an ordinary file.
    """
    rows = []
    try:
        for number, text, values in read_lines(path):
            if values is None:
                said = f"{path}, line {number}, is damaged: {text[:60]!r}"
                raise ConfigError(f"{said}. Remove that line; `shoal resume` does it, and keeps the file as it was.")
            rows.append(values)
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _values(text: bytes) -> dict[str, Any] | None:
    """None unless it is an object with a step and a time."""
    row = None
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(text)
    if not isinstance(row, dict) or not all(_is_number(row.get(name)) for name in _RESERVED):
        return None
    return {name: value if _is_number(value) else None for name, value in row.items()}
