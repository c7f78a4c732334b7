"""Copying rows: any dtype, any threads, nothing but what was asked for."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import Column, SequenceView, ShardInfo, ShardReader, ShardWriter, create_shard, gather
from shoal.replay.gather import Copier, copy_stretches
from shoal.replay.schema import Schema
from shoal.replay.shard_table import ShardTable

ROWS, LANES, BATCH = 7, 2, 60


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("uint8", (3,)), ("uint8", (4, 4)), ("float32", ()), ("float32", (2,)), ("bool", ()), ("int64", (2, 3))],
)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("steps", [1, 3])
def test_rows_of_two_shards_are_copied_whatever_their_dtype(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...], threads: int, steps: int
) -> None:
    monkeypatch.setattr(gather, "PARALLEL_BYTES", 1)
    rng = np.random.default_rng(0)
    schema = Schema((Column("obs", dtype, shape), Column("boundary", "uint8")))
    readers, sources = [], []
    for name in ("a", "b"):
        create_shard(tmp_path / name, ShardInfo(schema, ROWS, LANES))
        source = rng.integers(0, 2 if dtype == "bool" else 100, (ROWS, LANES, *shape)).astype(dtype)
        ShardWriter(tmp_path / name).append_chunk({"obs": source, "boundary": np.zeros((ROWS, LANES), np.uint8)})
        readers.append(ShardReader(tmp_path / name))
        sources.append(source)
    table, width = ShardTable(readers), schema["obs"].nbytes
    shard, lane = rng.integers(0, 2, 50).astype(np.int32), rng.integers(0, LANES, 50).astype(np.int32)
    logical, target = rng.integers(0, ROWS, 50), rng.permutation(BATCH)[:50]
    outs = [np.ones((steps, BATCH, *shape), dtype), np.ones((BATCH, steps, *shape), dtype).swapaxes(0, 1)]
    expected = outs[0].copy()
    for i in range(50):
        for step in range(steps):
            expected[step, target[i]] = sources[shard[i]][(logical[i] + step) % ROWS, lane[i]]
    for out in outs:  # rows of one time step, or those of one draw, side by side
        plan = np.array([[steps, width, 1, *out.strides[:2], out.ctypes.data]])
        others = [table.rows, table["boundary"], table.block(("obs",)), plan]
        Copier(threads).share(copy_stretches, (shard, lane, logical, target), others, 50 * width)
        assert np.array_equal(out, expected)


def test_a_column_that_a_shard_lacks_has_no_address(shards: Any) -> None:
    _, reader = shards.small(16, obs=(1,))
    table = ShardTable([reader])
    assert table["next_obs"].tolist() == [0] and table["obs"][0] != 0
    table.remove(0)
    assert len(table.rows) == len(table["obs"]) == 0


def test_a_batch_of_other_rows_is_refused(shards: Any) -> None:
    _, reader = shards.small(16, obs=(1,))
    view = SequenceView(reader.info.schema, 2)
    out = view.allocate(reader.info.schema, 4, np.zeros)
    with pytest.raises(ReplayError, match="make batches with `allocate`"):
        view._find(out._replace(obs=np.zeros((3, 4, 2), np.float32)))
    view = SequenceView(shards.small(16, obs=(2,))[1].info.schema, 2)
    with pytest.raises(ReplayError, match="make batches with `allocate`"):
        view._find(out._replace(obs=np.zeros((3, 4, 4), np.float32)[..., ::2]))


def test_a_failure_in_a_thread_is_raised() -> None:
    def fail(part: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("in a thread")
        time.sleep(0.05)  # leaves the other thread a piece of the work

    with pytest.raises(RuntimeError, match="in a thread"):
        Copier(2).share(fail, (np.arange(4),), (), gather.PARALLEL_BYTES)
