"""Registry: who shares which shards with whom. A folder, nothing to start.

    <registry>/registry.json            sizes and times, written once
    <registry>/<buffer_id>/entry.json   whose buffer, what its rows mean, where its shards are
    <registry>/<buffer_id>/alive        which process holds the buffer, touched by it every few seconds
    <registry>/<buffer_id>/shard/       the rows (a Shoal run's own shards lie elsewhere; the entry says where)

A buffer whose process has ended, and that has been silent for `stale_seconds`, is removed with its rows by any process
that notices. The folder is renamed first, so that only one process removes it and no reader finds half of it. Rows that
a reader still maps stay readable. A suspended process keeps its buffer, however long. Whether a process of another
container lives is unknown: silence alone decides, and a process that was alive announces itself again.

What others wrote here is not trusted: an entry that cannot be read is skipped, and named by `look`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from shoal.errors import ConfigError
from shoal.files import put_if_first, read_file
from shoal.replay.storage import sharing_folder
from shoal.sharing.description import one_line
from shoal.sharing.presence import Presence
from shoal.sharing.process import ProcessId
from shoal.sharing.shared_buffer import UNREADABLE, SharedBuffer, require_name

STALE_SECONDS = 300.0
MIN_BUFFER_SIZE = 1000
REGISTRY = "SHOAL_REGISTRY"
"""Environment variable: the registry's folder. `shoal share` sets it for its runs."""
BUFFER_ID, RUN_ID, ENV_ID = "SHOAL_BUFFER_ID", "SHOAL_RUN_ID", "SHOAL_ENV_ID"
_FORMAT = 1
_ENTRY, _PROCESS = TypeAdapter(SharedBuffer), TypeAdapter(ProcessId)
_MOST_BYTES = 1 << 20
"""The largest entry that is read; a usual one has about a thousand bytes."""
_PRESENT: dict[tuple[Path, str], Presence] = {}
"""Buffers that this process announced, by registry and id, through any `Registry` object."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PRESENT.clear)  # threads do not survive a fork


class Look(NamedTuple):
    """What is in a registry: its buffers, and why some cannot be read, by id."""

    entries: list[SharedBuffer]
    damaged: dict[str, str]


class Registry:
    """A folder of buffers. Safe to use from any number of processes; picklable, as it holds only the path."""

    def __init__(self, path: Path) -> None:
        """Opens one that exists; `create_distributed_registry` makes one."""
        self.path = Path(path).resolve()
        try:
            settings = self._read("registry.json")
            self.max_buffer_size = int(settings["max_buffer_size"])
            self.min_buffer_size = int(settings["min_buffer_size"])
            self.stale_seconds = float(settings["stale_seconds"])
        except UNREADABLE as error:
            raise ConfigError(
                f"{self.path} is no registry ({error}). Make one with create_distributed_registry(path=...)."
            ) from error
        self._seen: dict[str, tuple[float, float]] = {}  # last sign of life, and when it was first seen here
        self._owner = False

    def register_buffer(self, run_id: str, algorithm: str, env_id: str = "") -> str:
        """Announces a buffer; returns its id. Others see it from its first row on."""
        require_name("run_id", run_id)
        buffer_id = f"{run_id}_{time.time_ns() // 1_000_000}_{uuid.uuid4().hex[:4]}"
        self.announce(SharedBuffer(buffer_id, run_id, algorithm, os.getpid(), env_id=env_id))
        return buffer_id

    def announce(self, entry: SharedBuffer) -> Presence:
        """Writes an entry, new or changed. It stays until it is deregistered or this process ends.

        A thread gives signs of life from now on, because the first row may take long. If others remove the entry
        nevertheless, it is written again, without its shards if those are gone too.
        """
        alive = self.folder(entry.buffer_id) / "alive"

        def come_back() -> bool:
            if not self.exists:
                return False
            whole = all(path.is_dir() for path in entry.shards)
            self._write(entry if whole else replace(entry, description=None, shards=()))
            presence.rows_lost = not whole
            return True

        self._quiet(entry.buffer_id)
        self._write(entry)
        presence = _PRESENT[self.path, entry.buffer_id] = Presence(alive, min(10.0, self.stale_seconds / 5), come_back)
        return presence

    def deregister_buffer(self, buffer_id: str) -> None:
        """Removes a buffer and its rows, if they still exist. A buffer that another live process holds comes back: it
        has to be deregistered there.
        """
        self._quiet(buffer_id)
        self._remove(self.folder(buffer_id))

    def hand_over(self, buffer_id: str) -> None:
        """Gives a buffer to the process that made the registry: its rows are served until that process ends."""
        self._quiet(buffer_id)
        with contextlib.suppress(OSError):  # the registry is gone
            _put(self.folder(buffer_id) / "alive", self._read("registry.json")["maker"])

    def take_over(self) -> None:
        """Makes this process the registry's maker, after one that was killed; keeps what that one was given."""
        settings = self._read("registry.json")
        _put(self.path / "registry.json", {**settings, "maker": asdict(ProcessId.current())})
        self._owner, before = True, _PROCESS.validate_python(settings["maker"])
        for entry in self.look(sweep=False).entries:
            if self._read_process(entry.buffer_id, "alive") == before:
                self.hand_over(entry.buffer_id)

    def entries(self, *, sweep: bool = True) -> Iterator[SharedBuffer]:
        """All buffers that a process holds or held until lately; with `sweep` the others are removed."""
        yield from self.look(sweep=sweep).entries

    def look(self, *, sweep: bool = True) -> Look:
        """As `entries`, and the damaged ones."""
        found = Look([], {})
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as listed:
            for folder in sorted(listed, key=lambda one: one.name):
                try:
                    if folder.is_symlink():
                        found.damaged[folder.name] = "its folder is a link"
                    elif folder.is_dir():
                        if self._is_abandoned(Path(folder.path), sweep):
                            if sweep:
                                self._remove(Path(folder.path))
                        elif not folder.name.startswith("."):
                            found.entries.append(self._read_entry(folder.name))
                except FileNotFoundError:  # being made or removed
                    continue
                except UNREADABLE as error:
                    found.damaged[folder.name] = f"its entry.json cannot be read ({one_line(_reason(error))})"
        return found

    def entry(self, buffer_id: str) -> SharedBuffer | None:
        """One buffer; None when there is none, or its entry cannot be read."""
        with contextlib.suppress(*UNREADABLE):
            return self._read_entry(buffer_id)
        return None

    def is_held(self, buffer_id: str) -> bool:
        """Whether the process that holds a buffer lives, on this machine."""
        holder = self._read_process(self.folder(buffer_id).name, "alive")
        return holder is not None and holder.lives

    def _read(self, *names: str) -> Any:
        return json.loads(read_file(self.path.joinpath(*names), _MOST_BYTES))

    def _read_entry(self, buffer_id: str) -> SharedBuffer:
        return _ENTRY.validate_python({**self._read(buffer_id, "entry.json"), "buffer_id": buffer_id})

    def _read_process(self, *names: str, key: str | None = None) -> ProcessId | None:
        """The process that a file names, or a key of it; None when it cannot be read."""
        with contextlib.suppress(*UNREADABLE):
            data = self._read(*names)
            return _PROCESS.validate_python(data if key is None else data[key])
        return None

    def _write(self, entry: SharedBuffer) -> None:
        folder = self.folder(entry.buffer_id)
        folder.mkdir(exist_ok=True)
        _put(folder / "alive", asdict(ProcessId.current()))
        _put(folder / "entry.json", _ENTRY.dump_python(entry, mode="json"))

    def folder(self, buffer_id: str) -> Path:
        """Where a buffer's entry and rows are."""
        require_name("buffer_id", buffer_id)
        return self.path / buffer_id

    def get_buffer_stats(self) -> dict[str, dict[str, Any]]:
        """Run, algorithm and rows of every buffer."""
        from shoal.sharing.peer import open_peer

        stats = {}
        for entry in self.entries():
            rows = 0
            with contextlib.suppress(*UNREADABLE):
                rows = sum(min(one.head, one.rows) * one.lanes for one in open_peer(entry.shards))
            stats[entry.buffer_id] = {"run_id": entry.run_id, "algorithm": entry.algorithm, "rows": rows}
        return stats

    def stop(self) -> None:
        """Stops this process's signs of life; the process that made the registry removes it, with all buffers."""
        for path, buffer_id in list(_PRESENT):
            if path == self.path:
                self._quiet(buffer_id)
        if self._owner:
            self._remove(self.path)

    def _quiet(self, buffer_id: str) -> None:
        """Stops this process's signs of life for a buffer."""
        if presence := _PRESENT.pop((self.path, buffer_id), None):
            presence.end()

    def _is_abandoned(self, folder: Path, sweep: bool) -> bool:
        """Whether no process holds a folder, and it has been silent for `stale_seconds`."""
        hidden = folder.name.startswith(".")
        holder = None if hidden else self._read_process(folder.name, "alive")
        if holder is not None and holder.lives:
            return False  # even if silent: the machine slept, or the process was suspended
        sign = folder / "alive"
        touched = (sign if not hidden and os.path.lexists(sign) else folder).lstat().st_mtime
        # For a process elsewhere only silence that was observed counts: clocks are set, machines sleep.
        elsewhere = sweep and holder is not None and not holder.here
        now = time.monotonic()
        seen, since = self._seen.get(folder.name, (math.nan, now))
        if seen != touched:
            since = now if elsewhere else now - max(0.0, time.time() - touched)
            self._seen[folder.name] = (touched, since)
        return now - since > self.stale_seconds

    def _remove(self, folder: Path) -> None:
        away = folder.with_name(f".{folder.name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):  # another process was first
            folder.rename(away)
            shutil.rmtree(away, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A saved model may be loaded when its registry is gone: `exists` tells.
        self.path, self._seen, self._owner = state["path"], {}, False
        self.max_buffer_size, self.min_buffer_size, self.stale_seconds = 1_000_000, MIN_BUFFER_SIZE, STALE_SECONDS
        if self.exists:
            self.__init__(self.path)  # type: ignore[misc]

    @property
    def maker_lives(self) -> bool:
        """Whether the process that made it still runs on this machine."""
        maker = self._read_process("registry.json", key="maker")
        return maker is not None and maker.lives

    @property
    def exists(self) -> bool:
        """Whether the folder is still there."""
        return (self.path / "registry.json").is_file()


def create_distributed_registry(
    max_buffer_size: int = 1_000_000,
    *,
    path: Path | str | None = None,
    address: str | None = None,
    name: str = "",
    node: str | None = None,
    min_buffer_size: int = MIN_BUFFER_SIZE,
    stale_seconds: float = STALE_SECONDS,
) -> Registry:
    """Makes a registry, or joins the one at `path`, or this machine's registry of a group on a Ray cluster.

    Args:
        max_buffer_size: most rows a buffer may hold.
        path: its folder; by default a new one on shared memory. Other processes join with `connect_registry(path)`.
        address: of a running Ray cluster, such as `auto`: runs on all its machines share. Needed only for a moment:
            this process is not connected to Ray afterwards, and does not end with it.
        name: of the group on the cluster. Its first member decides the sizes and times below, on each machine.
        node: Ray's id or name of this machine, if several of Ray's nodes are on it.
        min_buffer_size: rows a peer must have before it is sampled.
        stale_seconds: a buffer that is silent for so long is removed.
    """
    if max_buffer_size < 1 or min_buffer_size < 1 or not stale_seconds > 0:
        raise ConfigError(
            "max_buffer_size and min_buffer_size must be at least 1 and stale_seconds positive; "
            f"got {max_buffer_size}, {min_buffer_size} and {stale_seconds}."
        )
    sizes = {"max_buffer_size": max_buffer_size, "min_buffer_size": min_buffer_size, "stale_seconds": stale_seconds}
    if address is not None:
        from shoal.sharing.ray_join import join_group

        if path is not None or not name:
            raise ConfigError(
                f"address = {address!r} needs the group's name=..., and no path: each machine has its own."
            )
        return Registry(join_group(name, address, node, sizes))
    if name or node:
        raise ConfigError(f"name = {name!r} and node = {node!r} are of groups on a cluster: give its address=..., too.")
    folder = sharing_folder(f"registry-{uuid.uuid4().hex[:8]}") if path is None else Path(path)
    if _holds_other_files(folder):
        raise ConfigError(
            f"{folder} holds other files, and a registry removes everything in its folder: name a new one."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = {"format": _FORMAT, **sizes, "maker": asdict(ProcessId.current())}
    building = folder / f".registry.json.{uuid.uuid4().hex[:8]}"
    building.write_text(json.dumps(settings, indent=1))
    made = put_if_first(building, folder / "registry.json")
    registry = Registry(folder)
    registry._owner = made
    return registry


def _holds_other_files(folder: Path) -> bool:
    if not folder.is_dir() or (folder / "registry.json").is_file():
        return False
    # Files of another process that is making the same registry do not count.
    return any(not one.name.startswith((".registry.json.", "registry.json")) for one in folder.iterdir())


def connect_registry(path: Path | str | None = None) -> Registry:
    """Joins a registry that another process made; by default the one that SHOAL_REGISTRY names."""
    named = path or os.environ.get(REGISTRY)
    if not named:
        raise ConfigError(f"No registry was named: give its path, or set {REGISTRY} to it.")
    return Registry(Path(named))


def _put(path: Path, data: Any) -> None:
    """Writes a file, whole or not at all."""
    building = path.with_name(f"{path.name}.{os.getpid()}")
    building.write_text(json.dumps(data, indent=1))
    building.rename(path)


def _reason(error: Exception) -> str:
    """Why an entry cannot be read, without the web address that pydantic adds."""
    if not isinstance(error, ValidationError):
        return repr(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
