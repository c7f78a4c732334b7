"""No torn row leaves a shard, with writers in other processes at full speed; and these tests would notice one."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import Header, NStepView, Prioritized, Replay, SequenceView, ShardReader, ShardWriter, Uniform

ROWS, LANES, STACK = 2048, 2, 3
SALTS = (7, 8)
ENOUGH = 50


class Dawdling:
    """A view that is sometimes slow, so that the writer catches it between drawing and checking."""

    def __init__(self, view: Any, seed: int) -> None:
        self._view, self._rng = view, random.Random(seed)
        self.span, self.allocate, self.reads = view.span, view.allocate, view.reads

    def fill(self, *arguments: Any) -> None:
        """Copies, after a pause of up to a turn or two of the ring."""
        if self._rng.random() < 0.2:
            time.sleep(self._rng.uniform(0.0, 0.01))
        self._view.fill(*arguments)


def _views(marked: ModuleType) -> list[NStepView | SequenceView]:
    schema = marked.schema(STACK)
    return [NStepView(schema, 3, 0.9), SequenceView(schema, 6, 2, ("tag",))]


def _replays(views: list[Any], paths: list[Path]) -> list[Replay]:
    selectors = (Prioritized(), Uniform())
    readers = [ShardReader(path) for path in paths]
    return [
        Replay(readers, selector, Dawdling(view, seed=index), 64, seed=index)  # type: ignore[arg-type]
        for index, (selector, view) in enumerate(zip(selectors, views, strict=True))
    ]


class _Load:
    """Two writers at full speed, and what a reader found beside them."""

    def __init__(self, marked: ModuleType, nursery: Any, shards: Any) -> None:
        self.paths = [shards.make(marked.info(ROWS, LANES, STACK)) for _ in SALTS]
        self.views = _views(marked)
        self.replays = _replays(self.views, self.paths)
        self.checker = marked.Checker(SALTS)
        self.nursery = nursery
        self.batches, self.wrong = 0, 0

    def run(self, seconds: float, *, until_wrong: bool = False) -> None:
        """Reads beside the writers for so long, and longer on a busy machine, until there is something to judge."""
        jobs = zip(self.paths, SALTS, strict=True)
        writers = [self.nursery.start(path, salt=salt, seed=salt) for path, salt in jobs]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds or (self.batches <= ENOUGH and passed < 60):
            if until_wrong and self.wrong:
                break
            for view, replay in zip(self.views, self.replays, strict=True):
                sample = replay.sample()
                if sample is not None:
                    self.batches += 1
                    self.wrong += int(np.count_nonzero(self.checker.wrong(sample, view)))
        for pid in writers:
            self.nursery.kill(pid)


@pytest.mark.stress
def test_no_torn_row_beside_two_writers(marked: ModuleType, nursery: Any, shards: Any) -> None:
    load = _Load(marked, nursery, shards)
    load.run(3.5)
    assert load.wrong == 0
    assert load.batches > ENOUGH
    heads = [ShardReader(path).head for path in load.paths]
    assert min(heads) > 4 * ROWS, f"the rings hardly turned: {heads}"
    assert sum(replay.redrawn for replay in load.replays) > 0, "no draw ever met the writer: this proved nothing"


@pytest.mark.stress
def test_a_reader_that_never_looks_back_is_caught(
    marked: ModuleType, nursery: Any, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same load and the same check, with the second look at `claim` left out."""
    monkeypatch.setattr(ShardReader, "oldest", property(lambda self: 0))
    load = _Load(marked, nursery, shards)
    load.run(10.0, until_wrong=True)
    assert load.wrong > 0


class Overtaken:
    """A view during whose copying the writer moves on, the first few times."""

    def __init__(self, view: Any, meanwhile: Any, times: int = 1) -> None:
        self._view, self._meanwhile, self._left = view, meanwhile, times
        self.span, self.allocate, self.reads = view.span, view.allocate, view.reads

    def fill(self, *arguments: Any) -> None:
        """Lets the writer go first."""
        if self._left:
            self._left -= 1
            self._meanwhile()
        self._view.fill(*arguments)


def _overtaken(marked: ModuleType, shards: Any, count: int, times: int = 1) -> tuple[Replay, NStepView]:
    path = shards.make(marked.info(64, 1))
    writer, view = ShardWriter(path), NStepView(marked.schema(), 2, 0.9)
    writer.append_chunk(marked.block_of(1, 1, 0, 60))

    def meanwhile() -> None:
        writer.append_chunk(marked.block_of(1, 1, writer.head, count))

    hooked: Any = Overtaken(view, meanwhile, times)
    return Replay([ShardReader(path)], Uniform(), hooked, 32), view


def test_rows_overtaken_while_copied_are_drawn_again(marked: ModuleType, shards: Any) -> None:
    replay, view = _overtaken(marked, shards, 40)
    sample = replay.sample()
    assert sample is not None
    assert replay.redrawn > 0
    assert not marked.Checker([1]).wrong(sample, view).any()
    assert sample.keys.logical.min() >= 60 + 40 - 64


def test_frames_overtaken_below_the_first_row_count_too(marked: ModuleType, shards: Any) -> None:
    """The oldest row drawn is whole, but a frame that it stacks is not."""
    path = shards.make(marked.info(64, 1, 4))
    writer, reader = ShardWriter(path), ShardReader(path)
    writer.append_chunk(marked.block_of(1, 1, 0, 64))
    view = NStepView(marked.schema(4), 1, 0.9)
    fill, first = view.fill, []

    def overtaken(table: Any, keys: Any, *others: Any) -> None:
        if not first:
            first.append(int(keys.logical.min()))
            writer.append_chunk(marked.block_of(1, 1, 64, first[0] - 1))
            assert table.oldest().tolist() == [first[0] - 1]
        fill(table, keys, *others)

    view.fill = overtaken  # type: ignore[method-assign]
    replay = Replay([reader], Uniform(), view, 8)
    sample = replay.sample()
    assert sample is not None and replay.redrawn > 0
    assert not marked.Checker([1]).wrong(sample, view).any()


def test_without_the_second_look_overtaken_rows_come_out_wrong(
    marked: ModuleType, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, view = _overtaken(marked, shards, 40)
    monkeypatch.setattr(ShardReader, "oldest", property(lambda self: 0))
    sample = replay.sample()
    assert sample is not None
    assert marked.Checker([1]).wrong(sample, view).any()


def test_a_reader_that_is_always_overtaken_says_so(marked: ModuleType, shards: Any) -> None:
    replay, _ = _overtaken(marked, shards, 64, times=10_000)
    with pytest.raises(ReplayError, match=r"Raise replay\.capacity"):
        replay.sample()


def test_a_row_is_given_up_before_its_first_byte_is_overwritten(marked: ModuleType, shards: Any) -> None:
    """A writer stopped in the middle of a row: the row it replaces must not be drawn, all others must."""
    path = shards.make(marked.info(64, 1))
    writer, reader = ShardWriter(path), ShardReader(path)
    writer.append_chunk(marked.block_of(1, 1, 0, 64))

    class Stopped(Exception):
        pass

    class Row(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            if name == "truncated":  # by now obs, action, reward and terminated are new
                assert reader.oldest == 1
                raise Stopped
            return super().__getitem__(name)

    with pytest.raises(Stopped):
        writer.append(Row({name: column[0] for name, column in marked.block_of(1, 1, 64, 1).items()}))
    assert (reader.head, reader.oldest) == (64, 1)
    assert marked.Checker([1]).check_ring(reader, 0) == 63


def test_claims_never_go_back(marked: ModuleType, shards: Any) -> None:
    """A chunk that failed half way has spoilt old rows: they stay given up when the writer goes on with single rows."""
    path = shards.make(marked.info(64, 1))
    writer, reader = ShardWriter(path), ShardReader(path)
    writer.append_chunk(marked.block_of(1, 1, 0, 64))
    with pytest.raises(KeyError):
        writer.append_chunk({"obs": marked.block_of(1, 1, 64, 20)["obs"]})
    assert reader.oldest == 20
    writer.append({name: column[0] for name, column in marked.block_of(1, 1, 64, 1).items()})
    assert (reader.head, reader.oldest) == (65, 20)
    assert marked.Checker([1]).check_ring(reader, 0) == 45
    for logical in range(65, 100):
        writer.append({name: column[0] for name, column in marked.block_of(1, 1, logical, 1).items()})
    assert (reader.head, reader.oldest) == (100, 36)
    assert writer.header[Header.CLAIM] == 100
