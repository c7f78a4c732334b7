"""Mirror: a copy of another node's shard, with the same row numbers, made of its new rows as they come.

    rows = RowTaker(ShardReader(path), first)           mirror = MirrorWriter(path)   # on the other node
    chunk = rows.take(buffer)                           mirror.append(chunk, buffer)

A mirror is an ordinary shard: readers cannot tell. Only its writer differs. It opens the shard without a cut and fills
rows that were overwritten before they could be taken with CUT markers. A writer that is killed has raised `claim` at
most; the next one writes the same rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay.counters import Counters, fence
from shoal.replay.shard import ShardReader
from shoal.replay.shard_files import Header, ShardInfo, check_header, map_columns, read_info, ring_pieces
from shoal.types import CUT, STEP, Array

Bytes = npt.NDArray[np.uint8]
_RELAYED = (Header.EPOCH, Header.EPISODES, Header.CUTS, Header.CLOSED)
"""Words of a shard that its mirror repeats."""


class Chunk(NamedTuple):
    """Consecutive rows of a shard. Their columns lie in a buffer one after the other, each as [N, k, ...]."""

    first: int
    """Number of the first row."""
    rows: int
    steps: int
    """Environment steps ever, up to its last row."""
    words: tuple[int, ...]
    """The words that a mirror repeats."""


class RowTaker:
    """Takes the new rows of a shard in order."""

    def __init__(self, reader: ShardReader, first: int) -> None:
        """Args:
        reader: of the shard.
        first: the first row to take; rows that are gone already are left out.
        """
        self.reader, self.next = reader, first
        self._columns = _as_bytes(reader.by_lane)
        self.row_bytes = reader.info.schema.bytes_per_step * reader.lanes
        self.lost = 0
        """Rows that were overwritten before they were taken."""
        self._taken: tuple[int, ...] = ()

    @property
    def behind(self) -> int:
        """Rows that can be taken now."""
        return self.reader.head - self.next

    @property
    def changed(self) -> bool:
        """Whether there is anything to take: rows, or words that changed."""
        return self.behind > 0 or (self.reader.steps, *self._relayed()) != self._taken

    def take(self, buffer: Bytes) -> Chunk:
        """Copies as many rows as fit into the buffer, and lie there whole afterwards."""
        reader, rows = self.reader, self.reader.rows
        while True:  # with a new head each time: a writer may lap the ring while this process is stopped
            words, steps, head = self._relayed(), reader.steps, reader.head  # steps come after head: never too many
            taken, oldest = (steps, *words), reader.oldest
            if self.next < oldest:
                # The writer is about to overwrite more: leave it some room, or this repeats.
                gone = min(head, oldest + rows // 8)
                self.lost, self.next = self.lost + gone - self.next, gone
            first, count = self.next, max(0, min(head - self.next, len(buffer) // self.row_bytes))
            for column, mine in zip(_blocks(buffer, reader.info, count), self._columns, strict=True):
                for logical, position, size in ring_pieces(rows, first, first + count):
                    begin = logical - first
                    column[:, begin : begin + size] = mine[:, position : position + size]
            if reader.oldest <= first:
                break
        steps -= _steps_in(reader, first + count, head)
        self.next, self._taken = first + count, taken
        return Chunk(first, count, max(0, steps), words)

    def _relayed(self) -> tuple[int, ...]:
        return tuple(self.reader.header[word] for word in _RELAYED)


class MirrorWriter:
    """The one writer of a mirror."""

    def __init__(self, path: Path) -> None:
        self.path, self.info = path, read_info(path)
        self.header = Counters(path / "header.bin", writable=True)
        check_header(path, self.header, self.info)
        columns = map_columns(path, self.info, writable=True)
        self._columns, self._boundary = _as_bytes(columns), columns["boundary"]
        self._number = self.header[Header.MIRRORED] + 1
        self.header[Header.MIRRORED] = self._number
        self.head = self.header[Header.HEAD]

    def append(self, chunk: Chunk, buffer: Bytes) -> int:
        """Publishes a chunk; returns the number of bytes that it takes in the buffer.

        Raises:
            ReplayError: it does not continue what is here, or another writer has opened the mirror.
        """
        if chunk.first < self.head or chunk.rows > self.info.rows:
            raise ReplayError(f"{self.path} is at row {self.head}, and got {chunk.rows} rows from {chunk.first} on.")
        half = self.info.rows // 2
        for first in range(self.head, chunk.first, half):  # in pieces: a claim over the whole ring looks damaged
            self._fill(min(half, chunk.first - first), None)
        self._fill(chunk.rows, _blocks(buffer, self.info, chunk.rows))
        most = self.head * self.info.lanes  # words were read a moment after the rows
        self.header[Header.STEPS] = min(max(self.header[Header.STEPS], chunk.steps), most)
        for word, value in zip(_RELAYED, chunk.words, strict=True):
            self.header[word] = min(value, most) if word is Header.EPISODES else value
        return chunk_bytes(self.info, chunk.rows)

    def _fill(self, count: int, source: list[Bytes] | None) -> None:
        """Publishes rows; without a source, CUT markers."""
        header, stop = self.header, self.head + count
        if header[Header.MIRRORED] != self._number:
            raise ReplayError(f"{self.path} was opened by another writer, so this one stops.")
        header[Header.CLAIM] = max(header[Header.CLAIM], stop)
        fence(count * self.info.schema.bytes_per_step)
        for logical, position, size in ring_pieces(self.info.rows, self.head, stop):
            begin, rows = logical - self.head, slice(position, position + size)
            if source is None:
                self._boundary[:, rows] = CUT
                continue
            for mine, column in zip(self._columns, source, strict=True):
                mine[:, rows] = column[:, begin : begin + size]
        fence()
        header[Header.HEAD] = self.head = stop


def steps_before(reader: ShardReader, row: int) -> int:
    """Environment steps that a shard, to which nobody writes now, has counted before one of its rows."""
    return max(0, reader.steps - _steps_in(reader, row, reader.head))


def _steps_in(reader: ShardReader, first: int, stop: int) -> int:
    pieces = ring_pieces(reader.rows, first, stop)
    marks = (reader.by_lane["boundary"][:, position : position + size] for _, position, size in pieces)
    return sum(int(np.count_nonzero(mark == STEP)) for mark in marks)


def chunk_bytes(info: ShardInfo, count: int) -> int:
    """Bytes that so many rows take in a buffer."""
    return info.schema.bytes_per_step * info.lanes * count


def _as_bytes(columns: Mapping[str, Array]) -> list[Bytes]:
    """Columns [N, T, ...] as bytes [N, T, b], in the order of the schema: no dtype asks for an aligned buffer."""
    return [column.view(np.uint8).reshape(*column.shape[:2], -1) for column in columns.values()]


def _blocks(buffer: Bytes, info: ShardInfo, count: int) -> list[Bytes]:
    """The columns of a chunk in its buffer, as bytes [N, k, b]."""
    blocks, begin = [], 0
    for column in info.schema.columns:
        size = column.nbytes * info.lanes * count
        blocks.append(buffer[begin : begin + size].reshape(info.lanes, count, column.nbytes))
        begin += size
    return blocks
