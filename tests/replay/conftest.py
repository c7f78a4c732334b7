"""What the replay tests share: marked rows, small shards, and writers in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

import shoal
from shoal.replay import Column, Schema, ShardInfo, ShardReader, ShardWriter, create_shard, step_schema
from shoal.types import EnvSpec

PROGRAM = Path(__file__).with_name("writer_process.py")
SOURCE = Path(str(shoal.__file__)).parents[1]


@pytest.fixture(scope="session")
def marked() -> ModuleType:
    """Rows that say which row they are; see `writer_process.py`."""
    spec = importlib.util.spec_from_file_location("marked_rows", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Nursery:
    """Starts and kills writers; each is a real process."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._alive: set[int] = set()

    def _ask(self, **command: Any) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def start(self, path: Path, *, salt: int, seed: int = 0, chunks: bool = True) -> int:
        """A process that writes marked rows into a shard at full speed; its number."""
        pid = self._ask(do="start", path=str(path), salt=salt, seed=seed, chunks=chunks)
        self._alive.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """SIGKILL, and wait until it is gone. Fails when the writer had died of something else."""
        self._alive.discard(pid)
        os.kill(pid, signal.SIGKILL)
        status = self._ask(do="wait", pid=pid)
        assert status == -signal.SIGKILL, f"the writer ended by itself with {status}"

    def end_of(self, pid: int, seconds: float = 20.0) -> int:
        """The exit status of a writer that ends by itself."""
        deadline = time.monotonic() + seconds
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "the writer goes on"
            time.sleep(0.005)
        self._alive.discard(pid)
        return self._ask(do="wait", pid=pid)

    def close(self) -> None:
        """Ends whatever a failed test left."""
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Writers in processes of their own."""
    nursery = Nursery()
    yield nursery
    nursery.close()


def small_schema(
    *, obs: tuple[int, ...] = (2,), dtype: str = "float32", stack: int = 1, extras: tuple[Column, ...] = ()
) -> Schema:
    """A schema of few bytes."""
    shape = (stack, *obs) if stack > 1 else obs
    return step_schema(EnvSpec("Toy-v0", shape, dtype, stack, num_actions=3, action_shape=()), extras)


class Shards:
    """Makes small shards in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made = 0

    def make(self, info: ShardInfo) -> Path:
        """An empty shard."""
        self._made += 1
        path = self.folder / f"shard-{self._made}"
        create_shard(path, info)
        return path

    def small(self, rows: int, lanes: int = 1, **schema: Any) -> tuple[ShardWriter, ShardReader]:
        """A shard of few bytes, opened for writing and for reading."""
        path = self.make(ShardInfo(small_schema(**schema), rows, lanes))
        return ShardWriter(path), ShardReader(path)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    """Makes shards for one test."""
    return Shards(tmp_path)


@pytest.fixture(scope="session")
def shards_in() -> Callable[[Path], Shards]:
    """Makes shards in a given folder, for tests that need many folders."""
    return Shards


@pytest.fixture(scope="session")
def schema_of() -> Callable[..., Schema]:
    """Makes schemas of few bytes."""
    return small_schema


@pytest.fixture(scope="session")
def blank() -> Callable[..., dict[str, Any]]:
    """Makes rows of zeros, [count, lanes, ...], with some columns given."""

    def make(info: ShardInfo, count: int, **given: Any) -> dict[str, Any]:
        rows = {c.name: np.zeros((count, info.lanes, *c.shape), c.dtype) for c in info.schema.columns}
        for name, values in given.items():
            rows[name][:] = values
        return rows

    return make
