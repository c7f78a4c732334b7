"""Stretches: end to end, none across a CUT, none that the writer has reached."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from shoal.replay import ShardReader, ShardWriter, Span
from shoal.replay.stretches import Stretches

SPAN = Span(2, 4, crosses_episodes=True)


def test_a_stretch_waits_for_the_row_behind_it(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    writer, stretches = ShardWriter(path), Stretches(ShardReader(path), SPAN)
    for head in range(1, 20):
        writer.append_chunk(marked.block_of(0, 1, writer.head, 1))
        stretches.refresh()
        assert stretches.waiting == list(range(0, head - 4, 4))
        assert (stretches.first, stretches.next) == (0, len(stretches.waiting) * 4)


def test_it_goes_on_behind_cuts(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(32, 2))
    writer, stretches = ShardWriter(path), Stretches(ShardReader(path), SPAN)
    writer.append_chunk(marked.block_of(0, 2, 0, 11))
    writer.cut(2)
    writer.append_chunk(marked.block_of(0, 2, 13, 10))
    stretches.refresh()
    assert stretches.waiting == [0, 4, 13, 17]
    stretches.waiting.clear()
    assert stretches.first == stretches.next == 21
    writer.append_chunk(marked.block_of(0, 2, 23, 20))  # round the end of the ring
    stretches.refresh()
    assert stretches.waiting == [21, 25, 29, 33, 37]


def test_what_the_writer_reached_is_left(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(32, 1))
    writer, stretches = ShardWriter(path), Stretches(ShardReader(path), SPAN)
    assert stretches.overtaken() is None
    for _ in range(10):
        writer.append_chunk(marked.block_of(0, 1, writer.head, 13))
    floor = stretches.overtaken()
    assert floor == 130 - 32 + 2 + 8
    stretches.restart(floor)
    stretches.refresh()
    assert stretches.waiting == [108, 112, 116, 120, 124] and stretches.overtaken() is None


def test_a_reader_far_behind_looks_at_one_ring_only(marked: ModuleType, shards: Any) -> None:
    """It has been overtaken since it asked: nothing it finds is trusted before it asks again."""
    path = shards.make(marked.info(32, 1))
    writer, stretches = ShardWriter(path), Stretches(ShardReader(path), SPAN)
    for _ in range(10):
        writer.append_chunk(marked.block_of(0, 1, writer.head, 13))
    stretches.refresh()
    assert stretches.next <= 32 and stretches.overtaken() is not None


def test_what_warms_up_is_learned_from_by_the_stretch_before(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    writer, stretches = ShardWriter(path), Stretches(ShardReader(path), Span(0, 5, crosses_episodes=True, overlap=2))
    writer.append_chunk(marked.block_of(0, 1, 0, 18))
    stretches.refresh()
    assert stretches.waiting == [0, 3, 6, 9, 12], "each five rows and one more, the last three learned from"
    assert stretches.next == 15
