"""Offers: what the runs of this node share, for the other nodes of their group.

The other node says how far it has come with each buffer, and gets the rows that follow. Nothing is remembered from one
request to the next, so either side can be restarted at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from shoal.errors import ReplayError
from shoal.replay import ShardInfo, ShardReader
from shoal.replay.mirror import Bytes, Chunk, RowTaker, chunk_bytes
from shoal.replay.shard_files import ring_margin
from shoal.sharing.peer import find_fault, open_peer
from shoal.sharing.registry import Registry
from shoal.sharing.shared_buffer import SharedBuffer

MOST_BYTES = 16 * 2**20
"""Of the rows in one delivery: a delivery is held in Ray's object store until it is read."""


@dataclass(frozen=True)
class Offer:
    """A buffer that other nodes may mirror."""

    entry: SharedBuffer
    """As it is in its own node's registry."""
    generation: str
    """Changes when its shards are made again, or its meaning changes: then a mirror of it is worthless."""
    shards: tuple[ShardInfo, ...]
    firsts: tuple[int, ...]
    """The first row of each shard that a new mirror can have."""
    heads: tuple[int, ...]


class Wanted(NamedTuple):
    """How far a mirror has come: the next row of each shard."""

    generation: str
    rows: tuple[int, ...]


class Delivery(NamedTuple):
    """The answer to one request."""

    offers: tuple[Offer, ...]
    chunks: tuple[tuple[str, int, Chunk], ...]
    """Buffer, which of its shards, and rows of it."""
    rows: Bytes
    """The rows of all chunks, one chunk after the other."""
    more: bool
    """Whether there were more than one delivery may hold."""


class Offers:
    """The buffers of one node. What runs wrote is not trusted: a damaged buffer is not offered."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._open: dict[str, tuple[str, list[ShardReader]]] = {}  # generation and shards, by buffer

    def deliver(self, wanted: Mapping[str, Wanted], most: int = MOST_BYTES) -> Delivery:
        """What is offered now, and rows that follow what the other node has.

        Args:
            wanted: how far it has come, by buffer.
            most: bytes of rows; each buffer gets at least one row.
        """
        found = {entry.buffer_id: entry for entry in self._registry.entries() if _is_own(entry)}
        self._open = {name: opened for name, opened in self._open.items() if name in found}
        offers = [offer for entry in found.values() if (offer := self._offer(entry)) is not None]
        takers = [
            (offer.entry.buffer_id, index, RowTaker(reader, asked.rows[index]))
            for offer in offers
            if (asked := wanted.get(offer.entry.buffer_id)) is not None and asked.generation == offer.generation
            for index, reader in enumerate(self._open[offer.entry.buffer_id][1])
        ]
        takers = [one for one in takers if one[2].behind > 0]
        each = most // max(1, len(takers))
        sizes = [min(taker.behind, max(1, each // taker.row_bytes)) * taker.row_bytes for *_, taker in takers]
        rows, chunks, at = np.empty(sum(sizes), np.uint8), [], 0
        for (name, index, taker), size in zip(takers, sizes, strict=True):
            chunk = taker.take(rows[at : at + size])
            chunks.append((name, index, chunk))
            at += chunk_bytes(taker.reader.info, chunk.rows)
        return Delivery(tuple(offers), tuple(chunks), rows[:at], any(taker.behind > 0 for *_, taker in takers))

    def _offer(self, entry: SharedBuffer) -> Offer | None:
        """None for a buffer that cannot be read: the runs of this node refuse it, too, and say why."""
        name = entry.buffer_id
        try:
            generation = _generation(entry)
            if name not in self._open or self._open[name][0] != generation:
                self._open[name] = (generation, open_peer(entry.shards))
            shards = self._open[name][1]
            if any(map(find_fault, shards)):
                raise ReplayError("damaged")
        except (OSError, ReplayError):
            self._open.pop(name, None)
            return None
        # Beyond the margin, because the writer goes on while the first rows are on their way.
        firsts = tuple(min(one.head, one.oldest_beyond(ring_margin(one.rows))) for one in shards)
        return Offer(entry, generation, tuple(one.info for one in shards), firsts, tuple(one.head for one in shards))


def _is_own(entry: SharedBuffer) -> bool:
    """Whether it is a buffer of this node, with rows. Mirrors are not passed on: nodes ask the original's node."""
    return not entry.origin and entry.description is not None and bool(entry.shards)


def _generation(entry: SharedBuffer) -> str:
    said = asdict(replace(entry, pid=0, shards=()))
    found = [(path / "schema.json").stat() for path in entry.shards]
    files = [(str(path), one.st_ino, one.st_mtime_ns) for path, one in zip(entry.shards, found, strict=True)]
    return hashlib.sha256(json.dumps([said, files], sort_keys=True).encode()).hexdigest()[:16]
