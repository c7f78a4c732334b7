"""Mirrors: the same rows under the same numbers; what was missed is cut, never invented."""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import Header, ShardReader, ShardWriter, create_shard
from shoal.replay.mirror import Chunk, MirrorWriter, RowTaker, chunk_bytes
from shoal.types import CUT, STEP

ROWS, LANES = 10, 3


@pytest.fixture
def pair(marked: ModuleType, shards: Any) -> tuple[Path, Path]:
    return shards.make(marked.info(ROWS, LANES)), shards.make(marked.info(ROWS, LANES))


def _buffer(path: Path, rows: int) -> Any:
    return np.zeros(chunk_bytes(ShardReader(path).info, rows), np.uint8)


def _equal_from(source: ShardReader, mirror: ShardReader, first: int) -> None:
    assert mirror.head == source.head
    for name, column in source.columns.items():
        for row in range(first, source.head):
            assert np.array_equal(mirror.columns[name][row % ROWS], column[row % ROWS]), (name, row)


def test_rows_and_counts_are_the_same(marked: ModuleType, pair: tuple[Path, Path]) -> None:
    """Chunks of all lengths, over the end of the ring, with a buffer that holds less than there is."""
    writer, taker, mirror = ShardWriter(pair[0]), RowTaker(ShardReader(pair[0]), 0), MirrorWriter(pair[1])
    source, copy, buffer = ShardReader(pair[0]), ShardReader(pair[1]), _buffer(pair[0], 4)
    for size in [1, 3, 7, 1, 5, 10, 2]:
        writer.append_chunk(marked.block_of(1, LANES, writer.head, size), steps=size * LANES - 1, episodes=1)
        while taker.changed:
            chunk = taker.take(buffer)
            assert mirror.append(chunk, buffer) == chunk_bytes(copy.info, chunk.rows)
            assert chunk.rows <= 4
        _equal_from(source, copy, max(0, source.head - ROWS))
        assert (copy.steps, copy.header[Header.EPISODES]) == (source.steps, source.header[Header.EPISODES])
    writer.close()
    assert taker.changed  # the end is news
    mirror.append(taker.take(buffer), buffer)
    assert copy.header[Header.CLOSED] == 1
    assert taker.lost == 0


def test_steps_of_a_part_are_those_up_to_its_last_row(marked: ModuleType, pair: tuple[Path, Path]) -> None:
    writer, taker, buffer = ShardWriter(pair[0]), RowTaker(ShardReader(pair[0]), 0), _buffer(pair[0], 2)
    block = marked.block_of(1, LANES, 0, 3)
    block["boundary"][:] = STEP
    block["boundary"][1, 0] = CUT
    writer.append_chunk(block, steps=3 * LANES - 1)
    assert [taker.take(buffer).steps for _ in range(2)] == [2 * LANES - 1, 3 * LANES - 1]


def test_rows_that_were_missed_are_cut_and_counted(marked: ModuleType, pair: tuple[Path, Path]) -> None:
    writer, taker, mirror = ShardWriter(pair[0]), RowTaker(ShardReader(pair[0]), 0), MirrorWriter(pair[1])
    buffer = _buffer(pair[0], ROWS)
    writer.append_chunk(marked.block_of(1, LANES, 0, 4))
    mirror.append(taker.take(buffer), buffer)
    for _ in range(7):
        writer.append_chunk(marked.block_of(1, LANES, writer.head, 4))
    mirror.append(taker.take(buffer), buffer)
    copy = ShardReader(pair[1])
    kept = 32 - ROWS + 1  # an eighth of the ring is left to the writer
    assert taker.lost == kept - 4
    assert copy.head == 32 and copy.steps == 32 * LANES
    assert (copy.columns["boundary"][(kept - 1) % ROWS] == CUT).all()
    _equal_from(ShardReader(pair[0]), copy, kept)


def test_no_row_is_torn_while_the_writer_runs(marked: ModuleType, shards: Any) -> None:
    """The writer laps the taker again and again: every row that arrives is whole, and numbers are never reused."""
    one, two = shards.make(marked.info(64, 2)), shards.make(marked.info(64, 2))
    writer, taker, mirror = ShardWriter(one), RowTaker(ShardReader(one), 0), MirrorWriter(two)
    copy = ShardReader(two)
    buffer, done = _buffer(one, 24), threading.Event()

    def write() -> None:
        while writer.head < 20_000:
            writer.append_chunk(marked.block_of(1, 2, writer.head, 7))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    checked = 0
    while not done.is_set() or taker.behind:
        mirror.append(taker.take(buffer), buffer)
        rows = np.arange(max(0, copy.head - 64), copy.head)
        whole = rows[(copy.columns["boundary"][rows % 64] != CUT).all(axis=1)]
        expected = marked.rows_of(1, np.arange(2)[None, :], whole[:, None])
        for name, column in expected.items():
            assert np.array_equal(copy.columns[name][whole % 64], column), name
        checked += len(whole)
    thread.join()
    assert checked > 1000 and copy.head == writer.head


def test_a_killed_mirror_writes_the_same_rows_again(marked: ModuleType, pair: tuple[Path, Path]) -> None:
    writer, mirror, buffer = ShardWriter(pair[0]), MirrorWriter(pair[1]), _buffer(pair[0], ROWS)
    writer.append_chunk(marked.block_of(1, LANES, 0, 6))
    taker = RowTaker(ShardReader(pair[0]), 0)
    mirror.append(taker.take(buffer[: chunk_bytes(writer.info, 3)]), buffer)
    mirror.header[Header.CLAIM] = 6  # killed while it wrote three more
    again = MirrorWriter(pair[1])
    rest = RowTaker(ShardReader(pair[0]), again.head)
    again.append(rest.take(buffer), buffer)
    _equal_from(ShardReader(pair[0]), ShardReader(pair[1]), 0)
    with pytest.raises(ReplayError, match="opened by another writer"):
        mirror.append(Chunk(3, 0, 0, (0, 0, 0, 0)), buffer)


def test_rows_out_of_order_are_refused(pair: tuple[Path, Path]) -> None:
    mirror, buffer = MirrorWriter(pair[1]), _buffer(pair[1], ROWS)
    mirror.append(Chunk(0, 5, 0, (1, 0, 0, 0)), buffer)
    with pytest.raises(ReplayError, match="is at row 5, and got 2 rows from 4 on"):
        mirror.append(Chunk(4, 2, 0, (1, 0, 0, 0)), buffer)


def test_a_shard_continues_another(marked: ModuleType, shards: Any, tmp_path: Path) -> None:
    """After a node is lost: row numbers go on, and nothing before them can be sampled."""
    old = ShardReader(shards.make(marked.info(ROWS, LANES)))
    path = tmp_path / "moved"
    start = {Header.HEAD: 25, Header.CLAIM: 25, Header.STEPS: 70, Header.EPISODES: 4, Header.EPOCH: 3}
    create_shard(path, old.info, start)
    writer = ShardWriter(path)
    assert (writer.head, writer.epoch) == (26, 4)  # with its own cut
    assert (ShardReader(path).columns["boundary"] == CUT).all()
    writer.append_chunk(marked.block_of(1, LANES, 26, 2))
    moved = ShardReader(path)
    assert (moved.head, moved.steps) == (28, 70 + 2 * LANES)
    with pytest.raises(ReplayError, match="exists already"):
        create_shard(path, old.info)
