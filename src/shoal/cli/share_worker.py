"""A process of `shoal share`: `python -m shoal.cli.share_worker SPEC.json` does one run, start to end.

It ends in order on SIGTERM or SIGINT, and by itself when the launcher is gone: then the last run removes the registry.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.runtime.sinks import WandbSettings
    from shoal.sharing.sb3_settings import Sb3Settings
    from shoal.sharing.sb3_summary import Sb3Summary

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is told.

    Attributes:
        run_id: the run's name, in its group and in W&B.
        folder: its folder.
        launcher: process id of the launcher; when it is not the parent any more, the run stops.
        registry: the registry's folder; None to train alone.
        group: W&B's group; None for no W&B.
        sb3: settings of a Stable-Baselines3 run, or None.
        scenario, overrides: of a run of Shoal's own.
    """

    run_id: str
    folder: str
    launcher: int
    registry: str | None
    group: str | None
    sb3: dict[str, Any] | None = None
    scenario: str = ""
    overrides: tuple[str, ...] = ()

    def write(self, path: Path) -> Path:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def read(path: Path) -> WorkerSpec:
        """The inverse of `write`."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return WorkerSpec(**{**data, "overrides": tuple(data["overrides"])})


def main(path: Path) -> int:
    """Does the run; returns the exit code: 0 when it finished or was stopped, 1 when it failed."""
    from shoal.runtime.signals import StopSignals

    spec = WorkerSpec.read(path)
    stop, over = threading.Event(), threading.Event()
    with StopSignals() as signals:  # first of all: a signal is not lost while everything is being loaded
        signals.listen(stop.set)
        threading.Thread(target=_watch_launcher, args=(spec.launcher, over), daemon=True).start()
        try:
            return _run_sb3(spec, stop) if spec.sb3 is not None else _run_shoal(spec, stop)
        finally:
            over.set()
            if spec.registry is not None and os.getppid() != spec.launcher:
                _free_registry(Path(spec.registry))


def _watch_launcher(launcher: int, over: threading.Event) -> None:
    while os.getppid() == launcher:
        if over.wait(_LOOK_SECONDS):
            return
    if not over.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def _free_registry(path: Path) -> None:
    """Removes a registry whose launcher is gone, unless another run is still alive in it."""
    from shoal.errors import ConfigError
    from shoal.sharing import connect_registry

    with contextlib.suppress(ConfigError):  # somebody else was first
        registry = connect_registry(path)
        if not any(one.pid != os.getpid() and registry.is_held(one.buffer_id) for one in registry.entries()):
            shutil.rmtree(path, ignore_errors=True)


# ---- Stable-Baselines3


def _run_sb3(spec: WorkerSpec, stop: threading.Event) -> int:
    from shoal.runtime.run_folder import RunFolder
    from shoal.sharing.sb3_settings import Sb3Settings

    folder = RunFolder(Path(spec.folder))
    with folder.lock():
        settings = Sb3Settings.model_validate(spec.sb3)
        _describe(folder, settings)
        try:
            with _registered(spec, settings, stop):
                summary = _train(spec, settings, folder, stop)
        except BaseException as error:
            traceback.print_exc()
            summary = _failed(folder.metrics_jsonl, error)
        folder.write_json("summary.json", summary)
    return int(summary.status == "failed")


def _failed(metrics: Path, error: BaseException) -> Sb3Summary:
    """How far it came, as its last line of metrics says."""
    from shoal.sharing.live_table import read_tail
    from shoal.sharing.sb3_summary import Sb3Summary

    last = read_tail(metrics)
    steps, wall = int(last.get("step", 0)), float(last.get("wall", 0.0))
    return Sb3Summary("failed", env_steps=steps, wall_seconds=wall, error=f"{type(error).__name__}: {error}")


def _describe(folder: Any, settings: Sb3Settings) -> None:
    from shoal.config.sb3_scenario import dump_sb3_yaml

    folder.write_run_json(seed=settings.seed, command=sys.argv, algo=settings.algo, env_id=settings.env.id)
    folder.config_yaml.write_text(dump_sb3_yaml(settings), encoding="utf-8")


@contextlib.contextmanager
def _registered(spec: WorkerSpec, settings: Sb3Settings, stop: threading.Event) -> Iterator[None]:
    """A place in the group. A run that has ended by itself keeps serving its rows until the launcher frees them."""
    if spec.registry is None:
        yield
        return
    from shoal.sharing import connect_registry
    from shoal.sharing.registry import BUFFER_ID

    registry = connect_registry(spec.registry)
    buffer_id = registry.register_buffer(spec.run_id, settings.algo, settings.env.sharing_id)
    os.environ[BUFFER_ID] = buffer_id
    try:
        yield
        if not stop.is_set() and os.getppid() == spec.launcher:
            registry.hand_over(buffer_id)
    finally:
        if stop.is_set() or os.getppid() != spec.launcher:
            registry.deregister_buffer(buffer_id)


def _train(spec: WorkerSpec, settings: Sb3Settings, folder: Any, stop: threading.Event) -> Any:
    from shoal.runtime.metrics import MetricsLog
    from shoal.sharing.sb3_worker import train

    wandb = _wandb(spec, settings.model_dump(mode="json"))
    with MetricsLog(folder.path, tensorboard=True, wandb=wandb) as log:
        for note in log.take_notes():
            print(note, flush=True)
        return train(settings, folder.path, log.write, stop.is_set)


def _wandb(spec: WorkerSpec, config: dict[str, Any]) -> WandbSettings | None:
    from shoal.runtime.sinks import WandbSettings

    if spec.group is None:
        return None
    return WandbSettings(name=f"{Path(spec.folder).parent.name}_{spec.run_id}", group=spec.group, config=config)


# ---- Shoal's own algorithms


def _run_shoal(spec: WorkerSpec, stop: threading.Event) -> int:
    """As `shoal train` does it, in a folder that is there already."""
    from shoal.config import check_environment, left_out, load_target, with_default_stop, write_config
    from shoal.errors import ShoalError
    from shoal.runtime.execution import execute
    from shoal.runtime.replay_folder import free_earlier_replay
    from shoal.runtime.run_folder import RunFolder

    folder = RunFolder(Path(spec.folder))
    try:
        settings = load_target(spec.scenario, spec.overrides, consent="")
        for note in left_out(spec.scenario, settings):
            print(note, flush=True)
        settings = with_default_stop(settings, check_environment(settings).reward_threshold)
        write_config(folder.path, settings)
        if stop.is_set():  # from here on, signals are the run's own business
            return 0
        try:
            summary = execute(settings, folder, wandb=_wandb(spec, settings.model_dump(mode="json")))
        finally:
            if not settings.replay.keep:  # a group leaves no shared memory behind, however its runs ended
                free_earlier_replay(folder)
    except ShoalError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 1
    return int(summary.status == "failed")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
