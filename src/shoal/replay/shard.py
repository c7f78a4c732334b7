"""Shard: a single-writer ring of steps in memory-mapped columns, read in place by any number of processes.

A folder: `schema.json`, one raw file per column ([N, T, ...]: N lanes, T ring rows) and `header.bin`. A row's logical
number (0, 1, 2, … never reused) is its identity; it is stored at `logical % T`. The rows of a lane are adjacent, so a
stack of frames, an n-step transition and a sequence are one stretch of memory each.

How a torn row never leaves a shard, without a lock:

    writer                                  reader
    claim = head + k      (a)               draw rows from [claim - T, head)
    fill k rows           (b)               copy them
    head = head + k       (c)               look at claim again: rows below claim - T may be torn, redraw them

Because `claim` moves *before* the first byte of an old row is overwritten, a reader whose rows are all at or above
`claim - T` *after* copying has copied them whole. Rows are immutable once published.

A killed writer loses at most the rows it was writing. The next `ShardWriter` increments `epoch`, fills the claimed but
unpublished rows with CUT markers and continues; no view reads across a CUT. If the old writer is still alive, it finds
a new epoch before it claims or publishes its next row, and stops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.errors import ReplayError
from shoal.replay.counters import Counters, fence
from shoal.replay.shard_files import Header, check_header, map_columns, read_info, ring_pieces
from shoal.types import CUT, Array

_HEAD, _CLAIM, _STEPS, _EPOCH = int(Header.HEAD), int(Header.CLAIM), int(Header.STEPS), int(Header.EPOCH)
_WAITS = int(Header.WAITS)
"""Plain numbers for the words that change with every row: an enum as an index takes three times as long."""

LAST_ROW_SECONDS = 0.02
"""Time given to an old writer that is still alive to finish its row, before the new one counts and repairs."""


def _by_row(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The same memory as [T, N, ...]."""
    return {name: column.swapaxes(0, 1) for name, column in columns.items()}


class ShardWriter:
    """The one writer of a shard.

    `head` is the number of rows ever written, `epoch` how often the shard was opened for writing, this time included.
    """

    def __init__(self, path: Path) -> None:
        """Opens an existing shard for writing and repairs what a killed writer left."""
        self.path = path
        self.info = read_info(path)
        self.header = Counters(path / "header.bin", writable=True)
        self.columns = _by_row(map_columns(path, self.info, writable=True))
        self._items = tuple(self.columns.items())
        check_header(path, self.header, self.info)
        self._rows, self._words = self.info.rows, self.header.words
        self.epoch = self._words[_EPOCH] = self._words[_EPOCH] + 1
        if self.epoch > 1:
            time.sleep(LAST_ROW_SECONDS)
        self.head, self._claim, self._steps = self._words[_HEAD], self._words[_CLAIM], self._words[_STEPS]
        self._widest = max(column.nbytes for column in self.info.schema.columns)  # of one lane
        self.header[Header.CLOSED] = 0
        if self.epoch > 1:
            self.cut(max(1, self._claim - self.head))

    def append(self, row: Mapping[str, Array], *, steps: int | None = None, episodes: int = 0) -> None:
        """Publishes one step of all lanes.

        Args:
            row: column name to [N, ...] values; every column of the schema.
            steps: environment steps in it; by default one per lane (rows that only reset a lane are not steps).
            episodes: episodes that ended in it.
        """
        position = self.claim_row()
        for name, column in self._items:
            column[position] = row[name]
        self._publish(1, self.info.lanes if steps is None else steps, episodes)

    def claim_row(self) -> int:
        """Claims the next row and returns its ring position: fill it in `columns`, then call `publish_row`."""
        self._claim_rows(1)
        return self.head % self._rows

    def publish_row(self) -> None:
        """Publishes the claimed row, a step of every lane."""
        self._publish(1, self.info.lanes, 0)

    def append_chunk(self, rows: Mapping[str, Array], *, steps: int | None = None, episodes: int = 0) -> None:
        """Publishes k steps of all lanes at once: column name to [k, N, ...] values."""
        count, capacity = len(rows["obs"]), self.info.rows
        if count > capacity:
            raise ReplayError(f"A chunk of {count} rows does not fit a ring of {capacity}.")
        self._claim_rows(count)
        for logical, position, size in ring_pieces(capacity, self.head, self.head + count):
            begin = logical - self.head
            for name, column in self._items:
                column[position : position + size] = rows[name][begin : begin + size]
        self._publish(count, count * self.info.lanes if steps is None else steps, episodes)

    def preview(self, **columns: Array) -> None:
        """Writes into the next row without publishing it: the writer itself reads its next observation there."""
        position = self.claim_row()
        for name, values in columns.items():
            self.columns[name][position] = values

    def cut(self, rows: int = 1) -> None:
        """Marks that what follows does not continue what came before."""
        shapes = ((name, (rows, *column.shape[1:]), column.dtype) for name, column in self._items)
        blank = {name: np.zeros(shape, dtype) for name, shape, dtype in shapes}
        blank["boundary"][:] = CUT
        self.append_chunk(blank, steps=0)
        self.header.add(Header.CUTS, rows)

    def _claim_rows(self, rows: int) -> None:
        if self._words[_EPOCH] != self.epoch:
            raise self._replaced()
        # Claims never shrink: a chunk that failed half way has overwritten the old rows it claimed.
        if self._claim < self.head + rows:
            self._claim = self._words[_CLAIM] = self.head + rows
        fence(rows * self._widest)

    def _publish(self, rows: int, steps: int, episodes: int) -> None:
        fence()
        if self._words[_EPOCH] != self.epoch:
            raise self._replaced()
        self.head = self._words[_HEAD] = self.head + rows
        self._steps = self._words[_STEPS] = self._steps + steps
        if episodes:
            self.header.add(Header.EPISODES, episodes)

    def _replaced(self) -> ReplayError:
        return ReplayError(
            f"{self.path} was opened by another writer (number {self._words[_EPOCH]}; this one is number "
            f"{self.epoch}), so this one stops: a shard has one writer at a time."
        )

    def waits(self, waits: bool) -> None:
        """Says whether this writer waits for the learner: a courier then hurries."""
        self._words[_WAITS] = waits

    def close(self) -> None:
        """Marks that nothing more is written until the shard is opened again."""
        if self._words[_EPOCH] == self.epoch:
            self.header[Header.CLOSED] = 1


class ShardReader:
    """A read-only view of a shard of N lanes and T ring rows; its writer may write at full speed meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = read_info(path)
        self.rows, self.lanes = self.info.rows, self.info.lanes
        self.header = Counters(path / "header.bin", writable=False)
        check_header(path, self.header, self.info)
        # Signed from here on: a word that is damaged later, to above 2^63, still fits into an int64.
        self.header.words = self.header.words.cast("B").cast("q")
        self.by_lane = map_columns(path, self.info, writable=False)
        self.columns = _by_row(self.by_lane)

    @property
    def head(self) -> int:
        """Rows ever published."""
        head = self.header.words[_HEAD]
        fence()
        return head

    @property
    def oldest(self) -> int:
        """The oldest logical row that is certainly whole at this moment. Ask again after copying."""
        fence()
        return max(0, self.header.words[_CLAIM] - self.rows)

    def oldest_beyond(self, margin: int) -> int:
        """The oldest row that is `margin` rows away from being overwritten; 0 while the ring is filling."""
        oldest = self.oldest
        return oldest + margin if oldest else 0

    @property
    def steps(self) -> int:
        """Environment steps ever written."""
        return self.header[Header.STEPS]
