"""A process of `shoal share`: `python -m shoal.cli.share_worker SPEC.json` does one run from start to end.

It stops cleanly on SIGTERM or SIGINT, and when the launcher is gone: then the last run removes the registry.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

    from shoal.runtime.sinks import WandbSettings
    from shoal.sharing.sb3_settings import Sb3Settings

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is told, as JSON.

    Attributes:
        run_id: the run's name, in its group and in W&B.
        folder: its folder.
        launcher: process id of the launcher, 0 for whoever starts the run; when it is not the parent any more, the run
            stops.
        registry: the registry's folder; None to train alone.
        group: W&B's group; None for no W&B.
        sb3: the settings of a Stable-Baselines3 run: its scenario's file may have changed since they were checked.
        scenario, overrides: of a run of Shoal's own algorithms.
    """

    run_id: str
    folder: str
    launcher: int
    registry: str | None
    group: str | None
    sb3: Mapping[str, Any] | None = None
    scenario: str = ""
    overrides: Sequence[str] = ()


def main(path: Path) -> int:
    """Does the run; returns the exit code: 0 when it finished or was stopped, 1 when it failed."""
    from shoal.runtime.signals import StopSignals

    spec = WorkerSpec(**json.loads(path.read_text(encoding="utf-8")))
    spec = spec if spec.launcher else replace(spec, launcher=os.getppid())
    stop, over = threading.Event(), threading.Event()
    with StopSignals() as signals:  # first, so that no signal is lost while everything is loaded
        signals.listen(stop.set)
        threading.Thread(target=_watch_launcher, args=(spec.launcher, over), daemon=True).start()
        from shoal.errors import ShoalError

        try:
            return _run_sb3(spec, stop) if spec.sb3 is not None else _run_shoal(spec, stop)
        except ShoalError as error:
            print(f"Error: {error}", file=sys.stderr, flush=True)
            return 1
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
        others = (one for one in registry.entries() if one.pid != os.getpid() and not one.origin)
        if not any(registry.is_held(one.buffer_id) for one in others):
            shutil.rmtree(path, ignore_errors=True)


def _run_sb3(spec: WorkerSpec, stop: threading.Event) -> int:
    """A run of Stable-Baselines3."""
    from shoal.config.sb3_scenario import dump_sb3_yaml
    from shoal.errors import UnsafePath
    from shoal.metrics_file import read_whole_lines
    from shoal.runtime.metrics import MetricsLog
    from shoal.runtime.run_folder import RunFolder
    from shoal.runtime.sinks import make_sinks
    from shoal.sharing.sb3_settings import Sb3Settings
    from shoal.sharing.sb3_summary import Sb3Summary

    folder = RunFolder(Path(spec.folder))
    with folder.lock():
        try:
            settings = Sb3Settings.model_validate(spec.sb3)
            folder.write_run_json(seed=settings.seed, command=sys.argv, algo=settings.algo, env_id=settings.env.id)
            folder.config_yaml.write_text(dump_sb3_yaml(settings), encoding="utf-8")
            from shoal.sharing.sb3_worker import train

            with _registered(spec, settings, stop):
                sinks = make_sinks(folder.path, _wandb(spec, settings), partial(print, flush=True))
                with MetricsLog(folder.path, sinks) as log:
                    summary = train(settings, folder.path, log.write, stop.is_set)
        except BaseException as error:
            traceback.print_exc()
            last: dict[str, Any] = {"step": 0, "wall": 0.0}
            with contextlib.suppress(OSError, UnsafePath):
                last = [last, *read_whole_lines(folder.metrics_jsonl)][-1]
            said = f"{type(error).__name__}: {error}"
            summary = Sb3Summary("failed", env_steps=last["step"], wall_seconds=last["wall"], error=said)
        folder.write_json("summary.json", summary)
    return int(summary.status == "failed")


@contextlib.contextmanager
def _registered(spec: WorkerSpec, settings: Sb3Settings, stop: threading.Event) -> Iterator[None]:
    """A place in the group. The rows of a run that has finished are served until the launcher frees them."""
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


def _run_shoal(spec: WorkerSpec, stop: threading.Event) -> int:
    """A run of Shoal's own algorithms: as `shoal train` does it, in a folder that exists."""
    from shoal.config.checks import check_environment, with_default_stop
    from shoal.config.load import left_out, load_target
    from shoal.config.signature import write_config
    from shoal.runtime.execution import execute
    from shoal.runtime.replay_folder import free_earlier_replay
    from shoal.runtime.run_folder import RunFolder

    folder = RunFolder(Path(spec.folder))
    settings = load_target(spec.scenario, spec.overrides, consent="")
    for note in left_out(spec.scenario, settings):
        print(note, flush=True)
    plan = check_environment(settings)
    plan = replace(plan, settings=with_default_stop(settings, plan.spec.reward_threshold))
    write_config(folder.path, plan.settings)
    if stop.is_set():  # from here on the run listens to signals itself
        return 0
    try:
        summary = execute(plan, folder, wandb=_wandb(spec, plan.settings))
    finally:
        if not settings.replay.keep:  # a group leaves no shared memory behind, however its runs ended
            free_earlier_replay(folder)
    return int(summary.status == "failed")


def _wandb(spec: WorkerSpec, settings: BaseModel) -> WandbSettings | None:
    from shoal.runtime.sinks import WandbSettings

    if spec.group is None:
        return None
    name = f"{Path(spec.folder).parent.name}_{spec.run_id}"
    return WandbSettings(name=name, group=spec.group, config=settings.model_dump(mode="json"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
