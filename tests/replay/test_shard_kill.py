"""A writer killed at any moment loses at most what it was writing; a new one goes on in the same shard."""

from __future__ import annotations

import random
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.replay import Header, NStepView, Prioritized, Replay, SequenceView, ShardReader, ShardWriter, Uniform
from shoal.types import CUT

ROWS, LANES, STACK, SALT = 512, 2, 2, 5
KILLS = 25


def _wait_for(reader: ShardReader, head: int) -> None:
    deadline = time.monotonic() + 20.0
    while reader.head < head:
        assert time.monotonic() < deadline, f"the writer does not get beyond row {reader.head}"
        time.sleep(0.0005)


@pytest.mark.stress
@pytest.mark.faults
def test_killed_writers_lose_nothing_that_was_published(marked: ModuleType, nursery: Any, shards: Any) -> None:
    path = shards.make(marked.info(ROWS, LANES, STACK))
    reader, rng = ShardReader(path), random.Random(1)
    schema = marked.schema(STACK)
    views = [NStepView(schema, 3, 0.9), SequenceView(schema, 5, 1, ("tag",))]
    selectors = (Prioritized(), Uniform())
    replays = [Replay([reader], one, view, 32) for one, view in zip(selectors, views, strict=True)]
    cuts: list[int] = []
    head, mid_write, checked = 0, 0, 0
    for kill in range(KILLS):
        writer = nursery.start(path, salt=SALT, seed=kill)
        _wait_for(reader, head + 2)  # it has healed what its predecessor left, and written
        checker = marked.Checker([SALT], [cuts])
        deadline = time.monotonic() + rng.uniform(0.0, 0.05)
        while True:
            for view, replay in zip(views, replays, strict=True):
                sample = replay.sample()
                if sample is not None:
                    checked += len(sample.fresh)
                    assert not checker.wrong(sample, view).any()
            if time.monotonic() >= deadline:
                break
        nursery.kill(writer)
        claim, before, head = reader.header[Header.CLAIM], head, reader.head
        assert before < head <= claim <= head + ROWS
        assert checker.check_ring(reader, 0) == min(head, ROWS - (claim - head))
        mid_write += claim > head
        cuts += range(head, max(claim, head + 1))
        assert reader.header[Header.EPOCH] == kill + 1
    assert checked > 1000
    assert mid_write > 0, "no writer was killed in the middle of a row: this proved little"
    assert reader.header[Header.CUTS] == len(cuts) - (max(claim, head + 1) - head)


@pytest.mark.stress
@pytest.mark.faults
def test_a_writer_that_was_replaced_stops_and_spoils_nothing(marked: ModuleType, nursery: Any, shards: Any) -> None:
    """The predecessor is alive and at full speed: of a driver that was killed, or of a run that was copied."""
    path = shards.make(marked.info(ROWS, LANES, STACK))
    reader, cuts = ShardReader(path), set()
    for number in range(8):
        first = nursery.start(path, salt=SALT, seed=number)
        _wait_for(reader, reader.head + 2 * ROWS)
        second = nursery.start(path, salt=SALT, seed=number)
        assert nursery.end_of(first) == 1  # with a ReplayError
        _wait_for(reader, reader.head + 20)
        nursery.kill(second)
        logical = np.arange(reader.oldest, reader.head)
        cuts |= set(logical[np.all(reader.columns["boundary"][logical % ROWS] == CUT, axis=1)].tolist())
        marked.Checker([SALT], [cuts]).check_ring(reader, 0)
    assert cuts


@pytest.mark.parametrize("claimed", [0, 1, 7, 64])
def test_reopening_fills_what_was_claimed_with_cuts(marked: ModuleType, shards: Any, claimed: int) -> None:
    """The same by construction: a writer that vanishes in the middle of a chunk of every size."""
    path = shards.make(marked.info(64, 1))
    reader = ShardReader(path)
    first = ShardWriter(path)
    first.append_chunk(marked.block_of(SALT, 1, 0, 100 % 64))
    first.append_chunk(marked.block_of(SALT, 1, 36, 64))
    if claimed:
        with pytest.raises(KeyError):
            first.append_chunk({"obs": np.full((claimed, 1, marked.WORDS), 99, np.uint64)})
    assert (reader.head, reader.oldest) == (100, 100 + claimed - 64)
    second = ShardWriter(path)
    cuts = range(100, 100 + max(1, claimed))
    assert second.head == reader.head == cuts.stop
    assert (reader.header[Header.EPOCH], reader.header[Header.CUTS]) == (2, len(cuts))
    assert reader.oldest == cuts.stop - 64
    checker = marked.Checker([SALT], [cuts])
    assert checker.check_ring(reader, 0) == 64
    second.append_chunk(marked.block_of(SALT, 1, second.head, 20))
    assert checker.check_ring(reader, 0) == 64
    assert second.header[Header.STEPS] == 120


def test_a_writer_killed_while_healing_is_healed_in_turn(
    marked: ModuleType, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shards.make(marked.info(64, 1))
    reader, first = ShardReader(path), ShardWriter(path)
    first.append_chunk(marked.block_of(SALT, 1, 0, 50))
    with pytest.raises(KeyError):
        first.append_chunk({"obs": np.zeros((9, 1, marked.WORDS), np.uint64)})

    def vanish(self: ShardWriter, rows: int, steps: int, episodes: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "_publish", vanish)
        with pytest.raises(KeyboardInterrupt):
            ShardWriter(path)
    assert reader.head == 50
    ShardWriter(path)
    assert reader.head == 59
    assert np.all(reader.columns["boundary"][50:59] == CUT)
    assert marked.Checker([SALT], [range(50, 59)]).check_ring(reader, 0) == 59


def test_a_reader_attached_before_goes_on_after_a_reopening(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, LANES))
    view = NStepView(marked.schema(), 2, 0.5)
    replay = Replay([ShardReader(path)], Uniform(), view, 64)
    ShardWriter(path).append_chunk(marked.block_of(SALT, LANES, 0, 30))
    before = replay.sample()
    assert before is not None and before.keys.logical.max() < 30
    again = ShardWriter(path)
    assert again.head == 31
    again.append_chunk(marked.block_of(SALT, LANES, 31, 30))
    checker, seen = marked.Checker([SALT], [[30]]), set()
    for _ in range(20):
        sample = replay.sample()
        assert sample is not None
        assert not checker.wrong(sample, view).any()
        seen |= set(sample.keys.logical.tolist())
    assert seen & set(range(28)) and seen & set(range(31, 61)) and 30 not in seen
