"""MirroredPeers: the buffers of other nodes, as ordinary buffers of this node's registry.

    offers = Offers(registry)                        mirrors = MirroredPeers(registry)             # on another node
    delivery = offers.deliver(wanted)                   mirrors.take(node, delivery)

Runs read a mirror like any other peer. Its entry is written when it has caught up with its original; until then most
of its rows would be empty. A mirror takes as much memory as its original; if there is too little, its entry says so and
has no rows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import dataclass, replace

from shoal.errors import NoSpace, ReplayError
from shoal.replay import Header, create_shard
from shoal.replay.mirror import Bytes, Chunk, MirrorWriter, chunk_bytes
from shoal.replay.storage import available, gib
from shoal.sharing.offers import Delivery, Offer, Wanted
from shoal.sharing.presence import Presence
from shoal.sharing.registry import Registry
from shoal.sharing.shared_buffer import UNREADABLE, SharedBuffer

RETRY_SECONDS = 30.0
"""Time until a mirror for which there was no room is tried again."""


@dataclass
class _Mirror:
    entry: SharedBuffer
    presence: Presence
    writers: list[MirrorWriter]
    until: tuple[int, ...]
    """Rows that the original had when the mirror was made."""
    made: float

    @property
    def generation(self) -> str:
        """Of its original."""
        return self.entry.origin.rpartition(" ")[2]


class MirroredPeers:
    """The mirrors of one node. One thread uses it."""

    def __init__(self, registry: Registry) -> None:
        """Takes over the mirrors that a killed predecessor left, where they are whole."""
        self._registry = registry
        self._mirrors: dict[tuple[str, str], _Mirror] = {}  # by node and buffer
        self._heard: dict[str, float] = {}
        self.lost = 0
        """Rows that were overwritten before they came here."""
        for entry in registry.look(sweep=False).entries:
            if entry.origin:
                self._adopt(entry)

    def wanted(self, node: str) -> dict[str, Wanted]:
        """How far the mirrors of a node's buffers have come."""
        return {
            buffer: Wanted(mirror.generation, tuple(writer.head for writer in mirror.writers))
            for (there, buffer), mirror in self._mirrors.items()
            if there == node and not mirror.entry.refused
        }

    def take(self, node: str, delivery: Delivery) -> None:
        """Makes, continues and removes mirrors as a node's answer says."""
        now = time.monotonic()
        self._heard[node] = now
        offers = {offer.entry.buffer_id: offer for offer in delivery.offers}
        for (there, buffer), mirror in list(self._mirrors.items()):
            if there == node:
                offer = offers.get(buffer)
                stale = offer is None or offer.generation != mirror.generation or mirror.presence.rows_lost
                if stale or (mirror.entry.refused and now - mirror.made > RETRY_SECONDS):
                    self._remove(there, buffer)
        at = 0
        for buffer, index, chunk in delivery.chunks:
            info = offers[buffer].shards[index]
            size = chunk_bytes(info, chunk.rows)
            if (node, buffer) in self._mirrors:
                self._append(node, buffer, index, chunk, delivery.rows[at : at + size])
            at += size
        for buffer, offer in offers.items():
            if (node, buffer) not in self._mirrors:
                self._mirrors[node, buffer] = self._make(node, offer)
            self._show(self._mirrors[node, buffer])

    def drop_silent(self) -> None:
        """Removes the mirrors of nodes that were not heard for the registry's `stale_seconds`."""
        now = time.monotonic()
        for node, buffer in list(self._mirrors):
            if now - self._heard.setdefault(node, now) > self._registry.stale_seconds:
                self._remove(node, buffer)

    def _append(self, node: str, buffer: str, index: int, chunk: Chunk, rows: Bytes) -> None:
        writer = self._mirrors[node, buffer].writers[index]
        try:
            gap = chunk.first - writer.head
            if gap > writer.info.rows:
                raise ReplayError("none of its rows follows")  # a new mirror begins where the original is now
            writer.append(chunk, rows)
            self.lost += gap
        except ReplayError:
            self._remove(node, buffer)

    def _make(self, node: str, offer: Offer) -> _Mirror:
        """A new mirror, without rows. Its entry names no shards yet."""
        registry, original = self._registry, offer.entry
        # The originals' names are unique on their own node only.
        mark = hashlib.sha256(f"{node} {original.buffer_id}".encode()).hexdigest()[:8]
        name, origin = f"{original.run_id[:120]}_{mark}@{node[:8]}", f"{node} {original.buffer_id} {offer.generation}"
        entry = replace(original, buffer_id=name, pid=os.getpid(), shards=(), made=time.time(), origin=origin)
        folder, needed = registry.folder(entry.buffer_id), sum(info.nbytes for info in offer.shards)
        registry.deregister_buffer(entry.buffer_id)  # of a predecessor, or of an earlier generation
        presence = registry.announce(entry)
        writers = []
        try:
            if needed > (free := available(registry.path)):
                raise NoSpace(f"it needs {gib(needed)}, and {registry.path} has {gib(free)} to give")
            for index, (info, first) in enumerate(zip(offer.shards, offer.firsts, strict=True)):
                start = {Header.HEAD: first, Header.CLAIM: first} if first else None
                create_shard(path := folder / f"shard_{index:03d}", info, start)
                writers.append(MirrorWriter(path))
        except NoSpace as error:
            for made_so_far in folder.glob("shard_*"):
                shutil.rmtree(made_so_far, ignore_errors=True)
            why = str(error).split(". ")[0].removesuffix(".")
            entry = replace(entry, refused=f"there is no room for a copy of its rows on this machine: {why}")
            presence, writers = registry.announce(entry), []
        return _Mirror(entry, presence, writers, offer.heads, time.monotonic())

    def _show(self, mirror: _Mirror) -> None:
        """Lets others read a mirror that has caught up."""
        if not mirror.writers or mirror.entry.shards:
            return
        behind = any(writer.head < head for writer, head in zip(mirror.writers, mirror.until, strict=True))
        if not behind:
            mirror.entry = replace(mirror.entry, shards=tuple(writer.path for writer in mirror.writers))
            mirror.presence = self._registry.announce(mirror.entry)

    def _adopt(self, entry: SharedBuffer) -> None:
        node, buffer, _ = (*entry.origin.split(" "), "", "", "")[:3]
        try:
            inside = all(path.parent == self._registry.folder(entry.buffer_id) for path in entry.shards)
            if not entry.shards or not inside:
                raise ReplayError("it was not complete, or is not ours")
            writers = [MirrorWriter(path) for path in entry.shards]
            entry = replace(entry, pid=os.getpid())
        except UNREADABLE:
            self._registry.deregister_buffer(entry.buffer_id)
            return
        presence = self._registry.announce(entry)
        self._mirrors[node, buffer] = _Mirror(entry, presence, writers, (0,) * len(writers), time.monotonic())

    def _remove(self, node: str, buffer: str) -> None:
        self._registry.deregister_buffer(self._mirrors.pop((node, buffer)).entry.buffer_id)
