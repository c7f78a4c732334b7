"""Replay: batches from several shards, late and lagging readers, refusals, and no page faults."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError, ReplayError, WrongSchema
from shoal.replay import (
    Column,
    Fifo,
    Mixture,
    NStepView,
    Part,
    Prioritized,
    Replay,
    SequenceView,
    ShardInfo,
    ShardReader,
    ShardWriter,
    Uniform,
)
from shoal.replay.replay import VERSION_STRIDE


def _marked(
    marked: ModuleType, shards: Any, rows: int, lanes: int, heads: list[int], stack: int = 1
) -> list[ShardReader]:
    """Shards with salts 0, 1, … written so far."""
    readers = []
    for salt, head in enumerate(heads):
        path = shards.make(marked.info(rows, lanes, stack))
        writer = ShardWriter(path)
        while writer.head < head:
            writer.append_chunk(marked.block_of(salt, lanes, writer.head, min(rows, head - writer.head)))
        readers.append(ShardReader(path))
    return readers


def _grow(marked: ModuleType, reader: ShardReader, salt: int, count: int, writer: ShardWriter) -> None:
    while count:
        size = min(count, reader.rows)
        writer.append_chunk(marked.block_of(salt, reader.lanes, writer.head, size))
        count -= size


@pytest.mark.parametrize("selector", [Uniform, Prioritized])
@pytest.mark.parametrize("stack", [1, 3])
def test_batches_from_several_shards_are_what_was_written(
    marked: ModuleType, shards: Any, selector: Callable[[], Any], stack: int
) -> None:
    readers = _marked(marked, shards, 128, 3, [40, 500, 0, 129], stack)
    views: list[Any] = [
        NStepView(marked.schema(stack), 3, 0.9),
        SequenceView(marked.schema(stack), 5, 2, ("tag",)),
    ]
    for view in views:
        replay, drawn = Replay(readers, selector(), view, 96, seed=3), set()
        for _ in range(20):
            sample = replay.sample()
            assert sample is not None
            assert not marked.Checker(range(4)).wrong(sample, view).any()
            drawn |= set(sample.keys.shard.tolist())
            middle = 2 if isinstance(view, SequenceView) else 0  # of a sequence of 5
            versions = (sample.keys.logical + middle) % 1000
            assert sample.weights_version == pytest.approx(versions[::VERSION_STRIDE].mean())
            assert sample.size == replay.size
        assert drawn == {0, 1, 3}


def test_an_empty_replay_has_nothing_to_give_yet(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(64, 1))
    view = NStepView(marked.schema(), 3, 0.9)
    replay, writer = Replay([ShardReader(path)], Uniform(), view, 8), ShardWriter(path)
    for _ in range(3):
        assert replay.sample() is None
        writer.append_chunk(marked.block_of(0, 1, writer.head, 1))
    assert replay.size == 0
    writer.append_chunk(marked.block_of(0, 1, writer.head, 1))
    sample = replay.sample()
    assert sample is not None and replay.size == 1
    assert sample.keys.logical.tolist() == [0] * 8
    assert sample.probabilities.tolist() == [1.0] * 8


@pytest.mark.parametrize("selector", [Uniform, Prioritized])
def test_a_reader_that_attaches_late_sees_a_wrapped_ring_whole(marked: ModuleType, shards: Any, selector: Any) -> None:
    readers = _marked(marked, shards, 64, 2, [1000])
    view = NStepView(marked.schema(), 1, 0.9)
    replay = Replay(readers, selector(), view, 256)
    seen: set[int] = set()
    for _ in range(20):
        sample = replay.sample()
        assert sample is not None
        assert not marked.Checker([0]).wrong(sample, view).any()
        seen |= set(sample.keys.logical.tolist())
    assert max(seen) == 998
    assert 1000 - 64 <= min(seen) <= 1000 - 64 + 5


@pytest.mark.parametrize("selector", [Uniform, Prioritized])
@pytest.mark.parametrize("lag", [1, 63, 64, 65, 128, 1000])
def test_a_reader_that_lags_by_any_number_of_rings_catches_up(
    marked: ModuleType, shards: Any, selector: Any, lag: int
) -> None:
    path = shards.make(marked.info(64, 2))
    writer, reader = ShardWriter(path), ShardReader(path)
    view = NStepView(marked.schema(), 2, 0.9)
    replay = Replay([reader], selector(), view, 64)
    for _ in range(5):
        _grow(marked, reader, 0, lag, writer)
        sample = replay.sample()
        if sample is not None:
            assert not marked.Checker([0]).wrong(sample, view).any()
            assert sample.keys.logical.min() >= writer.head - 64
            fresh = Replay([reader], selector(), view, 64)
            fresh.refresh()
            assert replay.size == fresh.size


def test_a_shard_may_join_later(marked: ModuleType, shards: Any) -> None:
    first, second = _marked(marked, shards, 64, 1, [50, 50])
    view = NStepView(marked.schema(), 1, 0.9)
    replay = Replay([first], Uniform(), view, 64)
    assert replay.sample() is not None
    size = replay.size
    replay.attach(second)
    sample = replay.sample()
    assert sample is not None and replay.size == 2 * size
    assert set(sample.keys.shard.tolist()) == {0, 1}
    assert not marked.Checker([0, 1]).wrong(sample, view).any()


def test_other_columns_are_refused_by_name(marked: ModuleType, shards: Any, schema_of: Callable[..., Any]) -> None:
    replay = Replay(_marked(marked, shards, 64, 1, [0]), Uniform(), NStepView(marked.schema(), 1, 0.9), 4)
    path = shards.make(ShardInfo(schema_of(extras=(Column("tag", "int64"),)), 64, 1))
    with pytest.raises(WrongSchema, match=f"{path} has other columns"):
        replay.attach(ShardReader(path))
    with pytest.raises(WrongSchema, match="other columns"):
        replay.attach(ShardReader(shards.make(marked.info(64, 1, stack=2))))
    assert len(replay.shards) == 1


@pytest.mark.parametrize(("n", "stack", "least"), [(1, 1, 18), (3, 1, 22), (3, 4, 28)])
def test_a_ring_smaller_than_the_view_needs_is_refused(
    marked: ModuleType, shards: Any, n: int, stack: int, least: int
) -> None:
    view = NStepView(marked.schema(stack), n, 0.9)
    small = ShardReader(shards.make(marked.info(least - 1, 1, stack)))
    with pytest.raises(
        ReplayError, match=rf"{least - 1} rows per lane; this view needs at least {least}.*replay\.capacity"
    ):
        Replay([small], Uniform(), view, 4)
    [enough] = _marked(marked, shards, least, 1, [3 * least + 1], stack)
    sample = Replay([enough], Uniform(), view, 64).sample()
    assert sample is not None and not marked.Checker([0]).wrong(sample, view).any()


def test_no_shard_is_refused(marked: ModuleType) -> None:
    with pytest.raises(ReplayError, match="at least one shard"):
        Replay([], Uniform(), NStepView(marked.schema(), 1, 0.9), 4)


def test_the_same_seed_draws_the_same(marked: ModuleType, shards: Any) -> None:
    readers = _marked(marked, shards, 128, 2, [100, 300])
    view = NStepView(marked.schema(), 1, 0.9)

    def draws(seed: int) -> list[int]:
        replay = Replay(readers, Mixture([Part(Uniform(), 0.5), Part(Prioritized(), 0.5)]), view, 32, seed=seed)
        samples = [replay.sample() for _ in range(5)]
        return [number for sample in samples if sample for column in sample.keys for number in column.tolist()]

    assert draws(1) == draws(1) != draws(2)


@pytest.mark.parametrize("ring", [1, 2, 5])
def test_a_batch_holds_until_the_ring_comes_round(marked: ModuleType, shards: Any, ring: int) -> None:
    view = NStepView(marked.schema(), 1, 0.9)
    replay = Replay(_marked(marked, shards, 64, 1, [60]), Uniform(), view, 16, ring=ring)
    samples: list[Any] = []
    for _ in range(12):
        samples.append(replay.sample())
        for sample in samples[-ring:]:
            assert not marked.Checker([0]).wrong(sample, view).any()
        if len(samples) > ring:
            assert np.shares_memory(samples[-1].data.obs, samples[-1 - ring].data.obs)
    keys = {id(column) for sample in samples for column in sample.keys}
    assert len(keys) == 36, "keys are handed back with priorities later: they must be each batch's own"


def test_threads_copy_the_same(marked: ModuleType, shards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.replay.gather.PARALLEL_BYTES", 1)
    readers = _marked(marked, shards, 128, 2, [300, 300], stack=4)
    view = NStepView(marked.schema(4), 3, 0.9)
    for _ in range(5):
        sample = Replay(readers, Uniform(), view, 128, threads=3).sample()
        assert sample is not None and not marked.Checker([0, 1]).wrong(sample, view).any()


def test_batches_are_made_by_the_given_allocator(marked: ModuleType, shards: Any) -> None:
    made: list[Any] = []

    def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
        made.append(np.zeros(shape, dtype))
        return made[-1]

    replay = Replay(
        _marked(marked, shards, 64, 1, [60]),
        Uniform(),
        NStepView(marked.schema(), 1, 0.9),
        16,
        ring=3,
        allocate=allocate,
    )
    sample = replay.sample()
    assert len(made) == 3 * 5
    assert sample is not None and any(sample.data.obs is array for array in made)


@pytest.mark.parametrize("selector", [Uniform, Prioritized])
def test_sampling_faults_no_pages(shards: Any, schema_of: Callable[..., Any], blank: Any, selector: Any) -> None:
    """Stacked frames, large batches: after warming up every byte goes into memory that is already there."""
    info = ShardInfo(schema_of(obs=(42, 42), dtype="uint8", stack=4), 1024, 2)
    path = shards.make(info)
    ShardWriter(path).append_chunk(blank(info, 1024, obs=7))
    reader = ShardReader(path)
    for column in reader.columns.values():
        column.max()  # maps every page of the shard
    replay = Replay([reader], selector(), NStepView(info.schema, 3, 0.99), 128, ring=4)

    def faults(work: Callable[[], Any], times: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(times):
            work()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def learn() -> None:
        sample = replay.sample()
        assert sample is not None
        replay.update_priorities(sample.keys, np.ones(128, np.float32))

    def allocate_anew() -> None:
        with mmap.mmap(-1, 2 * 128 * 4 * 42 * 42) as batch:
            batch[:: mmap.PAGESIZE] = bytes(len(range(0, len(batch), mmap.PAGESIZE)))

    faults(learn, 50)
    assert faults(learn, 200) < 200
    assert faults(allocate_anew, 200) > 1000, "page faults are not counted here: this proved nothing"


class _Queued:
    """A queue and, beside it, old experience; batches of 4 to 16 sequences of 4 steps."""

    def __init__(self, marked: ModuleType, shards: Any, batch_min: int | None, ratio: float = 0.5) -> None:
        self.marked = marked
        path = shards.make(marked.info(512, 1))
        self.writer, self.view = ShardWriter(path), SequenceView(marked.schema(), 4, 0, ("tag",))
        parts = [Part(Fifo(), ratio), Part(Uniform(), 1 - ratio)] if ratio < 1 else [Part(Fifo(), 1.0)]
        self.replay = Replay([ShardReader(path)], Mixture(parts), self.view, 16, ring=3, batch_min=batch_min)
        self.stretches(0)

    def stretches(self, count: int) -> None:
        """Writes so many, and once the row to bootstrap from."""
        rows = count * 4 + (self.writer.head == 0)
        self.writer.append_chunk(self.marked.block_of(0, 1, self.writer.head, rows))


@pytest.mark.parametrize(
    ("ratio", "batch_min", "waiting", "size"),
    [
        (1.0, 4, 16, 16),  # whole when it can be
        (1.0, 4, 30, 16),
        (1.0, 4, 7, 7),
        (1.0, 4, 3, None),
        (1.0, None, 15, None),  # off
        (0.5, 4, 5, 10),  # the ratio is kept
        (0.5, 4, 1, None),
        (0.5, 3, 2, 4),  # 3 does not divide: 4 is the least
        (0.25, 1, 3, 12),
        (0.75, 1, 8, 8),  # six fresh ones: eight do not divide further
        (0.75, 1, 2, None),
    ],
)
def test_a_batch_is_what_is_ready_and_divides(
    marked: ModuleType, shards: Any, ratio: float, batch_min: int | None, waiting: int, size: int | None
) -> None:
    queued = _Queued(marked, shards, batch_min, ratio)
    queued.stretches(waiting)
    sample = queued.replay.sample()
    if size is None:
        assert sample is None and queued.replay.mean_batch == 0.0
        return
    assert sample is not None
    assert len(sample.keys.logical) == len(sample.fresh) == len(sample.probabilities) == size
    assert sample.fresh.sum() == size * ratio and sample.fresh[: round(size * ratio)].all()
    assert sample.keys.logical[: round(size * ratio)].tolist() == list(range(0, 4 * round(size * ratio), 4))
    assert sample.data.reward.shape == (4, size) and sample.data.obs.shape[:2] == (5, size)
    assert not marked.Checker([0]).wrong(sample, queued.view).any()
    assert (queued.replay.drawn, queued.replay.rows_drawn, queued.replay.mean_batch) == (1, 4 * size, size)


def test_batches_of_all_sizes_stay_whole_in_the_ring(marked: ModuleType, shards: Any) -> None:
    queued, rng, sizes, samples = _Queued(marked, shards, 2), np.random.default_rng(0), [], []
    for _ in range(60):
        queued.stretches(int(rng.integers(0, 9)))
        sample = queued.replay.sample()
        if sample is not None:
            samples.append(sample)
            sizes.append(len(sample.fresh))
        for known in samples[-3:]:
            assert not marked.Checker([0]).wrong(known, queued.view).any()
    assert len(set(sizes)) > 4 and queued.replay.mean_batch == pytest.approx(np.mean(sizes))
    assert queued.replay.rows_drawn == 4 * sum(sizes)


def test_transitions_are_counted_one_by_one(marked: ModuleType, shards: Any) -> None:
    view = NStepView(marked.schema(), 3, 0.9)
    replay = Replay(_marked(marked, shards, 64, 1, [60]), Uniform(), view, 16, batch_min=4)
    for _ in range(3):
        replay.sample()
    assert (replay.drawn, replay.rows_drawn, replay.mean_batch) == (3, 48, 16.0)


@pytest.mark.parametrize("batch_min", [0, 17])
def test_an_impossible_least_batch_is_refused(marked: ModuleType, shards: Any, batch_min: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_min is {batch_min}.*16"):
        _Queued(marked, shards, batch_min)
