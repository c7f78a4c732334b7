"""Aligned 64-bit counters on shared memory: the only words Shoal's processes exchange on one machine without a
message.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
from enum import IntEnum
from pathlib import Path

from shoal.errors import CorruptShard

WORDS = 32
_KEEPS_ORDER = platform.machine().lower() in ("x86_64", "amd64")
"""Whether the processor itself keeps stores in order, and loads."""
LARGE_COPY = 16_384
"""Bytes from which a C library may copy past the caches (glibc: 16,448 at the least, most often a few MB). x86 does not
keep such stores behind those before them; behind such a copy the library puts a fence of its own.
"""
_mutex = threading.Lock()


def fence(copying: int = 0) -> None:
    """Orders memory accesses around it.

    Python offers no fence, but giving back a mutex and taking it again is one on every platform; ARM needs it. Once
    would not do: what comes before may slip into the held stretch from one side, and what comes after from the other.

    Args:
        copying: bytes that will be copied next in one piece, which nobody may see before what was stored before it.
    """
    if _KEEPS_ORDER and copying < LARGE_COPY:
        return
    with _mutex:
        pass
    with _mutex:
        pass


class Counters:
    """A file of 64-bit words, mapped. Each word has one writer; aligned 8-byte loads and stores do not tear."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        size = WORDS * 8
        try:
            file = open(path, "r+b" if writable else "rb")
        except FileNotFoundError as error:
            raise CorruptShard(f"{path} is missing.") from error
        with file:
            if os.fstat(file.fileno()).st_size != size:
                raise CorruptShard(f"{path} has {os.fstat(file.fileno()).st_size} bytes instead of {size}.")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), size, access=access)
        self.words = memoryview(self._map).cast("Q")  # an aligned word at a time, and quicker than an array

    @staticmethod
    def create(path: Path) -> Counters:
        """A new file of zeros; or the one another process made first, as it is."""
        building = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        building.write_bytes(bytes(WORDS * 8))
        try:
            os.link(building, path)  # unlike a rename it never replaces
        except FileExistsError:
            pass
        finally:
            building.unlink()
        return Counters(path, writable=True)

    def __getitem__(self, word: IntEnum) -> int:
        return self.words[word]

    def __setitem__(self, word: IntEnum, value: int) -> None:
        self.words[word] = value

    def add(self, word: IntEnum, amount: int) -> None:
        """Adds to a word; only its one writer may."""
        self.words[word] += amount
