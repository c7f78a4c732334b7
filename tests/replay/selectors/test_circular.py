"""Circular: every batch of the queue K times, N of them in turn, and none whose rows are gone."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay import (
    BackPressure,
    Circular,
    Fifo,
    Mixture,
    Part,
    Replay,
    SequenceView,
    ShardReader,
    ShardWriter,
    Uniform,
    queue_rows,
)

STEPS = 4


class _Stream:
    """A writer, and a replay of batches of two sequences."""

    def __init__(self, marked: ModuleType, shards: Any, slots: int, passes: int, rows: int = 256) -> None:
        path = shards.make(marked.info(rows, 1))
        self.marked, self.writer = marked, ShardWriter(path)
        self.view = SequenceView(marked.schema(), STEPS, 0, ("tag",))
        self.circular = Circular(Fifo(), slots, passes)
        self.replay = Replay([ShardReader(path)], self.circular, self.view, 2)

    def write(self, batches: int) -> None:
        """As many rows as complete so many batches more."""
        rows = 2 * STEPS * batches + (self.writer.head == 0)
        self.writer.append_chunk(self.marked.block_of(0, 1, self.writer.head, rows))

    def batches(self) -> list[int]:
        """The numbers of all batches to be had now."""
        numbers = []
        while (sample := self.replay.sample()) is not None:
            assert not self.marked.Checker([0]).wrong(sample, self.view).any() and sample.fresh.all()
            numbers.append(int(sample.keys.logical[0]) // (2 * STEPS))
        return numbers


def test_slots_are_served_in_turn(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, slots=2, passes=2)
    assert stream.batches() == []
    stream.write(4)
    assert stream.batches() == [0, 1, 0, 1, 2, 3, 2, 3]
    stream.write(1)
    assert stream.batches() == [4, 4], "one slot is served alone rather than waited with"
    stream.write(3)
    assert sorted(stream.batches()) == [5, 5, 6, 6, 7, 7]


@pytest.mark.parametrize(("slots", "passes"), [(1, 1), (1, 3), (3, 1), (4, 2), (2, 5)])
def test_every_batch_as_often_as_asked(marked: ModuleType, shards: Any, slots: int, passes: int) -> None:
    stream, served, rng = _Stream(marked, shards, slots, passes), [], np.random.default_rng(0)
    for _ in range(8):
        stream.write(int(rng.integers(0, 4)) + 1)
        served += stream.batches()
    counts = np.bincount(served)
    assert set(counts.tolist()) == {passes} and len(counts) >= 8
    assert stream.circular.discarded == 0 and stream.replay.metrics()["circular/discarded"] == 0.0
    first = [served.index(number) for number in range(len(counts))]
    assert first == sorted(first), "batches enter in order"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(acts=st.lists(st.integers(-1, 3), max_size=40), slots=st.integers(1, 4), passes=st.integers(1, 4))
def test_no_more_than_asked_whenever_the_reader_looks(
    marked: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    shards_in: Any,
    acts: list[int],
    slots: int,
    passes: int,
) -> None:
    stream = _Stream(marked, shards_in(tmp_path_factory.mktemp("ring")), slots, passes, rows=2048)
    served: list[int] = []
    for act in acts:
        if act >= 0:
            stream.write(act)
        elif (sample := stream.replay.sample()) is not None:
            served.append(int(sample.keys.logical[0]) // (2 * STEPS))
            held = {number for number in served if served.count(number) < passes}
            assert len(held) <= slots
    served += stream.batches()
    assert all(count == passes for count in np.bincount(served)) if served else True


def test_a_batch_that_is_overwritten_is_discarded(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, slots=4, passes=3, rows=64)
    stream.write(4)
    assert [int(stream.replay.sample().keys.logical[0]) // 8 for _ in range(4)] == [0, 1, 2, 3]  # type: ignore[union-attr]
    stream.writer.append_chunk(marked.block_of(0, 1, stream.writer.head, 55))  # row 88: those below 24 are gone
    served = stream.batches()
    assert stream.circular.discarded == 4 and min(served) > 3
    assert set(np.bincount(served)[min(served) :].tolist()) == {3}


def test_rows_overtaken_while_they_are_copied_are_drawn_anew(marked: ModuleType, shards: Any) -> None:
    """The writer moves on by a tenth of the ring during every copy."""
    path = shards.make(marked.info(200, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), STEPS, 0, ("tag",))
    fill, copies = view.fill, [0]

    def overtaken(*arguments: Any) -> None:
        copies[0] += 1
        if copies[0] % 2:
            writer.append_chunk(marked.block_of(0, 1, writer.head, 60))
        fill(*arguments)

    view.fill = overtaken  # type: ignore[method-assign]
    circular = Circular(Fifo(), 3, 2)
    replay = Replay([ShardReader(path)], Mixture([Part(circular, 0.5), Part(Uniform(), 0.5)]), view, 8)
    writer.append_chunk(marked.block_of(0, 1, 0, 180))
    batches = 0
    for _ in range(100):
        sample = replay.sample()
        if sample is None:  # the queue ran dry while drawing anew
            writer.append_chunk(marked.block_of(0, 1, writer.head, 40))
            continue
        batches += 1
        assert not marked.Checker([0]).wrong(sample, view).any()
        assert sample.fresh.tolist() == [True] * 4 + [False] * 4
    assert batches > 50 and replay.redrawn > 0


def test_a_redraw_comes_from_the_queue_or_from_a_slot(marked: ModuleType, shards: Any) -> None:
    stream, rng = _Stream(marked, shards, slots=2, passes=3), np.random.default_rng(0)
    assert stream.circular.redraw(1, rng) is None
    stream.write(1)
    stream.replay.sample()
    again = stream.circular.redraw(3, rng)
    assert again is not None and set(again.keys.logical.tolist()) <= {0, 4}
    stream.write(1)
    stream.replay.refresh()
    fresh = stream.circular.redraw(1, rng)
    assert fresh is not None and fresh.keys.logical.tolist() == [8]


def test_batches_of_several_sizes(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(256, 1))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), STEPS, 0, ("tag",))
    replay = Replay([ShardReader(path)], Circular(Fifo(), 2, 2), view, 4, batch_min=1)
    sizes: list[int] = []
    for rows in (9, 0, 0, 0, 16, 0, 4, 0, 0, 0):
        writer.append_chunk(marked.block_of(0, 1, writer.head, rows))
        sample = replay.sample()
        sizes.append(0 if sample is None else len(sample.fresh))
    assert sizes == [2, 2, 0, 0, 4, 4, 1, 1, 0, 0]


def test_a_waiting_writer_goes_on_while_slots_are_served(marked: ModuleType, shards: Any) -> None:
    stream = _Stream(marked, shards, slots=2, passes=4)
    pressure = BackPressure(stream.writer, queue_rows(2, STEPS, 1, 0))
    served: list[int] = []
    for _ in range(400):
        if not pressure.full:
            stream.writer.append_chunk(marked.block_of(0, 1, stream.writer.head, 1))
        elif (sample := stream.replay.sample()) is not None:
            served.append(int(sample.keys.logical[0]) // (2 * STEPS))
    assert stream.circular.discarded == 0 and max(served) > 5
    assert set(np.bincount(served)[: max(served) - 2].tolist()) == {4}


@pytest.mark.parametrize(("slots", "passes"), [(0, 1), (1, 0)])
def test_no_slots_or_passes_are_refused(slots: int, passes: int) -> None:
    with pytest.raises(ConfigError, match=f"got {slots} and {passes}"):
        Circular(Fifo(), slots, passes)
