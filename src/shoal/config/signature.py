"""Signatures tell which run folders this user made.

The key is a secret file in the user's configuration folder (`~/.config/shoal/key`). It signs the settings in
`config.yaml` that refer to things outside the run folder, see `SIGNED`. Moving or copying a run keeps its signature
valid. A run that somebody else made has no valid one, and changing a signed setting invalidates it.

Without a place for the key (no home folder, or a read-only one) nothing is signed, and no folder counts as the user's.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from pathlib import Path

from shoal.config.dump import dump_yaml
from shoal.errors import UnsafePath
from shoal.files import atomic_write, read_file
from shoal.loops.settings import RunSettings
from shoal.runtime.run_folder import CONFIG_END

SIGNATURE = "config.signature"
SIGNED = {
    "env": {"id", "kwargs", "wrappers"},
    "algo": True,
    "algorithm": {"network"},
    "address": True,
    "checkpoints": {"path"},
    "replay": {"path"},
    "share": {"registry"},
}
"""What Shoal would import, connect to, or write to outside the run folder. Other settings may be edited by hand."""
KEY_BYTES = 32


def write_config(folder: Path, settings: RunSettings) -> None:
    """Writes a run's `config.yaml`, signed."""
    atomic_write(folder / "config.yaml", f"{dump_yaml(settings)}\n{CONFIG_END}\n".encode())
    sign(folder, settings)


def sign(folder: Path, settings: RunSettings) -> None:
    """Marks a run folder with these settings as the user's own, if there is a key or one can be made."""
    path = key_path()
    key = path and (_read_key(path) or _make_key(path))
    if key:
        atomic_write(folder / SIGNATURE, _signature(key, settings))


def is_signed(folder: Path, settings: RunSettings) -> bool:
    """Whether this user signed a run folder with these settings."""
    path = key_path()
    key = path and _read_key(path)
    if key:
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, UnsafePath):
            return hmac.compare_digest(read_file(folder / SIGNATURE, 2 * KEY_BYTES), _signature(key, settings))
    return False


def key_path() -> Path | None:
    """Where this user's key is, or would be; None without a home folder."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    with contextlib.suppress(RuntimeError):  # no home folder
        return Path(base if os.path.isabs(base) else Path.home() / ".config") / "shoal" / "key"
    return None


def _signature(key: bytes, settings: RunSettings) -> bytes:
    content = settings.model_dump(mode="json", include=SIGNED)  # type: ignore[arg-type]
    if settings.checkpoints.path is None:  # as before there was this setting: older signatures hold
        del content["checkpoints"]
    return hmac.new(key, json.dumps(content).encode(), hashlib.sha256).hexdigest().encode()


def _read_key(path: Path) -> bytes | None:
    """The key, if no other user can have read or placed it."""
    with contextlib.suppress(OSError):
        above = path.parent.stat()
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and not above.st_mode & 0o022
            if private and found.st_uid == above.st_uid == os.geteuid():
                key = file.read(KEY_BYTES + 1)
                return key if len(key) == KEY_BYTES else None
    return None


def _make_key(path: Path) -> bytes | None:
    """Makes a key. One that others could read is replaced; what it signed has to be trusted again."""
    with contextlib.suppress(OSError):
        nearest = next(one for one in path.parents if one.exists())
        if nearest.stat().st_uid != os.geteuid():  # as under sudo: the folder would belong to root
            return None
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent)  # 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            try:
                os.link(temporary, path)
            except FileExistsError:
                if _read_key(path) is None:  # else another process was faster, and its key is used
                    os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return _read_key(path)
