"""Where shards are stored: on shared memory if they fit, else on disk, or where the user says. And what dead runs left
there.
"""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from shoal.errors import NoSpace
from shoal.files import is_own_folder, make_private

SHARED_MEMORY = Path(os.environ.get("SHOAL_SHARED_MEMORY", "/dev/shm"))
"""The shared-memory file system; the environment variable is for tests and unusual machines."""
PRIVATE = "private"
"""Folder of buffers that are not shared; their files are removed as soon as they are mapped."""
MEMORY_SHARE = 0.85
"""Fraction of the free memory that a replay may take: the rest is for processes and batches."""


def gib(nbytes: float) -> str:
    """Bytes with a unit, such as 1.5 GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} B"


def _base(root: Path) -> Path:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        user = str(os.getuid())
    return root / f"shoal-{user}"


def _private(base: Path) -> Path:
    """The folder, private to this user. Another name beside it if another user made it first, or a link is there."""
    own = next(filter(make_private, _candidates(base)), None)
    return own or Path(tempfile.mkdtemp(prefix=f"{base.name}-", dir=base.parent))


def _candidates(base: Path) -> list[Path]:
    return [base, *sorted(base.parent.glob(f"{base.name}-*"))]


def choose_folder(name: str, nbytes: int, requested: Path | None, fallback: Path) -> Path:
    """Picks and makes the folder for a run's replay.

    Args:
        name: of the run and of the folder.
        nbytes: of all its shards.
        requested: `replay.path` of the configuration.
        fallback: a folder on disk for what does not fit on shared memory.
    """
    if requested is not None:
        free = available(requested)
        if nbytes > free:
            needs = f"The replay needs {gib(nbytes)}, but replay.path = {requested} has {gib(free)} free."
            raise NoSpace(f"{needs} Lower replay.capacity.")
        requested.mkdir(parents=True, exist_ok=True)
        return _make(requested / name)
    refused = []
    for root, what in ((SHARED_MEMORY, "shared memory"), (fallback, "the disk")):
        place = _existing(root)
        if (root == SHARED_MEMORY and place != root) or not os.access(place, os.W_OK):
            refused.append(f"{root} cannot be written")
            continue
        free = available(root)
        if nbytes <= free:
            return _make(_private(_base(root) if root == SHARED_MEMORY else root) / name)
        refused.append(f"{what} ({root}) has {gib(free)} to give")
    raise NoSpace(
        f"The replay needs {gib(nbytes)}, but {' and '.join(refused)}. "
        "Lower replay.capacity, set replay.path to a larger disk, or free what dead runs hold with `shoal clean`."
    )


def available(root: Path) -> int:
    """Bytes a replay may take in a folder; on shared memory at most `MEMORY_SHARE` of the machine's free memory."""
    free = shutil.disk_usage(_existing(root)).free
    if root == SHARED_MEMORY or str(root).startswith(str(SHARED_MEMORY)):
        return int(min(free, psutil.virtual_memory().available * MEMORY_SHARE))
    return free


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists. Nothing is made, so a refused request leaves nothing behind."""
    return next((one for one in (folder, *folder.absolute().parents) if one.is_dir()), folder)


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700)
        return folder
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))


def replay_folders() -> Iterator[Path]:
    """Every replay folder of a run that this user has on shared memory."""
    yield from (path for path in _held(SHARED_MEMORY) if not _is_shared(path) and path.name != PRIVATE)


def sharing_folders() -> Iterator[Path]:
    """Every registry of this user, and what unfinished buffers without a registry left."""
    for path in _held(_sharing_root()):
        if _is_shared(path):
            yield path
        elif path.name == PRIVATE:
            yield from _folders(path)


def _held(root: Path) -> Iterator[Path]:
    """The folders in this user's own folders under `root`; folders that another user made are ignored."""
    for own in filter(is_own_folder, _candidates(_base(root))):
        yield from _folders(own)


def _folders(base: Path) -> list[Path]:
    return sorted(path for path in base.iterdir() if path.is_dir() and not path.is_symlink())


def _is_shared(path: Path) -> bool:
    return (path / "registry.json").is_file()


def folder_bytes(folder: Path) -> int:
    """Bytes on disk of all files in a folder."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def sharing_folder(name: str) -> Path:
    """The path for a registry of shared buffers, in a private folder: on shared memory if there is any."""
    return _private(_base(_sharing_root())) / name


def _sharing_root() -> Path:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())
