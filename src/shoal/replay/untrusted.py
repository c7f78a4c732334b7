"""Files that another run wrote: opening one never waits, and reading one never takes much memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from shoal.errors import CorruptShard


def open_regular(path: Path) -> IO[bytes]:
    """Opens a file for reading; refuses links, and pipes and devices, which could keep a reader waiting for ever."""
    return open(path, "rb", opener=_open)


def read_regular(path: Path, most: int) -> bytes:
    """A whole file of at most so many bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise CorruptShard(f"{path} is larger than {most} bytes.")
    return data


def _open(path: str, flags: int) -> int:
    if os.path.islink(path):
        raise CorruptShard(f"{path} is a link.")
    # O_NONBLOCK: a pipe is opened at once, to be refused below.
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise CorruptShard(f"{path} is not an ordinary file.")
    return file
