"""Metrics of a run: one JSON line at a time, and the same numbers for TensorBoard and Weights & Biases.

with MetricsLog(folder.path, tensorboard=True) as log:
    log.write(12_000, {"rollout/ep_rew_mean": 87.5, "time/fps": 4100.0}, wall=3.2)

read_metrics(folder.metrics_jsonl)   # [{"step": 12000, "wall": 3.2, "rollout/ep_rew_mean": 87.5, ...}]
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import math
import netrc
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from shoal.errors import ConfigError, UnsafePath
from shoal.files import open_file

_RESERVED = frozenset({"step", "wall"})
_WANDB_STEP = "env_steps"
_files = itertools.count()


@dataclass(frozen=True)
class WandbSettings:
    """How a run shows up in Weights & Biases.

    Attributes:
        project, entity, group, name, tags: as in `wandb.init`.
        run_id: give the same one again when a run resumes, and its curves go on.
        config: the scenario, shown beside the curves.
    """

    project: str = "shoal"
    entity: str | None = None
    group: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    run_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class MetricsLog:
    """Appends to `<folder>/metrics.jsonl`, and to TensorBoard and W&B if asked.

    A full disk does not end a run: lines are left out, or TensorBoard stops, and `take_notes()` says so.
    """

    def __init__(self, folder: Path, tensorboard: bool = True, wandb: WandbSettings | None = None) -> None:
        self._notes: list[str] = []
        self._told_lost = False
        self._tensorboard: _TensorBoard | None = None
        self._wandb: Any = None
        self._path = folder / "metrics.jsonl"
        _cut_partial_line(self._path)
        self._file = open_file(self._path, "ab", buffering=0)
        try:
            if tensorboard:
                self._tensorboard = _TensorBoard(folder / "tensorboard")
            if wandb is not None:
                self._wandb = _start_wandb(folder, wandb, self._notes)
        except BaseException:
            self.close()
            raise

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        """Records values at one moment.

        Args:
            step: environment steps so far.
            values: numbers by name (`rollout/ep_rew_mean`, `train/loss`, ...); NaN and infinities are null in the file.
            wall: seconds the run has been training, over all its resumptions.
        """
        numbers = {name: float(value) for name, value in values.items()}
        if clash := _RESERVED & numbers.keys():
            raise ValueError(f"a metric cannot be called {' or '.join(sorted(clash))}")
        line: dict[str, float | None] = {"step": int(step), "wall": round(float(wall), 3)}
        line.update({name: value if math.isfinite(value) else None for name, value in numbers.items()})
        self._append(json.dumps(line).encode() + b"\n", int(step))
        if self._tensorboard is not None:
            try:
                self._tensorboard.write(int(step), numbers)
            except OSError as error:
                self._notes.append(f"TensorBoard stopped at step {step} ({error.strerror}); training goes on.")
                self._tensorboard.close()
                self._tensorboard = None
        if self._wandb is not None:
            try:
                self._wandb.log({_WANDB_STEP: int(step), **numbers})
            except Exception as error:  # its service process died: training matters more, and the file has it all
                self._notes.append(f"W&B stopped at step {step} ({error!r}); metrics.jsonl goes on.")
                self._wandb = None

    def take_notes(self) -> list[str]:
        """Lines the user should see, such as why W&B is offline; each once."""
        notes, self._notes = self._notes, []
        return notes

    def _append(self, line: bytes, step: int) -> None:
        """Writes a line whole or not at all."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._file.close()  # it was deleted: a new one is made, which fails where the folder is gone, too
            self._file = open_file(self._path, "ab", buffering=0)
        size = self._file.seek(0, io.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
            self._told_lost = False
        except OSError as error:
            self._file.truncate(size)
            if not self._told_lost:
                self._notes.append(f"No metrics are written from step {step} on ({error.strerror}); training goes on.")
                self._told_lost = True

    def close(self) -> None:
        """Ends all of them; safe to call twice."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None
        if self._wandb is not None:
            self._wandb.finish()
            self._wandb = None

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines, oldest first; a last line that a kill cut short, or that is being written, is left out.

    Raises:
        ConfigError: it cannot be read, or a line before the last is not one that Shoal wrote.
        UnsafePath: it is not an ordinary file.
    """
    rows: list[dict[str, Any]] = []
    try:
        for number, (line, row) in enumerate(whole_lines(path), start=1):
            if row is None:
                said = f"{path}, line {number}, is damaged: {line[:60]!r}"
                raise ConfigError(f"{said}. Remove that line; `shoal resume` does it, and keeps the file as it was.")
            rows.append(row)
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    return rows


def whole_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Every line that ends, and its content: None if it is damaged. Nothing when there is no file.

    Raises:
        OSError, UnsafePath: it cannot be read, or is not an ordinary file.
    """
    if not os.path.lexists(path):
        return
    with open_file(path, "rb") as file:
        data: bytes = file.read()
    for line in data.split(b"\n")[:-1]:  # what follows the last newline is nothing, or cut short
        row = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
        yield line, row if isinstance(row, dict) and _is_whole(row) else None


def _is_whole(row: dict[str, Any]) -> bool:
    """Whether it has a step and a time, and numbers for the rest; null is for one that was not finite."""
    numbers = [value for value in row.values() if value is not None]
    finite = all(isinstance(value, int | float) and math.isfinite(value) for value in numbers)
    return finite and all(row.get(name) is not None for name in _RESERVED)


def keep_whole_lines(path: Path, set_aside: Callable[[Path], str]) -> str:
    """Sets a damaged file aside and leaves its whole lines in its place; says what was done, empty if nothing."""
    try:
        lines = list(whole_lines(path))
    except OSError as error:
        return f"{error.strerror}; it is set aside as {set_aside(path)}"
    except UnsafePath:
        if path.is_symlink():  # somebody wants the run to write elsewhere, or the user has a reason: ask
            raise
        return f"it is not an ordinary file; it is set aside as {set_aside(path)}"
    whole = [line for line, row in lines if row is not None]
    if len(whole) == len(lines):
        return ""
    aside = set_aside(path)
    path.write_bytes(b"".join(line + b"\n" for line in whole))
    return f"{len(lines) - len(whole)} of {len(lines)} lines cannot be read; the whole file is kept as {aside}"


class _TensorBoard:
    """Scalars in event files.

    TensorBoard's own records need no torch (0.4 s to import against 2.8 s), and `simple_value`, unlike its newer
    `tensorboard.summary.Writer`, is what readers of SB3's logs expect (`EventAccumulator.Scalars`). Not its
    `EventFileWriter`: that writes in a thread, which prints a traceback when the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._proto: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            records = importlib.import_module("tensorboard.summary.writer.record_writer")
        except ImportError as error:
            raise ConfigError(
                f"TensorBoard cannot be imported ({error}). Run `pip install tensorboard`, or switch it off."
            ) from error
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
        self._file = open_file(folder / name, "xb")
        self._records: Any = records.RecordWriter(self._file)
        self._add(self._proto.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        summary = self._summary.Summary(value=values)
        self._add(self._proto.Event(wall_time=time.time(), step=step, summary=summary))

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: what could be written was, at each write
            self._file.close()


def _cut_partial_line(path: Path) -> None:
    """Removes what a kill left of a last line, so that the next one starts on its own."""
    if not path.exists():
        return
    with open_file(path, "r+b") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def _start_wandb(folder: Path, settings: WandbSettings, notes: list[str]) -> Any:
    try:
        wandb: Any = importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            f'W&B cannot be imported ({error}). Run `pip install "shoal-rl[wandb]"`, or leave out --wandb.'
        ) from error
    wanted = os.environ.get("WANDB_MODE")
    mode = wanted or ("online" if _has_wandb_key() else "offline")
    sync = f"Send it later with `wandb sync {folder / 'wandb' / 'offline-run-*'}`."
    if mode == "offline":
        reason = "WANDB_MODE says so" if wanted else "no API key: `wandb login`, or set WANDB_API_KEY"
        notes.append(f"W&B is offline ({reason}). {sync}")
    try:
        run = _init_wandb(wandb, folder, settings, mode)
    except wandb.errors.Error as error:  # no network, a refused key: training matters more than its upload
        if mode == "offline":
            raise ConfigError(f"W&B cannot start: {error}. Leave out --wandb to train without it.") from error
        notes.append(f"W&B is offline ({error}). {sync}")
        run = _init_wandb(wandb, folder, settings, "offline")
    # Not W&B's own step: that one may never go back, and a run that resumes from a checkpoint does.
    run.define_metric(_WANDB_STEP)
    run.define_metric("*", step_metric=_WANDB_STEP)
    return run


def _init_wandb(wandb: Any, folder: Path, settings: WandbSettings, mode: str) -> Any:
    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        group=settings.group,
        name=settings.name or folder.name,
        tags=list(settings.tags) or None,
        id=settings.run_id,
        resume="allow" if settings.run_id else None,
        config=dict(settings.config),
        dir=str(folder),
        mode=mode,
        settings=wandb.Settings(silent=True, console="off", init_timeout=30),  # the terminal is ours
    )


def _has_wandb_key() -> bool:
    """Whether W&B could log in without asking; looked up here, because `wandb.init` would prompt."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(os.path.expanduser(path)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
