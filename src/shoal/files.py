"""Safe files and folders: nothing is opened through a link, and a private folder is private.

Other users of a machine can plant a folder or a link where a file is about to be written, and a run folder may come
from somebody else. Following a link would let them choose the file that is overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any

from shoal.errors import UnsafePath, on_failure

_LARGEST_DOCUMENT = 2**24
"""Bytes: far more than any document of a run has, and far less than the memory."""


def open_file(path: Path, mode: str, buffering: int = -1, encoding: str | None = None) -> IO[Any]:
    """As `open`, but raises UnsafePath for a link, and for a pipe or a device, which could block forever."""
    return open(path, mode, buffering, encoding, opener=_open_real)


def read_file(path: Path, most: int = _LARGEST_DOCUMENT) -> bytes:
    """A whole file that somebody else may have written; raises UnsafePath if it has more than `most` bytes."""
    with open_file(path, "rb") as file:
        data: bytes = file.read(most + 1)
    if len(data) > most:
        raise UnsafePath(f"{path} is larger than {most} bytes.")
    return data


def read_json(path: Path) -> Any:
    """A JSON document, with paths as this process spells them.

    Raises:
        OSError: it cannot be read; FileNotFoundError when there is none.
        ValueError: it is not JSON, too large, or not an ordinary file.
    """
    try:
        return json.loads(os.fsdecode(read_file(path)))
    except (RecursionError, UnsafePath) as error:
        raise ValueError(str(error)) from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object, or a YAML mapping in a `.yaml` file; empty when it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        content = _read_yaml(path) if path.suffix == ".yaml" else read_json(path)
        return content if isinstance(content, dict) else {}
    return {}


def _read_yaml(path: Path) -> Any:
    """Raises as `read_json`."""
    import yaml  # here, because most who read files need no YAML

    try:
        return yaml.safe_load(read_file(path))
    except (RecursionError, UnsafePath, yaml.YAMLError, LookupError, AttributeError) as error:
        # The last two: PyYAML does not check that a value fits its tag, as in `!!bool maybe` or `!!timestamp x`.
        raise ValueError(str(error)) from error


def to_json(value: Any) -> Any:
    """Dataclasses, named tuples, paths and numpy's values as JSON has them; numbers that are not finite become None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(one) for one in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_real(path: str, flags: int) -> int:
    try:
        # O_NONBLOCK: a pipe without a reader is refused, not waited for.
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise _unsafe(path) from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _unsafe(path)
    return file


def _unsafe(path: str | Path) -> UnsafePath:
    what = f"a link to {os.readlink(path)}" if os.path.islink(path) else "not an ordinary file"
    return UnsafePath(f"{path} is {what}, which Shoal does not open. Remove it, then try again.")


def atomic_write(path: Path, data: bytes) -> None:
    """Writes a file so that at any moment, and after a power cut, it is the old one or the complete new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # left by a killed writer, or a link that somebody planted
    with on_failure(lambda: temporary.unlink(missing_ok=True)):
        with open_file(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_link(folder: Path) -> None:
    """Raises UnsafePath for a folder that is a link: files would be written, and old ones removed, where it points."""
    if folder.is_symlink():
        raise _unsafe(folder)


def is_own_folder(folder: Path) -> bool:
    """Whether a folder is real, this user's, and nobody else can write into it."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not others_write
    return False


def make_private(folder: Path) -> bool:
    """Makes a folder that only this user can enter, or makes this user's existing folder private. False if it exists
    and is a link, belongs to somebody else, or others could write into it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not is_own_folder(folder):
        return False
    folder.chmod(0o700)
    return True


class Inside:
    """A path inside a folder that an object of a frozen class names, as an attribute of it."""

    def __init__(self, name: str, of: str = "path") -> None:
        self._name, self._of = name, of

    def __get__(self, owner: object, kind: type) -> Path:
        folder: Path = getattr(owner, self._of)
        return folder / self._name


def put_if_first(building: Path, path: Path) -> bool:
    """Gives a finished file its name, unless another process was first: unlike a rename this never replaces."""
    try:
        os.link(building, path)
        return True
    except FileExistsError:
        return False
    finally:
        building.unlink()
