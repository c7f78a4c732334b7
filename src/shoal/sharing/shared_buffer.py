"""SharedBuffer: one buffer of a registry, as its `entry.json` describes it. Others wrote that file: it is checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from shoal.errors import ConfigError, ShoalError
from shoal.sharing.description import Description

UNREADABLE = (OSError, ShoalError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors of reading a file that any program may have written."""


@dataclass(frozen=True)
class SharedBuffer:
    """One buffer of a registry."""

    buffer_id: str
    """The name of its folder."""
    run_id: str
    algorithm: str
    pid: int
    description: Description | None = None
    """None until its first row is written."""
    shards: tuple[Path, ...] = ()
    made: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """When its shards were made: new ones at the old place are another buffer."""
    env_id: str = ""
    """The environment it was registered with; empty when none was named."""
    origin: str = ""
    """For a mirror: its original's node, name and generation; see `mirrored_peers`. Empty for a buffer of this node."""
    refused: str = ""
    """Why a mirror could not be made; empty when there is one."""

    def __post_init__(self) -> None:
        require_name("buffer_id", self.buffer_id)
        require_name("run_id", self.run_id)
        if not all(path.is_absolute() and "\0" not in str(path) for path in self.shards):
            raise ValueError(f"shards = {self.shards}: each must be an absolute path")


def require_name(what: str, name: str) -> None:
    """Refuses a name that cannot be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,150}", name):
        raise ConfigError(f"{what} = {name!r} cannot be a folder's name: use letters, digits, '.', '-', '_', '='.")
