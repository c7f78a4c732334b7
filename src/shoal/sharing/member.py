"""Membership, MemberShard: a run's identity in a group, and its shard there.

Without a registry the shard is private: its files are unlinked at once, so that not even a killed process leaves memory
behind.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import warnings
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import ConfigError, NoSpace
from shoal.replay import Schema, ShardInfo, ShardReader, ShardWriter, create_shard
from shoal.replay.storage import PRIVATE, sharing_folder
from shoal.sharing.description import Description
from shoal.sharing.presence import Presence
from shoal.sharing.registry import BUFFER_ID, ENV_ID, REGISTRY, RUN_ID, Registry, connect_registry
from shoal.sharing.shared_buffer import SharedBuffer


@dataclass(frozen=True)
class Membership:
    """A run's identity in a group. Environment variables, which `shoal share` sets, are the defaults."""

    registry: Registry | None
    buffer_id: str
    run_id: str
    algorithm: str
    env_id: str

    @staticmethod
    def resolve(registry: Registry | Path | str | None, buffer_id: str | None) -> Membership:
        """Joins the registry given or named by SHOAL_REGISTRY; alone when there is none."""
        run_id, env_id = os.environ.get(RUN_ID, ""), os.environ.get(ENV_ID, "")
        registry = registry or os.environ.get(REGISTRY) or None
        if registry is None and buffer_id:
            raise ConfigError(f"buffer_id = {buffer_id!r} without a registry; give registry=..., or set {REGISTRY}.")
        joined = connect_registry(registry) if isinstance(registry, Path | str) else registry
        if joined is None or _is_gone(joined):
            return Membership(None, "", run_id, "", env_id)
        buffer_id = buffer_id or os.environ.get(BUFFER_ID)
        buffer_id = buffer_id or joined.register_buffer(run_id or f"run-{os.getpid()}", "", env_id)
        known = joined.entry(buffer_id)
        if known is None:
            return Membership(joined, buffer_id, run_id or buffer_id, "", env_id)
        return Membership(joined, buffer_id, known.run_id, known.algorithm, known.env_id or env_id)

    def bounded(self, buffer_size: int) -> int:
        """The buffer size, cut to the registry's limit with a warning."""
        most = self.registry.max_buffer_size if self.registry else buffer_size
        if most < buffer_size:
            warnings.warn(
                f"buffer_size = {buffer_size:,} is cut to the registry's max_buffer_size, {most:,}; "
                "raise it in create_distributed_registry(...), or ask for a smaller buffer.",
                stacklevel=3,
            )
        return min(buffer_size, most)

    def rejoined(self) -> Membership:
        """The same; without a registry if that is gone."""
        return replace(self, registry=None) if self.registry is not None and _is_gone(self.registry) else self


class MemberShard:
    """A run's shard, open for writing and reading."""

    def __init__(self, member: Membership, schema: Schema, rows: int, lanes: int, description: Description) -> None:
        """Makes the shard and, in a registry, announces it.

        Args:
            member: who writes it.
            schema: its columns.
            rows: rows per lane.
            lanes: environments.
            description: what its rows mean.
        """
        member = member.rejoined()  # the registry may have gone since
        self.member = member = member if member.registry is None else _own(member)
        info = ShardInfo(schema, rows, lanes, member.run_id, member.env_id, member.algorithm, time.time())
        if member.registry is None:
            private = sharing_folder(PRIVATE)
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = Path(tempfile.mkdtemp(dir=private))
        else:
            folder = member.registry.folder(member.buffer_id)
            folder.mkdir(exist_ok=True)
        try:
            create_shard(folder / "shard", info)
        except NoSpace as error:
            raise NoSpace(f"{str(error).split('. ')[0]}. Lower buffer_size.") from error
        self.writer, self.reader = ShardWriter(folder / "shard"), ShardReader(folder / "shard")
        self._presence: Presence | None = None
        if member.registry is None:
            shutil.rmtree(folder)
        else:
            who = (member.buffer_id, member.run_id, member.algorithm, os.getpid())
            entry = SharedBuffer(*who, description, (folder / "shard",), info.created, member.env_id)
            self._presence = member.registry.announce(entry)
            _WRITTEN[member.registry.path, member.buffer_id] = self

    @property
    def lost(self) -> bool:
        """Whether others took this process for dead and removed its rows; they are still mapped here."""
        return self._presence is not None and self._presence.rows_lost

    def keep_private(self) -> None:
        """Stops reporting lost rows: they will not be shared again."""
        if self._presence is not None:
            self._presence.rows_lost = False

    def remove(self) -> None:
        """Removes the rows; readers that map them keep what they map."""
        if self.member.registry is not None:
            self.member.registry.deregister_buffer(self.member.buffer_id)


_WRITTEN: weakref.WeakValueDictionary[tuple[Path, str], MemberShard] = weakref.WeakValueDictionary()
"""What this process writes. A buffer of this process that is missing here was replaced, for instance by loading one."""


def _is_gone(registry: Registry) -> bool:
    if gone := not registry.exists:
        warnings.warn(f"The registry {registry.path} is gone; this run shares with nobody.", stacklevel=5)
    return gone


def _own(member: Membership) -> Membership:
    """The same member, with a new id if a live process, or this one, writes its buffer already."""
    assert member.registry is not None
    known = member.registry.entry(member.buffer_id)
    mine, written = (member.registry.path, member.buffer_id), member.registry.is_held(member.buffer_id)
    if known is not None and known.pid == os.getpid():
        gc.collect()  # SB3's callbacks keep a replaced buffer for a while
        written = mine in _WRITTEN
    if known is not None and known.shards and written:
        buffer_id = member.registry.register_buffer(member.run_id, member.algorithm, member.env_id)
        return replace(member, buffer_id=buffer_id)
    shutil.rmtree(member.registry.folder(member.buffer_id) / "shard", ignore_errors=True)  # of one that died
    return member
