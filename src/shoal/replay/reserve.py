"""Files whose space is reserved when they are made.

A sparse mapped file gets its pages when they are first written. A process that writes one when no memory is left is
killed by SIGBUS, without a message. So every mapped file is reserved, and a run knows what it needs before it starts.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from shoal.errors import NoSpace
from shoal.replay.storage import gib

PAGE = 4096
"""Files take multiples of this many bytes."""
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def reserved_bytes(nbytes: int) -> int:
    """Bytes that a file of `nbytes` takes on disk."""
    return -(-nbytes // PAGE) * PAGE


def reserve_file(path: Path, nbytes: int) -> None:
    """Makes a file of zeros and reserves its space.

    Raises:
        NoSpace: there is too little space; no file is left.
    """
    try:
        # Checked first: some file systems fill the whole disk before they refuse.
        if nbytes > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(path, "xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, nbytes)
            else:  # macOS: the file is sparse, its space is only checked here
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
