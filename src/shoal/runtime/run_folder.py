"""The folder of a run: the files in it, which process owns it, and the documents that describe the run.

folder = RunFolder.create(None, "CartPole-v1", "apex-dqn", datetime.now())
with folder.lock():
    folder.write_run_json(seed=1, command=sys.argv)
    folder.write_json("summary.json", Summary(status="solved", ...))

folder = RunFolder.open(Path("runs/latest"))
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import platform
import re
import shlex
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import IO

from shoal.errors import ConfigError, RunInUse, UnsafePath
from shoal.files import Inside, atomic_write, open_file, read_object, refuse_link, to_json
from shoal.metrics_file import METRICS_FILE
from shoal.runtime.summary import Status as Status
from shoal.runtime.summary import Summary as Summary

RUNS = Path("runs")
LATEST = "latest"
CONFIG_END = "# end of config.yaml"
"""The last line of a run's `config.yaml`, so that a file that was cut at a line break is recognized."""
_REQUIRED = ("config.yaml", "run.json")
_PACKAGES = ("shoal-rl", "torch", "ray", "gymnasium", "numpy")
_LOCK_NAME = "run.lock"
_WRITTEN_FOLDERS = ("checkpoints", "tensorboard", "videos", "wandb", "replay_on_disk")
_held: dict[tuple[int, int], int] = {}
"""Locks of this process: device and inode of the file (a locked folder can be renamed), and the process id. POSIX locks
do not exclude a second owner in the same process, and closing any handle of the file would free them.
"""


class RunLock:
    """Ownership of a run folder until `release()`, the end of a `with`, or the end of the process, even by a kill."""

    def __init__(self, path: Path) -> None:
        self._file = _lock_file(path)
        self._number = _number(os.fstat(self._file.fileno()))
        _held[self._number] = os.getpid()
        self._file.truncate(0)
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the name
            self._file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            self._file.flush()

    def release(self) -> None:
        if not self._file.closed and _held.get(self._number) == os.getpid():  # a forked child owns nothing
            del _held[self._number]
            self._file.truncate(0)
        self._file.close()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True)
class RunFolder:
    """Paths, ownership and documents of one run: `runs/CartPole-v1_apex-dqn_20260131-154500`."""

    path: Path

    config_yaml = Inside("config.yaml")
    metrics_jsonl = Inside(METRICS_FILE)
    tensorboard = Inside("tensorboard")
    checkpoints = Inside("checkpoints")
    videos = Inside("videos")
    summary_json = Inside("summary.json")
    run_json = Inside("run.json")
    replay_json = Inside("replay.json")
    """Points to the run's replay, which outlives its processes, often on /dev/shm."""

    @classmethod
    def create(cls, out: Path | None, env_id: str, algo: str, now: datetime) -> RunFolder:
        """Makes a new `<out>/<env>_<algo>_<time>[-k]` (out: `runs` when None) and points `<out>/latest` at it."""
        parent = (RUNS if out is None else out).absolute()  # other processes have other working directories
        name = f"{safe_name(env_id)}_{safe_name(algo)}_{now:%Y%m%d-%H%M%S}"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = parent / (name if number == 1 else f"{name}-{number}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    break
        except OSError as error:
            raise ConfigError(f"Cannot make runs in {parent}: {error.strerror}. Choose another --out.") from error
        point_latest(parent, path.name)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens an existing run. A link such as `runs/latest` is resolved here, once."""
        missing = [name for name in _REQUIRED if not (path / name).is_file()]
        if not missing:
            return cls(path.resolve())
        if path.is_dir():
            why = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        elif path.is_symlink():
            why = f"it points to {path.readlink()}, which is gone"
        else:
            why = "it is a file" if path.exists() else "there is no such folder"
        nearby = ", ".join(map(str, _nearby(path)))
        hint = f"Runs nearby: {nearby}" if nearby else "Start one with `shoal train`"
        raise ConfigError(f"{path} is not a run folder: {why}. {hint}.")

    def lock(self) -> RunLock:
        """Takes ownership.

        Raises:
            RunInUse: another process owns the folder; names it.
            UnsafePath: a folder inside it that runs write into is a link.
        """
        for name in _WRITTEN_FOLDERS:
            refuse_link(self.path / name)
        return RunLock(self.path / _LOCK_NAME)

    def owner(self) -> str | None:
        """`<pid> on <host>` of the live process that owns the folder, or None."""
        return _owner(self.path / _LOCK_NAME)

    def write_json(self, name: str, content: object) -> Path:
        """Writes a JSON document atomically. Takes dataclasses, paths and numpy's values; NaN becomes null."""
        text = json.dumps(to_json(content), indent=2, ensure_ascii=False) + "\n"
        atomic_write(self.path / name, text.encode("utf-8", "surrogateescape"))  # paths as the file system has them
        return self.path / name

    def count_resumption(self) -> int:
        """How often the run was resumed, this time included. A count that was lost starts again at 1."""
        before = read_object(self.path / "resumed.json")
        times, executions = before.get("times"), before.get("executions")
        times = (max(0, times) if isinstance(times, int) else 0) % 2**31 + 1
        executions = [*(executions if isinstance(executions, list) else ()), uuid.uuid4().hex]
        self.write_json("resumed.json", {"times": times, "executions": executions})
        return times

    def write_run_json(self, *, seed: int | None, command: Sequence[str], **extra: object) -> Path:
        """Writes what is needed to repeat this run: versions, git commit, machine, seed, command line. Another machine
        that takes the run over keeps its id.
        """
        content = {
            "id": read_object(self.run_json).get("id") or uuid.uuid4().hex,
            "created": datetime.now().astimezone().isoformat(timespec="seconds"),
            "command": shlex.join(command),
            "seed": seed,
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "git": _git(),
            "machine": machine(),
            **extra,
        }
        return self.write_json("run.json", content)


def machine() -> dict[str, object]:
    """Host, system, CPU, memory and GPUs; asks nvidia-smi for GPUs, so that no CUDA context is made."""
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpus": [line.strip() for line in (gpus or "").splitlines() if line.strip()],
    }


def safe_name(name: str) -> str:
    """An id as part of a file name: `ALE-Pong-v5` for `ALE/Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "unnamed"


def point_latest(parent: Path, name: str) -> None:
    """Makes `<parent>/latest` a link to this run."""
    temporary = parent / f".{LATEST}.{name}"
    # Only a convenience: a file system without links, or a folder of that name, must not stop a run.
    with contextlib.suppress(OSError):
        temporary.symlink_to(name)
        try:
            temporary.replace(parent / LATEST)
        finally:
            temporary.unlink(missing_ok=True)


def _nearby(path: Path, limit: int = 5) -> list[Path]:
    """Run folders in, beside or above `path` and under `runs`, newest first."""
    found = {parent for parent in path.parents if (parent / "run.json").is_file()}
    for folder in (path, path.parent, RUNS):
        with contextlib.suppress(OSError):
            found |= {one for one in folder.iterdir() if not one.is_symlink() and (one / "run.json").is_file()}
    return sorted(found, key=lambda one: (one / "run.json").stat().st_mtime, reverse=True)[:limit]


def _lock_file(lock: Path) -> IO[str]:
    for _ in range(4):
        owner = _owner(lock)
        if owner is None:
            file = open_file(lock, "a+")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except OSError:  # another process was faster, or is asking for the owner
                file.close()
        time.sleep(0.05)
    raise RunInUse(f"Run {lock.parent} is in use by process {owner or '(unknown)'}. Wait for it, or stop it first.")


def _owner(lock: Path) -> str | None:
    try:
        if _held.get(_number(lock.lstat())) == os.getpid():
            return f"{os.getpid()} on {socket.gethostname()}"
        file = open_file(lock, "r")
    except (FileNotFoundError, UnsafePath):  # only ordinary files are locked
        return None
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except OSError:
            return str(file.readline()).strip() or "(unknown)"


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _git() -> dict[str, object] | None:
    """The commit of the working directory, where the user's environments and scenarios are."""
    commit = _output("git", "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(_output("git", "status", "--porcelain", "--untracked-files=no"))}


def _output(*command: str) -> str | None:
    """What a command prints; None when it is not installed, fails or hangs."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True).stdout
    return None
