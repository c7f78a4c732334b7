"""Which rows may start a sample: examined once, struck off in time, never forgotten."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.replay import ShardReader, ShardWriter, Span
from shoal.replay.starts import Starts
from shoal.types import CUT, FINAL, STEP

S, F, C = STEP, FINAL, CUT


def _write(
    shards: Any, blank: Callable[..., Any], boundary: list[int], terminated: list[int], truncated: list[int]
) -> ShardReader:
    writer, reader = shards.small(64)
    columns = {"boundary": boundary, "terminated": terminated, "truncated": truncated}
    given = {name: np.array(values)[:, None] for name, values in columns.items()}
    writer.append_chunk(blank(writer.info, len(boundary), **given))
    return reader


def _starts(reader: ShardReader, span: Span) -> list[int]:
    starts = Starts(reader, span)
    starts.refresh()
    assert starts.count == np.count_nonzero(starts.flags)
    return np.flatnonzero(starts.flags).tolist()


@pytest.mark.parametrize(
    ("boundary", "terminated", "truncated", "after", "expected"),
    [
        ([S, S, S, S], [], [], 1, [0, 1, 2]),  # the last row's successor is not there yet
        ([S, S, S, S], [], [], 3, [0]),
        ([S, S, S, S], [], [], 4, []),
        ([S, S, F, S, S], [1], [], 1, [0, 1, 3]),  # nothing starts at a FINAL row
        ([S, S, F, S, S], [1], [], 2, [0, 1]),
        ([S, S, F, S, S], [], [1], 2, [0, 1]),
        ([S, S, C, S, S, S], [], [], 1, [0, 3, 4]),  # nothing looks into a CUT
        ([S, S, S, C, S, S], [], [], 2, [0]),
        ([S, S, C, S, S], [1], [], 1, [0, 1, 3]),  # after a terminal step nothing is looked at
        ([S, S, C, S, S], [], [1], 1, [0, 3]),  # the final observation of a truncated one is gone
        ([S, S, F, C, S, S], [], [1], 2, [0, 1]),
        ([S, S, F, C, S, S, S], [], [1], 3, [0, 1]),
    ],
)
def test_where_transitions_may_start(
    shards: Any,
    blank: Any,
    boundary: list[int],
    terminated: list[int],
    truncated: list[int],
    after: int,
    expected: list[int],
) -> None:
    ends = [[int(row in rows) for row in range(len(boundary))] for rows in (terminated, truncated)]
    reader = _write(shards, blank, boundary, *ends)
    assert _starts(reader, Span(0, after)) == expected


@pytest.mark.parametrize(
    ("boundary", "after", "expected"),
    [
        ([S, S, F, S, S, S], 2, [0, 1, 2, 3]),  # sequences run over episode ends
        ([S, S, F, C, S, S, S], 2, [0, 4]),
        ([C, S, S, C, S, C, S, S], 1, [1, 6]),
    ],
)
def test_where_sequences_may_start(
    shards: Any, blank: Any, boundary: list[int], after: int, expected: list[int]
) -> None:
    ended = [int(row + 1 < len(boundary) and boundary[row + 1] == F) for row in range(len(boundary))]
    reader = _write(shards, blank, boundary, ended, [0] * len(boundary))
    assert _starts(reader, Span(0, after, crosses_episodes=True)) == expected


def _refreshed(starts: Starts, written: np.ndarray) -> np.ndarray:
    """Applies the changes to a copy of the flags, as a selector does."""
    for change in starts.refresh():
        begin = change.position * starts.shard.lanes
        written[begin : begin + len(change.flags)] = change.flags
    return written


@pytest.mark.parametrize("step", [1, 3, 17, 40, 64, 200])
def test_changes_tell_all_there_is_to_tell(marked: ModuleType, shards: Any, step: int) -> None:
    """However far the reader lags, even by whole rings: the flags are those of a reader that has just attached."""
    path = shards.make(marked.info(64, 2))
    writer, span = ShardWriter(path), Span(2, 3)
    starts, told = Starts(ShardReader(path), span), np.zeros(128, np.uint8)
    while writer.head < 500:
        for begin in range(0, step, 50):
            writer.append_chunk(marked.block_of(1, 2, writer.head, min(50, step - begin)))
        told = _refreshed(starts, told)
        late = Starts(ShardReader(path), span)
        late.refresh()
        assert np.array_equal(told, starts.flags)
        assert np.array_equal(starts.flags, late.flags)
        assert (starts.first, starts.stop, starts.count) == (late.first, late.stop, late.count)
        assert starts.stop == max(0, writer.head - 3)
        assert 0 <= starts.stop - starts.first <= 64


def test_nothing_is_struck_off_while_the_ring_fills(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(1024, 1))
    writer, starts = ShardWriter(path), Starts(ShardReader(path), Span(3, 1))
    for _ in range(14):
        writer.append_chunk(marked.block_of(1, 1, writer.head, 64))
        starts.refresh()
        assert starts.first == 0
    assert starts.stop == 14 * 64 - 1


def test_old_rows_are_struck_off_before_the_writer_reaches_them(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(256, 1))
    writer, reader = ShardWriter(path), ShardReader(path)
    starts = Starts(reader, Span(3, 1))
    while writer.head < 1000:
        writer.append_chunk(marked.block_of(1, 1, writer.head, 7))
        starts.refresh()
        kept = starts.first - (writer.head - 256)
        assert starts.first == 0 or 3 < kept <= 3 + 256 // 16
    assert 0 < starts.first < starts.stop == writer.head - 1


def test_a_large_claim_strikes_off_all_it_will_overwrite(marked: ModuleType, shards: Any) -> None:
    """A writer in the middle of a chunk: what lies under it is given up although `head` has not moved."""
    path = shards.make(marked.info(64, 1))
    writer = ShardWriter(path)
    writer.append_chunk(marked.block_of(1, 1, 0, 64))
    starts = Starts(ShardReader(path), Span(0, 1))
    starts.refresh()
    with pytest.raises(KeyError):
        writer.append_chunk({"obs": np.zeros((30, 1, marked.WORDS), np.uint64)})
    starts.refresh()
    assert starts.first == 30 + 64 // 16
    with pytest.raises(KeyError):
        writer.append_chunk({"obs": np.zeros((64, 1, marked.WORDS), np.uint64)})
    starts.refresh()
    assert (starts.count, starts.first) == (0, starts.stop)


@pytest.mark.parametrize("newest", [0.1, 0.5, 1.0])
def test_the_newest_fraction(marked: ModuleType, shards: Any, newest: float) -> None:
    path = shards.make(marked.info(256, 1))
    writer, starts = ShardWriter(path), Starts(ShardReader(path), Span(0, 1), newest=newest)
    first = 0
    for _ in range(60):
        writer.append_chunk(marked.block_of(1, 1, writer.head, 9))
        starts.refresh()
        stored = starts.stop - max(0, writer.head - 256 + 16)
        assert starts.stop - starts.first == max(1, round(stored * newest))
        assert starts.first >= first
        first = starts.first
