"""Draws straight from shards: what may start a sample, how likely it is, and what is read there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.replay import Column, Keys, Schema, ShardInfo, ShardReader, ShardWriter, create_shard
from shoal.replay.draws import Draws
from shoal.replay.gather import n_step_rows
from shoal.replay.shard_table import ShardTable
from shoal.types import CUT, FINAL, STEP

GAMMA, DRAWS = 0.9, 1500
STREAM = (
    *(Column("obs", "int64", (2,)), Column("action", "int32"), Column("reward", "float32")),
    *(Column("terminated", "bool"), Column("truncated", "bool"), Column("boundary", "uint8")),
)
NEXT = (*STREAM, Column("next_obs", "int64", (2,)))


class Made(NamedTuple):
    """A shard and everything ever written to it, by lane and logical row."""

    reader: ShardReader
    written: list[list[dict[str, Any]]]
    has_next: bool


def stream_of(rng: np.random.Generator, shard: int, lane: int, steps: int, cuts: float) -> list[dict[str, Any]]:
    """Rows as an actor writes them: a FINAL row after each end, and here and there a CUT."""
    rows: list[dict[str, Any]] = []
    ended = False
    for logical in range(steps):
        row = {"obs": [logical, shard * 100 + lane], "action": 1000 * lane + logical, "reward": float(rng.integers(9))}
        row |= {"terminated": False, "truncated": False, "boundary": STEP, "next_obs": [-logical - 1, lane]}
        if rng.random() < cuts:
            row["boundary"], ended = CUT, False
        elif ended:
            row["boundary"], ended = FINAL, False
        else:
            kind = rng.random()
            row["terminated"], row["truncated"] = bool(kind < 0.12), bool(0.12 <= kind < 0.24)
            ended = bool(kind < 0.24)
        rows.append(row)
    return rows


def whole_of(rng: np.random.Generator, shard: int, lane: int, steps: int) -> list[dict[str, Any]]:
    """Rows that hold their next observation: an episode follows right on the last."""
    rows = stream_of(rng, shard, lane, steps, 0.0)
    for row in rows:
        row["boundary"] = STEP
    return rows


def make(folder: Path, rng: np.random.Generator, shard: int, ring: int, lanes: int, steps: int, kind: str) -> Made:
    has_next = kind == "next"
    create_shard(folder / f"{shard}", ShardInfo(Schema(NEXT if has_next else STREAM), ring, lanes))
    writer = ShardWriter(folder / f"{shard}")
    written = [
        whole_of(rng, shard, lane, steps) if has_next else stream_of(rng, shard, lane, steps, 0.1)
        for lane in range(lanes)
    ]
    for logical in range(steps):
        names = [column.name for column in writer.info.schema.columns]
        writer.append({name: np.array([lane[logical][name] for lane in written]) for name in names})
    return Made(ShardReader(folder / f"{shard}"), written, has_next)


def reference(made: Made, lane: int, logical: int, n: int) -> tuple[float, float, list[int] | None] | None:
    """Reward, discount and next observation, row by row; None where no sample may start."""
    rows, head = made.written[lane], made.reader.head
    if logical < made.reader.oldest or rows[logical]["boundary"] != STEP:
        return None
    total, discount, at = 0.0, 1.0, logical
    for _ in range(n):
        if at >= head or rows[at]["boundary"] == CUT:
            return None
        row = rows[at]
        total += discount * row["reward"]
        discount *= GAMMA
        at += 1
        if row["terminated"]:
            return total, 0.0, rows[at - 1]["next_obs"] if made.has_next else None
        if row["truncated"]:
            break
    if made.has_next:
        return total, discount, rows[at - 1]["next_obs"]
    if at >= head or rows[at]["boundary"] == CUT:
        return None
    return total, discount, rows[at]["obs"]


def gather(table: ShardTable, keys: Keys, n: int) -> tuple[Any, ...]:
    count = len(keys.logical)
    obs, following, action = np.empty((count, 2), np.int64), np.empty((count, 2), np.int64), np.empty(count, np.int32)
    rewards, discounts = np.empty(count, np.float32), np.empty(count, np.float32)
    names = ("reward", "terminated", "truncated", "boundary", "action", "obs", "next_obs")
    addresses = (action.ctypes.data, obs.ctypes.data, following.ctypes.data)
    arguments = (table.rows, table.endless, *(table[name] for name in names), n, GAMMA, 1, 4, 16, rewards, discounts)
    n_step_rows(*keys, np.arange(count), *arguments, *addresses)
    return obs, action, rewards, discounts, following


def keys_of(count: int) -> Keys:
    return Keys(np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int64))


SHARD = st.tuples(st.integers(2, 20), st.integers(1, 3), st.integers(0, 45), st.sampled_from(["stream", "next"]))


@settings(max_examples=80)
@given(st.lists(SHARD, min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 10**6))
def test_draws_and_rows_are_those_of_the_slow_reference(shards: list[Any], n: int, seed: int) -> None:
    """Several shards, lanes and both formats in one call; every start that may be drawn is, and none else."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        made = [make(Path(folder), rng, index, *shape) for index, shape in enumerate(shards)]
        table = ShardTable(one.reader for one in made)
        draws = Draws(table, n)
        must: list[set[tuple[int, int]]] = []
        for index, one in enumerate(made):
            window = range(int(draws.first[index]), int(draws.stop[index]))
            lanes = range(one.reader.lanes)
            must.append({(lane, at) for lane in lanes for at in window if reference(one, lane, at, n) is not None})
            room = one.reader.oldest + (max(1, one.reader.rows // 16) if one.reader.oldest else 0)
            assert draws.first[index] == room, "no more than a sixteenth, or one row, is left out"
            assert draws.stop[index] >= max(one.reader.head - n, room), "no more than n - 1 rows are left out"
        counts = np.array([DRAWS if starts else 0 for starts in must], np.int64)
        keys = keys_of(int(counts.sum()))
        assert draws.draw(counts, rng, keys, 0)
        obs, action, rewards, discounts, following = gather(table, keys, n)
        seen: list[set[tuple[int, int]]] = [set() for _ in made]
        found = np.stack(keys, axis=1)
        _, once = np.unique(found, axis=0, return_index=True)
        for i in once.tolist():
            shard, lane, logical = found[i].tolist()
            expected = reference(made[shard], lane, logical, n)
            assert expected is not None, (shard, lane, logical)
            row = made[shard].written[lane][logical]
            assert obs[i].tolist() == row["obs"] and action[i] == row["action"]
            assert rewards[i] == pytest.approx(expected[0], abs=1e-5)
            assert discounts[i] == pytest.approx(expected[1], abs=1e-6)
            if expected[2] is not None:
                assert following[i].tolist() == expected[2]
            seen[shard].add((lane, logical))
        assert seen == must, "so many draws find all of at most 60 starts"
        assert (np.bincount(keys.shard, minlength=len(made)) == counts).all()


def test_all_starts_are_equally_likely(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = make(tmp_path, rng, 0, 40, 3, 90, "stream")
    table = ShardTable([made.reader])
    draws, keys = Draws(table, 2), keys_of(60_000)
    assert draws.draw(np.array([60_000]), rng, keys, 0)
    starts, counts = np.unique(keys.logical * 10 + keys.lane, return_counts=True)
    expected = 60_000 / len(starts)
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(starts) - 1
    assert freedom > 30 and abs(chi2 - freedom) < 6 * np.sqrt(2 * freedom), (chi2, freedom)


def test_the_newest_part_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = [make(tmp_path, rng, 0, 100, 2, 100, "next"), make(tmp_path, rng, 1, 100, 1, 7, "next")]
    draws = Draws(ShardTable(one.reader for one in made), 1)
    assert draws.sizes.tolist() == [200, 7]
    draws.keep_newest(0.2)
    assert draws.sizes.tolist() == [40, 2] and draws.first.tolist() == [80, 5]
    keys = keys_of(500)
    assert draws.draw(np.array([400, 100]), rng, keys, 0)
    assert keys.logical[:400].min() == 80 and keys.logical[:400].max() == 99
    assert set(keys.logical[400:].tolist()) == {5, 6}
    assert draws.ages.tolist() == [(99 - keys.logical[:400]).sum(), (6 - keys.logical[400:]).sum()]


def test_draws_go_where_they_are_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    draws = Draws(ShardTable([make(tmp_path, rng, 0, 100, 1, 100, "next").reader]), 1)
    keys = Keys(np.full(10, 7, np.int32), np.full(10, 7, np.int32), np.full(10, -7, np.int64))
    assert draws.draw(np.array([4]), rng, keys, 3)
    assert keys.logical[:3].tolist() == [-7] * 3 == keys.logical[7:].tolist() and keys.shard[3:7].tolist() == [0] * 4
    assert draws.draw(np.array([0]), rng, keys, 0) and keys.shard[0] == 7


def test_a_window_without_a_start_is_said(tmp_path: Path) -> None:
    create_shard(tmp_path / "cut", ShardInfo(Schema(STREAM), 20, 1))
    writer = ShardWriter(tmp_path / "cut")
    writer.cut(10)
    draws = Draws(ShardTable([ShardReader(tmp_path / "cut")]), 1)
    assert draws.sizes.tolist() == [9]
    assert not draws.draw(np.array([4]), np.random.default_rng(0), keys_of(4), 0)


def test_an_empty_shard_has_an_empty_window(tmp_path: Path) -> None:
    create_shard(tmp_path / "empty", ShardInfo(Schema(NEXT), 20, 2))
    for n in (1, 3):
        draws = Draws(ShardTable([ShardReader(tmp_path / "empty")]), n)
        draws.keep_newest(0.2)
        assert draws.sizes.tolist() == [0]


def test_a_second_look_takes_in_what_was_written(tmp_path: Path) -> None:
    create_shard(tmp_path / "one", ShardInfo(Schema(NEXT), 32, 1))
    writer, draws = ShardWriter(tmp_path / "one"), Draws(ShardTable([ShardReader(tmp_path / "one")]), 1)
    row = {column.name: np.zeros((1, *column.shape), column.dtype) for column in NEXT}
    for _ in range(33):
        writer.append(row)
    assert draws.sizes.tolist() == [0]
    draws.look()
    assert (draws.first.tolist(), draws.stop.tolist()) == ([1 + 2], [33]), "off the writer by a sixteenth"
