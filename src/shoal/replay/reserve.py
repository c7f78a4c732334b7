"""Files whose space is taken when they are made.

A mapped file that is only sized gets its pages when they are first written, and a process that writes one where no
memory is left is killed by SIGBUS, without a word. So everything that is mapped is reserved, and what a run will need
is known before it begins.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from shoal.errors import NoSpace
from shoal.replay.storage import gib

PAGE = 4096
"""Bytes that files take at least, and in multiples of."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def reserved_bytes(nbytes: int) -> int:
    """What a file of so many bytes takes."""
    return -(-nbytes // PAGE) * PAGE


def reserve_file(path: Path, nbytes: int) -> None:
    """Makes a file of zeros with its space.

    Raises:
        NoSpace: there is too little; no file is left.
    """
    try:
        # Asked first: some file systems fill the whole disk before they refuse.
        if nbytes > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(path, "xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:  # macOS has no such call: the file is sparse there, its space is checked at start only
                os.ftruncate(file.fileno(), nbytes)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        path.unlink(missing_ok=True)
        free = gib(shutil.disk_usage(path.parent).free)
        raise NoSpace(
            f"{path.name} needs {gib(nbytes)}, but {path.parent} has {free} free. "
            "Lower replay.capacity, set replay.path to a larger disk, or free what ended runs hold with `shoal clean`."
        ) from error
