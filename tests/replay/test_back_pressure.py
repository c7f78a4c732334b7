"""Back-pressure: a waiting writer loses nothing, and neither side waits for ever."""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay import (
    BackPressure,
    Fifo,
    Header,
    Mixture,
    Part,
    Replay,
    SequenceView,
    ShardReader,
    ShardWriter,
    Uniform,
    queue_rows,
)


@pytest.mark.parametrize(
    ("capacity", "steps", "lanes", "before", "rows"),
    [(1, 20, 1, 0, 22), (1, 20, 8, 3, 25), (16, 20, 8, 0, 42), (17, 20, 8, 0, 62), (10, 1, 4, 0, 5)],
)
def test_a_shard_takes_its_share_of_the_queue(capacity: int, steps: int, lanes: int, before: int, rows: int) -> None:
    assert queue_rows(capacity, steps, lanes, before) == rows


def test_a_ring_no_longer_than_the_queue_is_refused(marked: ModuleType, shards: Any) -> None:
    writer = ShardWriter(shards.make(marked.info(64, 1)))
    BackPressure(writer, 62)
    with pytest.raises(ConfigError, match=r"takes 63 rows .* which has 64.*Raise replay\.capacity"):
        BackPressure(writer, 63)


def test_a_shard_nobody_reads_yet_fills_once(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 2))
    writer = ShardWriter(path)
    pressure = BackPressure(writer, queue_rows(4, 5, 2, 0))
    while not pressure.full:
        writer.append_chunk(marked.block_of(0, 2, writer.head, 1))
    assert writer.head == 12
    fifo = Fifo(4)
    fifo.attach(ShardReader(path), SequenceView(marked.schema(), 5).span)
    fifo.refresh()
    assert fifo.size == 4 and pressure.full
    fifo.select(4, np.random.default_rng(0))
    assert pressure.full, "the rows are still being copied"
    fifo.release()
    assert not pressure.full


def test_a_reader_that_comes_again_goes_on_and_the_writer_too(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1, stack=3))
    view = SequenceView(marked.schema(3), 4, 0, ("tag",))
    read: list[int] = []
    for _ in range(6):
        writer = ShardWriter(path)  # resumed: a CUT row
        pressure = BackPressure(writer, queue_rows(2, 4, 1, 2))
        replay = Replay([ShardReader(path)], Fifo(2), view, 2)
        for _ in range(9):
            sample = None
            while sample is None:
                assert not pressure.full, "a reader that is short has to say so"
                while not pressure.full:
                    writer.append_chunk(marked.block_of(0, 1, writer.head, 1))
                sample = replay.sample()
            read += sample.keys.logical.tolist()
    assert len(set(read)) == len(read) and read == sorted(read)
    assert max(np.diff(read)) <= 4 + 5, "no more than the rows around a CUT is passed over"


def test_a_full_queue_does_not_keep_new_rows_from_another_part(marked: ModuleType, shards: Any) -> None:
    """All writers were killed. The newest rows, all that the uniform part draws from, lie before a CUT and start no
    sequence; and the writers wait, for the queue has more than a batch takes of it.
    """
    path = shards.make(marked.info(64, 2))
    writer, view = ShardWriter(path), SequenceView(marked.schema(), 2, 0, ("tag",))
    pressure = BackPressure(writer, queue_rows(8, 2, 2, 0))
    replay = Replay([ShardReader(path)], Mixture([Part(Fifo(8), 0.5), Part(Uniform(capacity=1), 0.5)]), view, 4)
    while not pressure.full:
        writer.append_chunk(marked.block_of(0, 2, writer.head, 1))
    writer = ShardWriter(path)  # marks a CUT
    for _ in range(20):
        if (sample := replay.sample()) is not None:
            break
        if not pressure.full:
            writer.append_chunk(marked.block_of(0, 2, writer.head, 1))
    assert sample is not None and sample.keys.logical[:2].tolist() == [0, 0]
    assert (sample.keys.logical[2:] > 10).all()


class _Run:
    """Writers that wait and a reader, one step at a time."""

    def __init__(
        self, marked: ModuleType, shards: Any, lanes: list[int], steps: int, capacity: int, batch: int
    ) -> None:
        self.marked = marked
        paths = [shards.make(marked.info(96, count)) for count in lanes]
        self.writers = [ShardWriter(path) for path in paths]
        rows = queue_rows(max(capacity, batch), steps, sum(lanes), 0)
        self.pressures = [BackPressure(writer, rows) for writer in self.writers]
        self.fifo = Fifo(capacity)
        view = SequenceView(marked.schema(), steps, 0, ("tag",))
        self.replay = Replay([ShardReader(path) for path in paths], self.fifo, view, batch)

    def write(self, index: int) -> bool:
        """A row, unless the writer has to wait."""
        if self.pressures[index].full:
            return False
        writer = self.writers[index]
        writer.append_chunk(self.marked.block_of(index, writer.info.lanes, writer.head, 1))
        return True

    @property
    def lost(self) -> int:
        return self.fifo.dropped + self.replay.redrawn


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lanes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.integers(1, 5),
    capacity=st.integers(1, 8),
    batch=st.integers(1, 8),
    acts=st.lists(st.integers(0, 9), min_size=20, max_size=200),
    dead=st.booleans(),
)
def test_nobody_waits_for_ever_and_nothing_is_lost(
    marked: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    shards_in: Any,
    lanes: list[int],
    steps: int,
    capacity: int,
    batch: int,
    acts: list[int],
    dead: bool,
) -> None:
    """In any order of acting, with restarts, and with a writer that died: while all others wait a batch is ready."""
    run = _Run(marked, shards_in(tmp_path_factory.mktemp("queue")), lanes, steps, capacity, batch)
    alive = list(range(len(lanes)))[dead and len(lanes) > 1 :]
    read: list[tuple[int, int, int]] = []

    def sample() -> bool:
        sample = run.replay.sample()
        if sample is None:
            return False
        read.extend(zip(*(column.tolist() for column in sample.keys), strict=True))
        return True

    for act in acts:
        if act == 9:
            sample()
        elif act == 8:
            run.writers[alive[0]].cut()
        else:
            run.write(alive[act % len(alive)])
    for _ in range(10):
        for _ in range(300):
            for index in alive:
                run.write(index)
            if sample():
                break
        else:
            raise AssertionError("all wait for one another")
    assert run.lost == 0 and len(set(read)) == len(read)


def test_to_the_end_with_room_for_one(marked: ModuleType, shards: Any) -> None:
    """A thread that writes and one that reads, each waiting for the other, in lock step over a small ring."""
    run, last = _Run(marked, shards, [1], 5, 1, 1), 2_000
    deadline = time.monotonic() + 60

    def write() -> None:
        while run.writers[0].head < last and time.monotonic() < deadline:
            if not run.write(0):
                time.sleep(0)

    thread = threading.Thread(target=write)
    thread.start()
    read: list[int] = []
    while len(read) < last // 5 - 1 and time.monotonic() < deadline:
        sample = run.replay.sample()
        if sample is not None:
            read += sample.keys.logical.tolist()
    thread.join()
    assert read == list(range(0, last - 5, 5))
    assert run.lost == 0


def test_a_queue_smaller_than_a_batch_still_gives_batches(marked: ModuleType, shards: Any) -> None:
    """The original's `capacity: 1` beside batches of many: the writers are asked for what is missing."""
    run = _Run(marked, shards, [2, 1], 4, 1, 8)
    run.pressures = [BackPressure(writer, queue_rows(1, 4, 3, 0)) for writer in run.writers]
    drawn = 0
    for _ in range(2_000):
        for index in range(2):
            run.write(index)
        drawn += run.replay.sample() is not None
    assert drawn > 50 and run.lost == 0


def test_fast_writers_fill_in_only_while_a_batch_is_short(marked: ModuleType, shards: Any) -> None:
    run = _Run(marked, shards, [1, 1], 4, 2, 2)
    for _ in range(50):
        run.write(0)
        run.replay.refresh()
        run.fifo.ready(2)
    assert run.writers[0].head == 9, "its own share, the other one's, and the row to bootstrap from"
    assert run.replay.sample() is not None
    assert run.writers[0].header[Header.GRANT] == 0
    for _ in range(50):
        run.write(0)
    assert run.writers[0].head == 8 + 6, "its own share of the next batch"
