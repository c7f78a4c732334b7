"""Aligned 64-bit counters on shared memory, with which Shoal's processes on one machine coordinate without messages."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import threading
from enum import IntEnum
from pathlib import Path

from shoal.errors import CorruptShard, ReplayError, UnsafePath
from shoal.files import open_file, put_if_first
from shoal.replay.reserve import reserve_file

WORDS = 32
LARGEST_COUNT = 2**48
"""A million steps a second for nine years. A larger word is damaged."""
_KEEPS_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether the processor keeps the order of stores, and of loads."""
LARGE_COPY = 16_384
"""Bytes from which a C library may bypass the caches (glibc: from 16,448, usually some MB). x86 may reorder such stores
before earlier ones; after such a copy the library has a fence of its own.
"""
_mutex = threading.Lock()


def fence(copying: int = 0) -> None:
    """Orders memory accesses around it.

    Python has no fence, but releasing a mutex and taking it again is one on every platform; ARM needs it. Once is not
    enough: accesses from both sides may move into one locked section.

    Args:
        copying: bytes of the copy that follows, which must not be visible before what was stored before it.
    """
    if _KEEPS_ORDER and copying < LARGE_COPY:
        return
    with _mutex:
        pass
    with _mutex:
        pass


def map_file(path: Path, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Maps a file. Raises CorruptShard if it is missing, not an ordinary file, or not of `nbytes` bytes."""
    try:
        with open_file(path, "r+b" if writable else "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != nbytes:
                raise CorruptShard(f"{path} has {size} bytes instead of {nbytes}.")
            return mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise CorruptShard(f"{path} is missing.") from error
    except UnsafePath as error:
        raise CorruptShard(str(error)) from error
    except OSError as error:
        if error.errno == errno.EMFILE:
            if _raise_file_limit():
                return map_file(path, nbytes, writable=writable)
            raise ReplayError(
                f"{path} cannot be opened: this process has too many open files, about nine for each shard. Raise the "
                "limit (`ulimit -n`), or use fewer actors with more lanes (env.lanes)."
            ) from error
        raise CorruptShard(f"{path} cannot be opened: {error.strerror}.") from error


def _raise_file_limit() -> bool:
    """Lets this process open as many files as the system allows; False if it may already."""
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


class Counters:
    """A file of 64-bit words, mapped. Each word has one writer; aligned 8-byte loads and stores do not tear."""

    def __init__(self, path: Path, *, writable: bool, count: int = WORDS) -> None:
        """Args:
        path: a file that `create` made.
        writable: whether this process writes some of its words.
        count: how many words there are.

        Raises:
            CorruptShard: there is no such file, or it has another size.
        """
        self.path = path
        self.words = memoryview(map_file(path, count * 8, writable=writable)).cast("Q")
        # A memoryview: it reads an aligned word at a time, and is quicker than an array.

    @staticmethod
    def create(path: Path, count: int = WORDS) -> Counters:
        """Makes a file of zeros; or opens the one that another process made first."""
        building = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        reserve_file(building, count * 8)
        put_if_first(building, path)
        return Counters(path, writable=True, count=count)

    def __getitem__(self, word: IntEnum) -> int:
        return self.words[word]

    def __setitem__(self, word: IntEnum, value: int) -> None:
        self.words[word] = value

    def add(self, word: IntEnum, amount: int) -> None:
        """Adds to a word; only its one writer may."""
        self.words[word] += amount
