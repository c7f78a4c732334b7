"""Copies of a run's folder between machines without shared storage: plain bytes, in chunks.

A copy keeps the time of the original: a file with the same size and time is the same, and is not sent again. Which of
two different files is the right one is decided by the direction of the copy, and by the executions that the run has
had (`history`), never by time: two machines have two clocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from shoal.errors import UnsafePath
from shoal.files import open_file
from shoal.metrics_file import METRICS_FILE

CHUNK_BYTES = 4 * 2**20
_OF_ONE_MACHINE = ("run.lock", "processes.json")
"""Files that mean nothing elsewhere. `replay.json` does: it holds the mark by which other nodes' shards are found."""
OF_THE_USER = ("config.yaml", "config.signature")
"""Files that are written where the command is typed; a home only reads them."""
_BULKY = ("tensorboard", "videos", "wandb")
"""Folders that nothing of Shoal's reads: they are copied when the run has ended."""


class Stamp(NamedTuple):
    """Says whether a file has changed."""

    size: int
    time: int
    """Of its last change, in nanoseconds."""


class Source(Protocol):
    """A folder, here or elsewhere, that files are copied from. Names are relative, with slashes."""

    def stamps(self) -> Mapping[str, Stamp]: ...

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        """At most `CHUNK_BYTES` from there on, and what the file is now; None: there is none."""
        ...


class Shelf(Source, Protocol):
    """A folder that files are also copied to."""

    def write(self, name: str, offset: int, data: bytes, last: Stamp | None) -> None:
        """Adds to a new file; `last`: it is complete, gets this time and takes the place of the old one."""
        ...

    def remove(self, name: str) -> None: ...


class Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamps(self) -> dict[str, Stamp]:
        return dict(self._stamps())

    def _stamps(self) -> Iterator[tuple[str, Stamp]]:
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                inside = path.relative_to(self.path).as_posix()
                with contextlib.suppress(FileNotFoundError):
                    found = path.lstat()
                    if stat.S_ISREG(found.st_mode) and not name.startswith(".") and inside not in _OF_ONE_MACHINE:
                        yield inside, _stamp(found)

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        try:
            with open_file(self._inside(name), "rb") as file:
                file.seek(offset)
                return file.read(CHUNK_BYTES), _stamp(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None

    def write(self, name: str, offset: int, data: bytes, last: Stamp | None) -> None:
        path = self._inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        if not offset:
            part.unlink(missing_ok=True)
        with open_file(part, "ab") as file:
            file.truncate(offset)
            file.write(data)
        if last is not None:
            os.utime(part, ns=(last.time, last.time))
            part.replace(path)

    def remove(self, name: str) -> None:
        self._inside(name).unlink(missing_ok=True)

    def _inside(self, name: str) -> Path:
        """Refuses names that lead out of the folder, also through a link: another machine said them."""
        relative = PurePosixPath(name)
        path = self.path / relative
        real = self.path.resolve() / relative.parent
        if relative.is_absolute() or ".." in relative.parts or path.parent.resolve() != real:
            raise UnsafePath(f"{name} is not inside of {self.path}: it is not copied.")
        return path


def update_copy(source: Source, target: Shelf, *, bulky: bool = True, keep: Collection[str] = ()) -> None:
    """Makes a copy the same as its original; of files that only the copy has, removes checkpoints and nothing else.

    Args:
        bulky: also what is large and can wait for the end.
        keep: files that the copy keeps as they are, if it has them.
    """
    here, there = source.stamps(), target.stamps()
    for name, stamp in here.items():
        kept = there.get(name) == stamp or (name in there and name in keep)
        if not kept and (bulky or name.partition("/")[0] not in _BULKY):
            _copy(source, target, name)
    if any(map(_is_checkpoint, here)):  # else the original is perhaps being deleted
        for name in there:
            if _is_checkpoint(name) and name not in here and name not in keep:
                target.remove(name)


def hand_over(source: Source, target: Shelf) -> None:
    """Brings a run to where it goes on. That may have been its home before: what it did there since the last copy is
    kept, unless it was continued elsewhere meanwhile.
    """
    newer_there = continues(history(target), history(source))
    update_copy(source, target, keep=set(target.stamps()) - set(OF_THE_USER) if newer_there else ())


def history(folder: Source) -> list[str]:
    """The run's id, and one for every time that it was resumed; empty where there is no run."""
    run, executions = _document(folder, "run.json"), _document(folder, "resumed.json").get("executions")
    return [str(run.get("id")), *map(str, executions if isinstance(executions, list) else ())] if run else []


def continues(later: list[str], earlier: list[str]) -> bool:
    """Whether one history is the other, or began with it."""
    return later[: len(earlier)] == earlier != []


def _document(folder: Source, name: str) -> dict[str, Any]:
    found = folder.read(name, 0)
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(found[0]) if found else None
        return content if isinstance(content, dict) else {}
    return {}


def _is_checkpoint(name: str) -> bool:
    return name.startswith("checkpoints/")


def _copy(source: Source, target: Shelf, name: str) -> None:
    found = source.read(name, 0)
    if found is None:  # an old checkpoint that was removed meanwhile
        return
    data, first = found
    offset = 0
    while offset + len(data) < first.size:
        target.write(name, offset, data, None)
        offset += len(data)
        # Metrics only grow, so a part of them is whole lines and one that is not. Other files are replaced, and
        # halves of two would be mixed: the next look takes the new one.
        found = source.read(name, offset)
        if found is None or not found[0] or (found[1] != first and name != METRICS_FILE):
            return
        data = found[0]
    target.write(name, offset, data, first)


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns)
