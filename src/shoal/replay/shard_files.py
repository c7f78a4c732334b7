"""The files of a shard: made, described, checked, mapped. What they mean is in `shard`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import CorruptShard, NoSpace, ReplayError, UnsafePath
from shoal.files import read_file
from shoal.replay.counters import LARGEST_COUNT, Counters, map_file
from shoal.replay.reserve import reserve_file
from shoal.replay.schema import Schema
from shoal.replay.storage import gib
from shoal.types import CUT, Array

FORMAT = 2
LARGEST_SCHEMA = 1 << 20
"""Most bytes of a `schema.json`; a usual one has about a thousand."""


class Header(IntEnum):
    """The words of `header.bin`. The shard's writer writes them, except CURSOR and GRANT (the fifo's reader)."""

    HEAD = 0
    CLAIM = 1
    CURSOR = 2
    EPOCH = 3
    MIRRORED = 4
    """How often it was opened as a mirror of another node's shard; see `mirror`."""
    CLOSED = 5
    STEPS = 6
    EPISODES = 7
    CUTS = 8
    GRANT = 9
    WAITS = 10
    """1 while the writer waits for the learner."""


@dataclass(frozen=True)
class ShardInfo:
    """The content of `schema.json`."""

    schema: Schema
    rows: int
    lanes: int
    run: str = ""
    env_id: str = ""
    algorithm: str = ""
    created: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self.schema.bytes_per_step * self.rows * self.lanes


def ring_margin(rows: int, most: int | None = 64) -> int:
    """How many of the oldest rows of a full ring are not drawn: the writer may fill some while a batch is copied.

    Args:
        rows: length of the ring.
        most: an upper limit; None for readers that copy many batches between two looks at the writer.
    """
    margin = max(1, rows // 16)
    return margin if most is None else min(most, margin)


def ring_pieces(rows: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Splits [start, stop) at the end of a ring of `rows`: first logical row, its position in the ring, row count."""
    while start < stop:
        position = start % rows
        count = min(stop - start, rows - position)
        yield start, position, count
        start += count


def create_shard(path: Path, info: ShardInfo, start: Mapping[Header, int] | None = None) -> None:
    """Makes an empty shard and reserves all its memory, so that no later write can run out of it.

    Args:
        path: its folder. There must be none.
        info: what it holds.
        start: words of its header, where it continues a shard that is gone or on another node. No sample begins at a
            row before its head.
    """
    if info.rows < 2 or info.lanes < 1:
        raise ReplayError(f"A shard needs at least 2 rows and 1 lane, got {info.rows} and {info.lanes}.")
    if path.exists():
        raise ReplayError(f"{path} exists already. Open it with ShardWriter, or choose another name.")
    building = path.with_name(path.name + ".new")
    shutil.rmtree(building, ignore_errors=True)  # left by a process that was killed
    building.mkdir(parents=True)
    try:
        _make_files(building, info)
        if start:
            words = Counters(building / "header.bin", writable=True)
            map_columns(building, info, writable=True)["boundary"][:] = CUT
            for word, value in start.items():
                words[word] = value
    except NoSpace as error:
        shutil.rmtree(building)
        free = gib(shutil.disk_usage(path.parent).free)
        raise NoSpace(
            f"{path} needs {gib(info.nbytes)}, but {path.parent} has {free} free. "
            "Lower replay.capacity or set replay.path to a larger disk."
        ) from error
    building.rename(path)


def create_stub(path: Path) -> None:
    """Makes a folder with a header alone: the counts of a shard elsewhere. Keeps one that is there."""
    path.mkdir(parents=True, exist_ok=True)
    Counters.create(path / "header.bin")


def _make_files(folder: Path, info: ShardInfo) -> None:
    for column in info.schema.columns:
        reserve_file(folder / f"{column.name}.bin", column.nbytes * info.rows * info.lanes)
    Counters.create(folder / "header.bin")
    described = {"format": FORMAT, "rows": info.rows, "lanes": info.lanes, **info.schema.to_json()}
    described |= {"run": info.run, "env_id": info.env_id, "algorithm": info.algorithm, "created": info.created}
    text = json.dumps(described, indent=1).encode()
    reserve_file(folder / "schema.json", len(text))
    with open(folder / "schema.json", "r+b") as file:
        file.write(text)


def read_info(path: Path) -> ShardInfo:
    """Reads and checks `schema.json` against the files beside it."""
    try:
        data: dict[str, Any] = json.loads(read_file(path / "schema.json", LARGEST_SCHEMA))
    except (OSError, ValueError, RecursionError, UnsafePath) as error:
        raise CorruptShard(f"{path} is not a shard: {str(error).rstrip('.')}.") from error
    if not isinstance(data, dict):
        raise CorruptShard(f"{path} is not a shard: its schema.json holds a {type(data).__name__}.")
    if data.get("format") != FORMAT:
        raise CorruptShard(f"{path} has shard format {data.get('format')!r}; this version of Shoal reads {FORMAT}.")
    try:
        described = (int(data["rows"]), int(data["lanes"]), str(data["run"]), str(data["env_id"]))
        info = ShardInfo(Schema.from_json(data), *described, str(data["algorithm"]), float(data["created"]))
    except (KeyError, TypeError, ValueError, OverflowError, CorruptShard) as error:
        raise CorruptShard(f"{path}/schema.json lacks or garbles a field: {error!r}.") from error
    if info.rows < 2 or info.lanes < 1:
        raise CorruptShard(f"{path}/schema.json says {info.rows} rows and {info.lanes} lanes.")
    for column in info.schema.columns:
        file, size = path / f"{column.name}.bin", column.nbytes * info.rows * info.lanes
        if not file.is_file() or file.stat().st_size != size:
            raise CorruptShard(f"{file} should have {size} bytes; the shard is damaged and cannot be used.")
    return info


def check_header(path: Path, header: Counters, info: ShardInfo) -> None:
    """Refuses counters that no writer can have written."""
    # A writer may be at work: claim moves first, so it is read before and after head. Steps are counted after head.
    steps, episodes = header[Header.STEPS], header[Header.EPISODES]
    claim_before, head, claim = header[Header.CLAIM], header[Header.HEAD], header[Header.CLAIM]
    rows = info.rows
    if head > claim or claim_before > head + rows:
        raise CorruptShard(f"{path}: head {head} lies beyond claim {claim}, or claim over {rows} rows beyond head.")
    if max(header[Header.CURSOR], header[Header.GRANT]) > header[Header.HEAD] + rows:
        raise CorruptShard(f"{path}: a queue's reader cannot have come to row {header[Header.CURSOR]} of {head}.")
    for word in Header:
        if header[word] > LARGEST_COUNT:
            name = word.name.lower()
            raise CorruptShard(f"{path}: {name} {header[word]} in header.bin is no count that a run can reach.")
    if max(steps, episodes) > head * info.lanes:
        raise CorruptShard(f"{path}: {steps} steps and {episodes} episodes cannot lie in {head} rows.")


def map_columns(path: Path, info: ShardInfo, *, writable: bool) -> dict[str, Array]:
    """Column name to [N, T, ...], as stored in the file."""
    columns = {}
    for column in info.schema.columns:
        shape = (info.lanes, info.rows, *column.shape)
        mapped = map_file(path / f"{column.name}.bin", column.nbytes * info.rows * info.lanes, writable=writable)
        columns[column.name] = np.ndarray(shape, dtype=column.dtype, buffer=mapped)
    return columns
