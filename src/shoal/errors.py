"""Everything Shoal raises on purpose.

    ShoalError
    ├── ConfigError          a setting, key, name or value that cannot be used
    │   └── UnknownName      an unknown algorithm, environment, key ...; names the nearest known one
    ├── EnvError             an environment raised, or returned NaN or a wrong shape
    ├── ReplayError
    │   ├── CorruptShard     a shard's files do not agree with its schema
    │   ├── NoSpace          the replay does not fit where it should go
    │   └── WrongSchema      rows that do not fit the shard
    ├── CheckpointError      a checkpoint cannot be read
    ├── RunInUse             another live process owns this run folder
    ├── UnsafePath           a link, or not an ordinary file, where Shoal would write
    ├── PlacementError       the cluster cannot place a role
    └── MachineError         no space, no permission, too few file handles

Each message names the value and the remedy; the command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class ShoalError(Exception):
    """Base of all errors Shoal raises on purpose."""


class ConfigError(ShoalError):
    """A setting, key, name or value that cannot be used."""


class UnknownName(ConfigError):
    """An unknown name; the message proposes the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        choice = "" if near or not known else f" Known: {listed}."
        super().__init__(f"Unknown {kind} {name!r}.{hint}{choice}" + (f" {remedy}" if remedy else ""))


class EnvError(ShoalError):
    """An environment raised, or returned NaN or a wrong shape."""


class ReplayError(ShoalError):
    """Base of the replay plane's errors."""


class CorruptShard(ReplayError):
    """A shard's files do not agree with its schema."""


class NoSpace(ReplayError):
    """The replay does not fit where it should go."""


class WrongSchema(ReplayError):
    """Rows that do not fit the shard."""


class CheckpointError(ShoalError):
    """A checkpoint cannot be read."""


class RunInUse(ShoalError):
    """Another live process owns this run folder."""


class UnsafePath(ShoalError):
    """A link, or not an ordinary file, where Shoal would write."""


class PlacementError(ShoalError):
    """The cluster cannot place a role."""


class MachineError(ShoalError):
    """The machine refuses: no space, no permission, too few file handles."""


_REMEDIES = {
    errno.ENOSPC: "Free some space there, or choose another folder.",
    errno.EDQUOT: "Free some space there, or choose another folder.",
    errno.EROFS: "Make it writable, or choose another folder.",
    errno.EACCES: "Change its permissions, or choose another folder.",
    errno.EPERM: "Change its permissions, or choose another folder.",
    errno.ENAMETOOLONG: "Choose a folder with a shorter path.",
    errno.EEXIST: "Move it away, then try again.",
    errno.EISDIR: "Move it away, then try again.",
    errno.ENOTDIR: "Move it away, then try again.",
    errno.EMFILE: "Allow more files with `ulimit -n 4096` and try again in the same shell.",
}


def explained(error: OSError, place: object = None) -> str:
    """An error of the operating system as a sentence, with a remedy where one is known.

    Args:
        error: what was raised.
        place: the file or folder, if the error does not name it.
    """
    about = error.filename if error.filename is not None else place
    reason = error.strerror or str(error) or type(error).__name__
    remedy = f" {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
    return f"{reason if about is None else f'{about}: {reason}'}.{remedy}"


@contextmanager
def on_failure(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` if what is inside raises, whatever it raises."""
    try:
        yield
    except BaseException:
        undo()
        raise
