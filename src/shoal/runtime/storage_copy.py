"""A copy of a run's folder at a URL (`checkpoints.path`): kept while the run goes on, fetched to resume it anywhere.

The only file that uses fsspec, which knows file, s3, gs, sftp and many more; most need a package of their own.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, RunInUse, ShoalError
from shoal.metrics_file import METRICS_FILE
from shoal.runtime.copies import CHUNK_BYTES, Folder, Source, Stamp, continues, history, update_copy
from shoal.runtime.run_folder import RUNS, RunFolder, point_latest, safe_name
from shoal.runtime.signals import StopSignals

COPY_SECONDS = 15.0
"""Between two copies of what has changed."""
LAST_SECONDS = 2.0
"""How long the last copy may take before it is told."""
MOST_PATIENCE = 600.0
"""Seconds, for a run whose copies take long."""
_SIGN = ".copy.json"
"""Says who writes the copy, and changes each time. It is no file of the run: its name is hidden."""
Note = Callable[[str], None]


class StorageFolder:
    """A run's folder at a URL, with one writer. Files are written under another name and moved: none is ever half."""

    def __init__(self, url: str) -> None:
        """Raises ValueError if it is no URL, ImportError without the package for it, or what its filesystem raises."""
        self.url = url.rstrip("/")
        if "://" not in url:
            raise ValueError("that is no URL, such as file:///folder or s3://bucket/folder")
        if url.startswith("file://") and not url.startswith("file:///"):  # each node would take its own working folder
            raise ValueError("a file's URL has three slashes and the whole path, such as file:///mnt/nas")
        self.connect()
        self._stamps: dict[str, Stamp] | None = None
        self._part: Any = None
        self._writer = secrets.token_hex(8)

    def connect(self) -> None:
        """Once more after an error: some filesystems keep a connection, and do not notice that it is dead."""
        from fsspec.core import url_to_fs  # here: most runs need none

        self._files, self._root = url_to_fs(self.url, skip_instance_cache=True)

    def stamps(self) -> dict[str, Stamp]:
        """What was found at first, and was written since. Files that were found differ from any other: a store has its
        own times.
        """
        if self._stamps is None:
            self._files.invalidate_cache()
            found, now = self._files.find(self._root, detail=True), time.time_ns()
            self._stamps = {
                path.removeprefix(f"{self._root}/"): Stamp(info["size"], now)
                for path, info in found.items()
                if info["type"] == "file" and not info.get("islink") and not posixpath.basename(path).startswith(".")
            }
        return self._stamps.copy()

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        stamp = self.stamps().get(name)
        if stamp is None or offset >= stamp.size:  # some stores refuse to read nothing
            return stamp and (b"", stamp)
        with contextlib.suppress(FileNotFoundError):
            return self._files.cat_file(self._path(name), start=offset, end=offset + CHUNK_BYTES), stamp
        return None

    def write(self, name: str, offset: int, data: bytes, last: Stamp | None) -> None:
        path, part = self._path(name), self._path(posixpath.join(posixpath.dirname(name), ".part"))
        if not offset:
            self._files.makedirs(posixpath.dirname(path), exist_ok=True)
            self._part = self._files.open(part, "wb")
        self._part.write(data)
        if last is not None:
            self._part.close()
            self._files.mv(part, path)
            if self._stamps is not None:
                self._stamps[name] = last

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
        if self._stamps is not None:
            self._stamps.pop(name, None)

    def sign(self, *, running: bool, seconds: float = 0.0) -> None:
        """Says who writes here, whether it goes on, and how long a copy takes."""
        content = {"writer": self._writer, "host": socket.gethostname(), "running": running, "seconds": seconds}
        self._files.makedirs(self._root, exist_ok=True)
        self._files.pipe_file(self._path(_SIGN), json.dumps({**content, "change": secrets.token_hex(8)}).encode())

    def signed(self) -> dict[str, Any]:
        """What the last writer said."""
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
            content = json.loads(self._files.cat_file(self._path(_SIGN)))
            return content if isinstance(content, dict) else {}
        return {}

    def is_ours(self) -> bool:
        """Whether nobody else has signed since. If somebody has emptied the folder, all is written again."""
        sign = self.signed()
        if not sign:
            self._stamps = None
        return not sign or sign.get("writer") == self._writer

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)


def require_writable(url: str | None) -> None:
    """Refuses a `checkpoints.path` that cannot be written, before anything starts."""
    if url is not None:
        with _in_words(f"checkpoints.path = {url}"):
            folder, name = StorageFolder(url), f".try-{secrets.token_hex(8)}"
            folder.write(name, 0, b"x", Stamp(1, 0))
            folder.remove(name)


def open_copy(url: str | None, folder: RunFolder) -> StorageFolder | None:
    """The copy of a run that is about to go on.

    Raises:
        ConfigError: it cannot be written, or is the copy of another run, or of one that went on elsewhere.
    """
    if url is None:
        return None
    require_writable(url)
    with _in_words(f"checkpoints.path = {url}"):
        copy = StorageFolder(f"{url.rstrip('/')}/{folder.path.name}")
        there = history(copy)
        if there and not continues(history(Folder(folder.path)), there):
            raise ConfigError(
                f"{copy.url} holds another run of this name, or this one as it went on elsewhere: `shoal resume "
                f"{copy.url}` continues that one. To continue the one here, give it another checkpoints.path."
            )
        copy.sign(running=True)
    return copy


@contextlib.contextmanager
def keep_copy(copy: StorageFolder | None, folder: RunFolder, note: Note, signals: StopSignals) -> Iterator[None]:
    """Keeps a run's copy up to date, in a thread. At the end all is copied; the user may hurry, and not wait for it."""
    if copy is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_keep, args=(copy, folder, note, ended), name="copy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_SECONDS)
        if thread.is_alive():
            note(f"the last files are being copied to {copy.url}; a second Ctrl-C does not wait for them")
        while thread.is_alive() and not signals.hurry:
            thread.join(0.2)
        if thread.is_alive():
            note(f"the copy at {copy.url} was not waited for: it may be older than {folder.path}")


def _keep(copy: StorageFolder, folder: RunFolder, note: Note, ended: threading.Event) -> None:
    failing, last, seconds = False, False, 0.0
    while not last:
        last, began = ended.wait(seconds), time.monotonic()
        seconds = COPY_SECONDS
        try:
            if failing:
                copy.connect()
            if copy.is_ours():
                update_copy(Folder(folder.path), copy, bulky=last)
            if not copy.is_ours():  # also if somebody came meanwhile
                return note(f"another machine writes to {copy.url} now: this one no longer does")
            copy.sign(running=not last, seconds=time.monotonic() - began)
            if failing:
                note(f"the run is copied to {copy.url} again")
            failing = False
        except Exception as error:  # every filesystem has its own
            if last or not failing:
                then = f"it is older than {folder.path}" if last else "it is tried again"
                note(f"the copy at {copy.url} could not be written ({_told(error)}); {then}")
            failing = True


def fetch_run(url: str, note: Note) -> Path:
    """Brings a run from its copy into `runs`, if the one there is older; returns its folder.

    Raises:
        ConfigError: there is no run, or another one of this name is here.
        RunInUse: it still goes on.
    """
    name = posixpath.basename(url.rstrip("/"))
    if safe_name(name) != name:
        raise ConfigError(f"{url} is no run: its URL ends with its name, as in s3://bucket/shoal/RUN_NAME.")
    path = RUNS.absolute() / name
    if owner := RunFolder(path).owner():
        raise RunInUse(f"{path} is in use by process {owner}. Wait for it, or stop it first.")
    with _in_words(url):
        source = StorageFolder(url)
        _require_ended(source, note)
        here, there = history(Folder(path)), history(source)
        if not there:
            raise ConfigError(f"{url} holds no run: there is no run.json.")
        if continues(here, there) and _age(Folder(path)) >= _age(source):
            note(f"{path} is not older than {url}, so it is used")
            return path
        if path.exists() and not continues(there, here):
            raise ConfigError(f"{path} is not an older state of {url}: move it away, or resume it instead.")
        part = path.with_name(f".{name}-{secrets.token_hex(4)}")
        try:
            update_copy(source, Folder(part))
            if path.exists():
                aside = path.with_name(f"{name}.before-{time.time():.0f}")
                path.rename(aside)
                note(f"the older {path} is now {aside}")
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    point_latest(path.parent, name)
    note(f"fetched {url} into {path}")
    return path


def _require_ended(source: StorageFolder, note: Note) -> None:
    """Waits as long as its writer may need for the next sign."""
    sign = source.signed()
    if sign.get("running"):
        seconds = max(0.0, min(MOST_PATIENCE, 2 * (COPY_SECONDS + float(sign.get("seconds", 0)))))
        note(f"this run did not say that it ended, on {sign.get('host')}: watching its copy for {seconds:.0f} s")
        time.sleep(seconds)
        if source.signed() != sign:
            raise RunInUse(f"{source.url} goes on, on {sign.get('host')}: stop it there first.")


def _age(folder: Source) -> tuple[int, int]:
    """Within one execution, metrics only grow."""
    return len(history(folder)), folder.stamps().get(METRICS_FILE, Stamp(0, 0)).size


@contextlib.contextmanager
def _in_words(what: str) -> Iterator[None]:
    """Filesystems raise whatever they like; for a missing package ImportError."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        missing = isinstance(error, ImportError)
        remedy = "Do so with pip on every node" if missing else "Check the URL, and the rights of this user there"
        raise ConfigError(f"{what} cannot be used: {_told(error)}. {remedy}.") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().rstrip(".")
