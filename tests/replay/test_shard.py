"""Shards: what is written comes back, rings wrap, damage is refused by name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import CorruptShard, NoSpace, ReplayError
from shoal.replay import Column, Header, ShardInfo, ShardReader, ShardWriter, create_shard, read_info
from shoal.types import CUT


def test_info_survives_the_file(shards: Any, schema_of: Callable[..., Any]) -> None:
    schema = schema_of(
        obs=(4, 3), dtype="uint8", stack=2, extras=(Column("log_prob", "float32"), Column("core", "float32", (5,)))
    )
    info = ShardInfo(schema, rows=10, lanes=3, run="a run", env_id="Toy-v0", algorithm="ppo", created=12.5)
    assert read_info(shards.make(info)) == info
    assert info.nbytes == 10 * 3 * (12 + 8 + 4 + 1 + 1 + 1 + 4 + 4 + 20)


def test_rows_come_back_where_they_belong(marked: ModuleType, shards: Any) -> None:
    """Single rows and chunks, over the end of the ring and of all lengths up to a whole ring."""
    path = shards.make(marked.info(10, 3))
    writer, reader, checker = ShardWriter(path), ShardReader(path), marked.Checker([1])
    for size in [1, 1, 5, 1, 6, 10, 1, 9, 10, 3, 1]:
        block = marked.block_of(1, 3, writer.head, size)
        if size == 1:
            writer.append({name: column[0] for name, column in block.items()})
        else:
            writer.append_chunk(block)
        assert reader.head == writer.head
        assert reader.oldest == max(0, writer.head - 10)
        assert checker.check_ring(reader, 0) == min(10, writer.head)
    assert reader.steps == 3 * writer.head


def test_a_chunk_longer_than_the_ring_is_refused(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(10, 1))
    writer = ShardWriter(path)
    with pytest.raises(ReplayError, match="11 rows does not fit a ring of 10"):
        writer.append_chunk(marked.block_of(1, 1, 0, 11))
    assert (writer.header[Header.HEAD], writer.header[Header.CLAIM]) == (0, 0)


def test_header_counts(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(16, 2))
    writer, reader = ShardWriter(path), ShardReader(path)
    block = marked.block_of(1, 2, 0, 4)
    writer.append({name: column[0] for name, column in block.items()}, steps=1, episodes=1)
    writer.append_chunk(block, episodes=2)
    writer.cut()
    assert (reader.steps, reader.header[Header.EPISODES], reader.header[Header.CUTS]) == (9, 3, 1)
    assert reader.columns["boundary"][5].tolist() == [CUT, CUT]
    assert reader.header[Header.EPOCH] == 1
    writer.close()
    assert reader.header[Header.CLOSED] == 1
    again = ShardWriter(path)
    assert (reader.header[Header.CLOSED], reader.header[Header.EPOCH], again.head) == (0, 2, 7)


def test_a_replaced_writer_stops_before_it_changes_anything(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(16, 1))
    reader, first = ShardReader(path), ShardWriter(path)
    block = marked.block_of(1, 1, 0, 2)
    first.append_chunk(block)
    first.claim_row()
    second = ShardWriter(path)
    words = list(second.header.words)
    row = {name: column[0] for name, column in block.items()}
    for attempt in (first.publish_row, first.claim_row, first.cut, lambda: first.append(row)):
        with pytest.raises(ReplayError, match=r"opened by another writer \(number 2; this one is number 1\)"):
            attempt()
    first.close()
    assert list(second.header.words) == words and (first.epoch, second.epoch) == (1, 2)
    second.append(row)
    assert reader.head == 4 and reader.columns["boundary"][:4, 0].tolist() == [0, 0, CUT, 0]


def test_readers_cannot_write(marked: ModuleType, shards: Any) -> None:
    reader = ShardReader(shards.make(marked.info(16, 1)))
    with pytest.raises(ValueError, match="read-only"):
        reader.columns["obs"][0] = 1
    with pytest.raises((ValueError, TypeError), match=r"read-?only"):
        reader.header[Header.HEAD] = 1


@pytest.mark.parametrize(("rows", "lanes"), [(1, 1), (0, 1), (2, 0)])
def test_too_small_a_shard_is_refused(shards: Any, schema_of: Callable[..., Any], rows: int, lanes: int) -> None:
    with pytest.raises(ReplayError, match=f"at least 2 rows and 1 lane, got {rows} and {lanes}"):
        shards.make(ShardInfo(schema_of(), rows, lanes))


def test_a_shard_is_not_made_over_another(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(16, 1))
    ShardWriter(path).append_chunk(marked.block_of(1, 1, 0, 5))
    with pytest.raises(ReplayError, match="shard-1"):
        create_shard(path, marked.info(16, 1))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert marked.Checker([1]).check_ring(ShardReader(path), 0) == 5


def test_what_a_killed_maker_left_is_in_nobodys_way(marked: ModuleType, tmp_path: Path) -> None:
    left = tmp_path / "shard.new"
    left.mkdir()
    (left / "obs.bin").write_bytes(b"half")
    create_shard(tmp_path / "shard", marked.info(16, 1))
    assert read_info(tmp_path / "shard") == marked.info(16, 1)
    assert not left.exists()


def test_space_is_reserved_when_a_shard_is_made(marked: ModuleType, shards: Any) -> None:
    path = shards.make(marked.info(1000, 2))
    held = sum(file.stat().st_blocks * 512 for file in path.iterdir())
    assert held >= marked.info(1000, 2).nbytes


@pytest.mark.faults
def test_a_shard_larger_than_the_disk_is_refused_with_the_numbers(
    shards: Any, schema_of: Callable[..., Any], tmp_path: Path
) -> None:
    petabyte = ShardInfo(schema_of(obs=(1024,), dtype="uint8"), rows=2**30, lanes=1024)
    with pytest.raises(NoSpace, match=r"shard-1 needs 1\d{6}\.\d GiB.* has \d+\.\d GiB") as refused:
        shards.make(petabyte)
    assert "replay.capacity" in str(refused.value)
    assert list(tmp_path.iterdir()) == [], "it left its files behind"


@pytest.mark.faults
def test_a_disk_that_fills_up_meanwhile_is_refused_too(
    marked: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(NoSpace, match="KiB"):
        create_shard(tmp_path / "shard", marked.info(1000, 1))
    assert list(tmp_path.iterdir()) == []


def _rewrite(path: Path, **fields: Any) -> None:
    data = json.loads((path / "schema.json").read_text()) | fields
    (path / "schema.json").write_text(json.dumps(data))


def _shorten(path: Path) -> None:
    with open(path / "reward.bin", "r+b") as file:
        file.truncate(7)


def _set_header(path: Path, **words: int) -> None:
    header = np.memmap(path / "header.bin", np.uint64, "r+")
    for name, value in words.items():
        header[Header[name.upper()]] = value
    header.flush()


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a shortened column": (_shorten, "reward.bin should have 64 bytes"),
    "a missing column": (lambda p: (p / "obs.bin").unlink(), "obs.bin should have 4096 bytes"),
    "a missing header": (lambda p: (p / "header.bin").unlink(), "header.bin"),
    "a short header": (lambda p: (p / "header.bin").write_bytes(bytes(8)), "header.bin has 8 bytes instead of 256"),
    "no schema": (lambda p: (p / "schema.json").unlink(), "is not a shard"),
    "no folder": (shutil.rmtree, "is not a shard"),
    "garbage": (lambda p: (p / "schema.json").write_bytes(b"\xff\x00garbage"), "is not a shard"),
    "half a schema": (lambda p: (p / "schema.json").write_text('{"format": 1, "rows"'), "is not a shard"),
    "a list": (lambda p: (p / "schema.json").write_text("[1]"), "is not a shard"),
    "another format": (lambda p: _rewrite(p, format=99), "format 99; this version of Shoal reads 2"),
    "no columns": (lambda p: _rewrite(p, columns=None), "schema"),
    "a repeated column": (
        lambda p: _rewrite(p, columns=[{"name": "obs", "dtype": "uint8", "shape": []}] * 2),
        "repeat",
    ),
    "an unknown dtype": (lambda p: _rewrite(p, columns=[{"name": "obs", "dtype": "qubit", "shape": []}]), "qubit"),
    "no rows": (lambda p: _rewrite(p, rows="many"), "garbles a field"),
    "other rows": (lambda p: _rewrite(p, rows=17), "obs.bin should have 4352 bytes"),
    "negative rows": (lambda p: _rewrite(p, rows=-16, lanes=-1), "-16 rows"),
    "head beyond claim": (lambda p: _set_header(p, head=9, claim=8), "beyond claim"),
    "claim beyond a ring": (lambda p: _set_header(p, head=9, claim=9 + 17), "beyond"),
}


@pytest.mark.faults
@pytest.mark.parametrize("open_shard", [ShardReader, ShardWriter])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_shard_is_refused_by_name(
    marked: ModuleType, shards: Any, damage: str, open_shard: Callable[[Path], Any]
) -> None:
    path = shards.make(marked.info(16, 1))
    do, message = DAMAGE[damage]
    do(path)
    with pytest.raises(CorruptShard, match=message) as refused:
        open_shard(path)
    assert str(path) in str(refused.value)


def test_opening_beside_a_busy_writer_is_no_damage(marked: ModuleType, nursery: Any, shards: Any) -> None:
    """Head and claim move while they are compared."""
    path = shards.make(marked.info(64, 1))
    writer = nursery.start(path, salt=1)
    for _ in range(500):
        ShardReader(path)
    nursery.kill(writer)
