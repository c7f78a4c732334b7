"""TensorBoard and Weights & Biases: where the metrics of a run go besides `metrics.jsonl`."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import netrc
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from shoal.errors import ConfigError, on_failure
from shoal.files import open_file

_WANDB_STEP = "env_steps"
_files = itertools.count()


class Sink(Protocol):
    """A place that metrics are copied to. What `write` raises stops this sink, not the run."""

    name: str

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars in event files.

    TensorBoard's own records need no torch (0.4 s to import against 2.8 s), and `simple_value`, unlike its newer
    `tensorboard.summary.Writer`, is what readers of SB3's logs expect (`EventAccumulator.Scalars`). Its
    `EventFileWriter` is not used: it writes in a thread, which prints a traceback when the disk is full.
    """

    name = "TensorBoard"

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

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(self._proto.Event(wall_time=time.time(), step=step, summary=self._summary.Summary(value=scalars)))

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: every write flushed what it could
            self._file.close()


@dataclass(frozen=True)
class WandbSettings:
    """How a run shows up in Weights & Biases.

    Attributes:
        group, name: as in `wandb.init`.
        run_id: the same one again when a run resumes continues its curves.
        config: the scenario, shown beside the curves.
    """

    group: str | None = None
    name: str | None = None
    run_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


class Wandb:
    """A run in Weights & Biases; offline when there is no API key or no network, which `note` is told."""

    name = "W&B"

    def __init__(self, folder: Path, settings: WandbSettings, note: Callable[[str], None]) -> None:
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
            note(f"W&B is offline ({reason}). {sync}")
        try:
            self._run = _init_wandb(wandb, folder, settings, mode)
        except wandb.errors.Error as error:  # no network, or a refused key: training matters more than its upload
            if mode == "offline":
                raise ConfigError(f"W&B cannot start: {error}. Leave out --wandb to train without it.") from error
            note(f"W&B is offline ({error}). {sync}")
            self._run = _init_wandb(wandb, folder, settings, "offline")
        # Not W&B's own step, which may never decrease: a run that resumes from a checkpoint goes back.
        self._run.define_metric(_WANDB_STEP)
        self._run.define_metric("*", step_metric=_WANDB_STEP)

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        try:
            self._run.log({_WANDB_STEP: step, **values})
        except Exception:
            self._run = None  # its service process died: `finish` would wait for it
            raise

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


def make_sinks(folder: Path, wandb: WandbSettings | None, note: Callable[[str], None]) -> list[Sink]:
    """The sinks of a run: TensorBoard, and W&B if it was asked for. `note` takes sentences for the user."""
    board = TensorBoard(folder / "tensorboard")
    with on_failure(board.close):
        return [board] if wandb is None else [board, Wandb(folder, wandb, note)]


def _init_wandb(wandb: Any, folder: Path, settings: WandbSettings, mode: str) -> Any:
    return wandb.init(
        project="shoal",
        group=settings.group,
        name=settings.name or folder.name,
        id=settings.run_id,
        resume="allow" if settings.run_id else None,
        config=dict(settings.config),
        dir=str(folder),
        mode=mode,
        settings=wandb.Settings(silent=True, console="off", init_timeout=30),  # the terminal is ours
    )


def _has_wandb_key() -> bool:
    """Whether W&B can log in without asking; checked here because `wandb.init` would prompt."""
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
