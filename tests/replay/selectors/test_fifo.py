"""Fifo: every stretch once, in order; what is lost is counted; no stretch looks across a CUT."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay import Fifo, Header, NStepView, Replay, SequenceView, ShardReader, ShardWriter, Span
from shoal.replay.selectors.fifo import Queue, shares_of_fullest
from shoal.types import CUT


def _span(steps: int, before: int = 0) -> Span:
    return Span(before, steps, crosses_episodes=True)


def _take_all(selector: Fifo) -> list[tuple[int, int, int]]:
    selector.refresh()
    keys = selector.select(selector.size, np.random.default_rng(0)).keys
    return list(zip(*(column.tolist() for column in keys), strict=True))


def _of_shard(taken: list[tuple[int, int, int]], shard: int) -> list[tuple[int, int]]:
    """(row, lane) in the order they were taken."""
    return [(logical, lane) for index, lane, logical in taken if index == shard]


@pytest.mark.parametrize("steps", [1, 3])
def test_every_stretch_once_and_in_order_over_several_shards(marked: ModuleType, shards: Any, steps: int) -> None:
    lanes, selector, writers = (2, 3, 1), Fifo(), []
    for count in lanes:
        path = shards.make(marked.info(64, count))
        writers.append(ShardWriter(path))
        selector.attach(ShardReader(path), _span(steps))
    rng, taken = np.random.default_rng(0), []
    for _ in range(60):
        for salt, writer in enumerate(writers):
            writer.append_chunk(marked.block_of(salt, writer.info.lanes, writer.head, int(rng.integers(1, 12))))
        selector.refresh()
        while selector.ready(7):
            selection = selector.select(7, rng)
            assert selection.probabilities.tolist() == [1.0] * 7
            taken += list(zip(*(column.tolist() for column in selection.keys), strict=True))
    taken += _take_all(selector)
    assert selector.dropped == 0 and selector.size == 0
    for index, writer in enumerate(writers):
        starts = range(0, writer.head - steps, steps)
        assert _of_shard(taken, index) == [(row, lane) for row in starts for lane in range(lanes[index])]


def test_stretches_meet_but_do_not_overlap(marked: ModuleType, shards: Any) -> None:
    """Through a replay: the steps of successive sequences are the stream without a gap."""
    path = shards.make(marked.info(64, 1))
    view = SequenceView(marked.schema(), 5, 0, ("tag",))
    replay, writer = Replay([ShardReader(path)], Fifo(), view, 2), ShardWriter(path)
    read: list[int] = []
    for _ in range(40):
        writer.append_chunk(marked.block_of(0, 1, writer.head, 6))
        while (sample := replay.sample()) is not None:
            assert not marked.Checker([0]).wrong(sample, view).any()
            read += sample.data.extras["tag"][:-1].T.reshape(-1).tolist()
    assert read == list(range(len(read)))
    assert len(read) >= writer.head - 15


def test_the_fullest_shard_goes_first(marked: ModuleType, shards: Any) -> None:
    selector = Fifo()
    for count in (5, 20):
        path = shards.make(marked.info(64, 1))
        ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, count))
        selector.attach(ShardReader(path), _span(1))
    selector.refresh()
    assert set(selector.select(15, np.random.default_rng(0)).keys.shard.tolist()) == {1}


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_shards_that_lag_equally_take_turns(marked: ModuleType, shards: Any, batch: int) -> None:
    """Each writer refills what was read of it, as actors that wait for their reader do: all are read equally often."""
    selector, writers = Fifo(), []
    for _ in range(3):
        path = shards.make(marked.info(64, 1))
        writers.append(ShardWriter(path))
        writers[-1].append_chunk(marked.block_of(0, 1, 0, 9))
        selector.attach(ShardReader(path), _span(4))
    read: list[int] = []
    for _ in range(9):
        selector.refresh()
        for shard in selector.select(batch, np.random.default_rng(0)).keys.shard.tolist():
            read.append(shard)
            writers[shard].append_chunk(marked.block_of(0, 1, writers[shard].head, 4))
    assert [read.count(shard) for shard in range(3)] == [3 * batch] * 3


@pytest.mark.parametrize("before", [0, 3])
def test_the_cursor_says_what_is_still_needed(marked: ModuleType, shards: Any, before: int) -> None:
    """A writer that waits for it never costs the reader a row, not even a stacked frame."""
    path = shards.make(marked.info(32, 2))
    writer, reader, selector = ShardWriter(path), ShardReader(path), Fifo()
    selector.attach(reader, _span(4, before))
    taken: list[tuple[int, int, int]] = []
    for _ in range(200):
        selector.refresh()
        room = writer.header[Header.CURSOR] + 32 - writer.head
        assert 0 <= room <= 32
        if room:
            writer.append_chunk(marked.block_of(0, 2, writer.head, room))
        selector.refresh()
        if selector.ready(3):
            keys = selector.select(3, np.random.default_rng(0)).keys
            assert keys.logical.min() - before >= reader.oldest or reader.oldest == 0
            taken += list(zip(*(column.tolist() for column in keys), strict=True))
    assert selector.dropped == 0
    rows = _of_shard(taken, 0)
    assert rows == [(row, lane) for row in range(0, rows[-1][0] + 1, 4) for lane in range(2)][: len(rows)]
    assert rows[-1][0] > 200


def test_a_new_reader_goes_on_at_the_cursor(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    writer, first = ShardWriter(path), Fifo()
    first.attach(ShardReader(path), _span(4, before=2))
    writer.append_chunk(marked.block_of(0, 1, 0, 40))
    first.refresh()
    first.select(5, np.random.default_rng(0))
    first.refresh()
    second = Fifo()
    second.attach(ShardReader(path), _span(4, before=2))
    assert _take_all(second)[0] == (0, 0, 20)


def test_what_is_overwritten_unread_is_counted(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(32, 2))
    writer, selector = ShardWriter(path), Fifo()
    selector.attach(ShardReader(path), _span(1))
    for _ in range(4):
        writer.append_chunk(marked.block_of(0, 2, writer.head, 25))
    taken = _take_all(selector)
    first = 100 - 32 + 8  # a quarter of the ring beyond the writer's edge
    assert selector.dropped == first * 2
    assert _of_shard(taken, 0) == [(row, lane) for row in range(first, 99) for lane in range(2)]
    writer.append_chunk(marked.block_of(0, 2, writer.head, 10))
    assert _of_shard(_take_all(selector), 0) == [(row, lane) for row in range(99, 109) for lane in range(2)]
    assert selector.dropped == first * 2


@pytest.mark.parametrize(("steps", "written", "first", "dropped"), [(1, 10, 18, 12 * 3 + 2), (12, 13, 24, 12 * 2)])
def test_a_stretch_half_read_when_it_is_overwritten(
    marked: ModuleType, shards: Any, steps: int, written: int, first: int, dropped: int
) -> None:
    """One lane of a stretch was read when its rows go: the other lanes lose it, and nothing comes twice."""
    path = shards.make(marked.info(32, 3))
    writer, selector = ShardWriter(path), Fifo()
    selector.attach(ShardReader(path), _span(steps))
    writer.append_chunk(marked.block_of(0, 3, 0, 32))
    selector.refresh()
    selector.select(3 * (5 if steps == 1 else 1) + 1, np.random.default_rng(0))
    writer.append_chunk(marked.block_of(0, 3, 32, written))
    selector.refresh()
    assert selector.dropped == dropped
    assert selector._queues[0].stretches.first == first


def test_a_reader_slower_than_its_writer_is_not_overtaken_for_ever(marked: ModuleType, shards: Any) -> None:
    """The writer moves on by a tenth of the ring during every copy: batches come all the same."""
    path = shards.make(marked.info(100, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), 4, 0, ("tag",))
    fill = view.fill

    def overtaken(*arguments: Any) -> None:
        writer.append_chunk(marked.block_of(0, 1, writer.head, 10))
        fill(*arguments)

    view.fill = overtaken  # type: ignore[method-assign]
    replay = Replay([ShardReader(path)], Fifo(), view, 2)
    writer.append_chunk(marked.block_of(0, 1, 0, 100))
    for _ in range(50):
        sample = replay.sample()
        assert sample is not None and not marked.Checker([0]).wrong(sample, view).any()
    assert 0 < replay.redrawn < 50


@given(
    kinds=st.lists(st.sampled_from([0, 0, 0, 0, 0, 0, CUT]), min_size=1, max_size=60),
    steps=st.integers(1, 4),
    looks=st.sets(st.integers(0, 60)),
)
def test_no_stretch_looks_into_a_cut_and_none_is_missed(kinds: list[int], steps: int, looks: set[int]) -> None:
    """Against the obvious: cut the stream at its CUTs and each piece into stretches, whenever the reader looks."""
    boundary, words = np.zeros((64, 1), np.uint8), dict.fromkeys(Header, 0)
    shard: Any = SimpleNamespace(
        rows=64, lanes=1, oldest=0, head=0, by_lane={"boundary": boundary.T}, path=Path("nowhere")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.replay.selectors.fifo.Counters", lambda path, writable: SimpleNamespace(words=words))
        queue = Queue(shard, _span(steps))
    taken = []
    for row, kind in enumerate(kinds):
        boundary[row] = kind
        shard.head = row + 1
        if row in looks or row == len(kinds) - 1:
            queue.refresh()
            while queue.ready:
                taken.append(queue.take(1)[0])
    expected, begin = [], 0
    for row, kind in enumerate([*kinds, CUT]):
        if kind == CUT:
            expected += range(begin, row - steps, steps)
            begin = row + 1
    assert taken == expected
    queue.refresh()
    queue.publish(0)
    assert words[Header.CURSOR] == queue.stretches.first


def test_a_batch_larger_than_what_was_left_before_a_cut_still_comes(marked: ModuleType, shards: Any) -> None:
    """Two stretches before a restart, many after: a batch of five takes of both instead of waiting for ever."""
    path = shards.make(marked.info(64, 1))
    view = SequenceView(marked.schema(), 4, 0, ("tag",))
    replay = Replay([ShardReader(path)], Fifo(), view, 5)
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 11))
    assert replay.sample() is None
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 12, 30))
    sample = replay.sample()
    assert sample is not None
    assert sample.keys.logical.tolist() == [0, 4, 12, 16, 20]
    assert not marked.Checker([0], [[11]]).wrong(sample, view).any()


def test_a_cut_in_one_lane_breaks_the_row_of_all(shards: Any, blank: Any) -> None:
    """An environment rebuilt alone: no lane's stretch may look across, and lanes stay side by side."""
    writer, reader = shards.small(64, 3)
    rows = blank(writer.info, 30)
    rows["boundary"][12, 2] = CUT
    writer.append_chunk(rows)
    selector = Fifo()
    selector.attach(reader, _span(5))
    taken = _of_shard(_take_all(selector), 0)
    assert taken == [(row, lane) for row in (0, 5, 13, 18, 23) for lane in range(3)]


def test_a_view_that_stops_at_episode_ends_is_refused(marked: ModuleType, shards: Any) -> None:
    """A queue takes every row, FINAL ones too: a transition from there would be none."""
    reader = ShardReader(shards.make(marked.info(64, 1)))
    with pytest.raises(ConfigError, match="sequence"):
        Replay([reader], Fifo(), NStepView(marked.schema(), 1, 0.9), 4)


@pytest.mark.stress
def test_each_row_once_beside_writers_at_full_speed(marked: ModuleType, nursery: Any, shards: Any) -> None:
    """Rows are lost to the writers, but what comes is whole, in order, and comes once."""
    paths = [shards.make(marked.info(4096, 2)) for _ in range(2)]
    view = SequenceView(marked.schema(), 8, 0, ("tag",))
    selector = Fifo()
    replay = Replay([ShardReader(path) for path in paths], selector, view, 64)
    writers = [nursery.start(path, salt=salt) for salt, path in enumerate(paths)]
    last = np.full((2, 2), -8)
    batches, deadline = 0, time.monotonic() + 3.0
    checker = marked.Checker([0, 1])
    while time.monotonic() < deadline:
        sample = replay.sample()
        if sample is None:
            continue
        batches += 1
        assert not checker.wrong(sample, view).any()
        shard, lane, logical = sample.keys
        for key in range(4):
            mine = logical[(shard == key // 2) & (lane == key % 2)]
            order = np.sort(mine)  # draws made again for overtaken ones may stand out of order within a batch
            assert np.all(np.diff(order) >= 8), "a step came twice"
            if len(order):
                assert order[0] >= last[key // 2, key % 2] + 8
                last[key // 2, key % 2] = order[-1]
    for pid in writers:
        nursery.kill(pid)
    assert batches > 20
    assert selector.dropped > 0


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.data())
def test_the_fullest_give_first_and_level_out(heights: list[int], data: st.DataObject) -> None:
    """Against taking them one by one from the fullest."""
    n = data.draw(st.integers(0, sum(heights)))
    left = list(heights)
    for _ in range(n):
        left[left.index(max(left))] -= 1
    assert shares_of_fullest(heights, n) == [height - rest for height, rest in zip(heights, left, strict=True)]


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), lanes=st.integers(1, 4))
def test_draws_of_any_size_are_the_stream_in_order(counts: list[int], lanes: int) -> None:
    boundary, words = np.zeros((lanes, 64), np.uint8), dict.fromkeys(Header, 0)
    shard: Any = SimpleNamespace(rows=64, lanes=lanes, oldest=0, head=60, by_lane={"boundary": boundary}, path=Path())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.replay.selectors.fifo.Counters", lambda path, writable: SimpleNamespace(words=words))
        selector = Fifo()
        selector.attach(shard, _span(3))
    selector.refresh()
    taken: list[tuple[int, int]] = []
    for count in counts:
        keys = selector.select(min(count, selector.size), np.random.default_rng(0)).keys
        taken += zip(keys.logical.tolist(), keys.lane.tolist(), strict=True)
    assert taken == [(row, lane) for row in range(0, 57, 3) for lane in range(lanes)][: len(taken)]


def test_drop_keeps_the_newest_and_counts_the_rest(marked: ModuleType, shards: Any) -> None:
    selector, writers = Fifo(6, "drop"), []
    for count in (1, 2):
        path = shards.make(marked.info(256, count))
        writers.append(ShardWriter(path))
        selector.attach(ShardReader(path), _span(4))
    for salt, writer in enumerate(writers):
        writer.append_chunk(marked.block_of(salt, writer.info.lanes, 0, 41))
    taken = _take_all(selector)
    assert len(taken) == 6 and selector.dropped == (10 + 20 - 6) * 4
    assert _of_shard(taken, 0) == [(28, 0), (32, 0), (36, 0)]
    assert _of_shard(taken, 1) == [(32, 1), (36, 0), (36, 1)]
    assert selector.metrics() == {"queue": 0.0, "dropped": 96.0}
    assert all(writer.header[Header.GRANT] == 0 for writer in writers)


def test_a_queue_that_drops_holds_a_batch_at_least(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), 4, 0, ("tag",))
    replay = Replay([ShardReader(path)], Fifo(1, "drop"), view, 3)
    writer.append_chunk(marked.block_of(0, 1, 0, 30))
    sample = replay.sample()
    assert sample is not None and sample.keys.logical.tolist() == [16, 20, 24]
    assert replay.metrics() == {"fifo/queue": 0.0, "fifo/dropped": 16.0}


def test_a_queue_that_waits_drops_nothing_itself(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    selector = Fifo(1, "wait")
    selector.attach(ShardReader(path), _span(4))
    ShardWriter(path).append_chunk(marked.block_of(0, 1, 0, 30))
    assert len(_take_all(selector)) == 7 and selector.dropped == 0


@pytest.mark.parametrize(("given", "message"), [({"capacity": 0}, "capacity is 0"), ({"on_full": "x"}, "'wait' or")])
def test_impossible_queues_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fifo(**given)
