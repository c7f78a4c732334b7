"""Copies of a run's folder between machines without shared storage: plain bytes, in chunks.

The newer of two files wins; copies keep the time of the original, so what is the same is not sent twice.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

from shoal.errors import UnsafePath
from shoal.files import open_file
from shoal.metrics_file import METRICS_FILE

CHUNK_BYTES = 4 * 2**20
_OF_ONE_MACHINE = ("run.lock", "replay.json", "processes.json")
"""Files that mean nothing elsewhere."""
_BULKY = ("tensorboard", "videos", "wandb")
"""Folders that nothing of Shoal's reads: they are copied when the run has ended."""


class Stamp(NamedTuple):
    """Says whether a file has changed."""

    size: int
    time: int
    """Of its last change, in nanoseconds."""


class Shelf(Protocol):
    """A folder, here or elsewhere, that files are copied from and to. Names are relative, with slashes."""

    def stamps(self) -> Mapping[str, Stamp]: ...

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp]:
        """At most `CHUNK_BYTES` from there on, and what the file is now."""
        ...

    def write(self, name: str, offset: int, data: bytes, last: Stamp | None) -> None:
        """Adds to a new file; `last`: it is complete, gets this time and takes the place of the old one."""
        ...


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

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp]:
        with open_file(self._inside(name), "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES), _stamp(os.fstat(file.fileno()))

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
        if relative.is_absolute() or ".." in relative.parts or path.parent.resolve() != path.parent.absolute():
            raise UnsafePath(f"{name} is not inside of {self.path}: it is not copied.")
        return path


def copy_newer(source: Shelf, target: Shelf, *, bulky: bool = True) -> None:
    """Copies what the target lacks or has an older version of.

    Args:
        bulky: also what is large and can wait for the end.
    """
    there = target.stamps()
    for name, stamp in source.stamps().items():
        known = there.get(name)
        if (bulky or name.partition("/")[0] not in _BULKY) and (known is None or known.time < stamp.time):
            _copy(source, target, name)


def fetch(source: Shelf, target: Folder, *, bulky: bool) -> None:
    """Brings a copy up to date, and removes the checkpoints that the original no longer has."""
    copy_newer(source, target, bulky=bulky)
    there = source.stamps()
    for name in target.stamps():
        if name.startswith("checkpoints/") and name not in there:
            target.remove(name)


def _copy(source: Shelf, target: Shelf, name: str) -> None:
    try:
        data, first = source.read(name, 0)
        offset = 0
        while offset + len(data) < first.size:
            target.write(name, offset, data, None)
            offset += len(data)
            data, now = source.read(name, offset)
            # Metrics only grow, so a part of them is whole lines and one that is not. Other files are replaced, and
            # halves of two would be mixed: the next look takes the new one.
            if not data or (now != first and name != METRICS_FILE):
                return
        target.write(name, offset, data, first)
    except FileNotFoundError:  # an old checkpoint that was removed meanwhile
        return


def _stamp(found: os.stat_result) -> Stamp:
    return Stamp(found.st_size, found.st_mtime_ns)
