"""SharedBuffer: one buffer of a registry, as its `entry.json` says. Others wrote that file: its content is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.errors import ConfigError, ShoalError
from shoal.sharing.description import Description

UNREADABLE = (OSError, ShoalError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What reading a file that anybody may have written can raise."""


@dataclass(frozen=True)
class SharedBuffer:
    """One buffer of a registry."""

    buffer_id: str
    run_id: str
    algorithm: str
    pid: int
    description: Description | None = None
    """None until its first row is written."""
    shards: tuple[Path, ...] = ()
    made: float = 0.0
    """When its shards were made: new ones at the old place are another buffer."""

    def to_json(self) -> dict[str, Any]:
        """What `entry.json` holds; the buffer's id is its folder's name."""
        described = None if self.description is None else self.description.to_json()
        data = {"run_id": self.run_id, "algorithm": self.algorithm, "pid": self.pid, "description": described}
        return data | {"shards": [str(path) for path in self.shards], "made": self.made}

    @staticmethod
    def from_json(buffer_id: str, data: Mapping[str, Any]) -> SharedBuffer:
        """The inverse of `to_json`; raises one of `UNREADABLE`."""
        require_name("buffer_id", buffer_id)
        require_name("run_id", str(data["run_id"]))
        described, made = data["description"], float(data["made"])
        description = None if described is None else Description.from_json(described)
        shards = tuple(Path(path) for path in data["shards"])
        if not math.isfinite(made) or not all(path.is_absolute() and "\0" not in str(path) for path in shards):
            raise ValueError("it holds a path or a time that cannot be")
        who = (buffer_id, str(data["run_id"]), str(data["algorithm"]), int(data["pid"]))
        return SharedBuffer(*who, description, shards, made)


def require_name(what: str, name: str) -> None:
    """Names become folders."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,150}", name):
        raise ConfigError(f"{what} = {name!r} cannot be a folder's name: use letters, digits, '.', '-', '_', '='.")
