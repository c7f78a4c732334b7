"""Folders of a test session: one on disk, and one on real shared memory where there is some.

Each of pytest-xdist's workers has a part of both. The process that starts the workers makes them and removes them all:
a worker that is killed leaves nothing.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from typing import Literal

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
"""None: this process starts the workers, or there are none."""
_VARIABLES = {"disk": "SHOAL_TESTS_ON_DISK", "memory": "SHOAL_TESTS_IN_MEMORY"}
"""Workers inherit them."""


def make_folder(place: Literal["disk", "memory"], name: str) -> str:
    """This process's part of a session's folder."""
    folder = os.path.join(os.environ[_VARIABLES[place]], WORKER or "main", name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _begin() -> None:
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for place, parent in (("disk", None), ("memory", shared)):
        made = os.environ[_VARIABLES[place]] = tempfile.mkdtemp(prefix="shoal-tests-", dir=parent)
        atexit.register(shutil.rmtree, made, ignore_errors=True)


if WORKER is None:
    _begin()
