"""Opens another run's shards. Any program may have written them: everything is checked before it is used.

One thing cannot be prevented: a peer that truncates a file between two checks kills the process that reads it at that
moment (SIGBUS). A run never does that to its own files.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.errors import CorruptShard, ReplayError, WrongSchema
from shoal.replay import Schema, ShardReader
from shoal.replay.counters import LARGEST_COUNT
from shoal.replay.shard_files import Header, read_info
from shoal.sharing.description import one_line
from shoal.sharing.shared_buffer import UNREADABLE

READ = ("obs", "action", "reward", "terminated", "truncated", "boundary")


def open_peer(paths: Sequence[Path], schema: Schema | None = None, taken: Collection[Path] = ()) -> list[ShardReader]:
    """A peer's shards.

    Args:
        paths: where its entry says they are.
        schema: of this run; the columns that are read must be alike. None: nothing is compared.
        taken: shards that are read already: no rows count twice.

    Raises:
        ReplayError: with the reason why this peer is not read.
    """
    try:
        found, known = [path.resolve() for path in paths], {path.resolve() for path in taken}
        if len(set(found) - known) < len(paths):
            raise CorruptShard("its shards are another run's, or named twice")
        return [_open(path, schema) for path in found]
    except UNREADABLE as error:
        why = str(error) if isinstance(error, ReplayError) else f"its shard cannot be read: {error!r}"
        raise CorruptShard(one_line(why.removesuffix("."))) from error


def _open(path: Path, schema: Schema | None) -> ShardReader:
    theirs = read_info(path).schema
    # Checked before mapping: a column of objects would be read as pointers, and a name can be a path.
    for column in theirs.columns:
        if np.dtype(column.dtype).kind not in "biuf" or not column.name.isidentifier():
            raise WrongSchema(f"its column {column.name!r} of {column.dtype} is none that a run writes")
    if schema is not None and (difference := _difference(schema, theirs)):
        raise WrongSchema(difference)
    shard = ShardReader(path)
    if shard.info.schema != theirs:
        raise WrongSchema("its schema.json changed while it was read")
    if fault := find_fault(shard):
        raise CorruptShard(fault)
    return shard


def _difference(mine: Schema, theirs: Schema) -> str:
    if "next_obs" in theirs and replace(theirs["next_obs"], name="obs") != mine["obs"]:
        return f"next_obs is {theirs['next_obs']} there and {mine['obs']} here"
    return mine.difference(theirs, READ)


def find_fault(shard: ShardReader) -> str:
    """What is wrong now with files that were fine when they were opened; empty if nothing is."""
    header = shard.header
    mapped: dict[str, tuple[object, int]] = {"header": (header.words.obj, header.words.nbytes)}
    mapped |= {name: (column.base, column.nbytes) for name, column in shard.by_lane.items()}
    for name, (file, nbytes) in mapped.items():
        if isinstance(file, mmap.mmap) and file.size() < nbytes:
            return f"its {name}.bin was cut to {file.size()} of {nbytes} bytes"
    # The writer may be active: claim moves first, so it is read before and after head.
    before, head, claim = header[Header.CLAIM], header[Header.HEAD], header[Header.CLAIM]
    if not 0 <= head <= claim <= LARGEST_COUNT or before > head + shard.rows:
        return f"its header is damaged (head {head}, claim {claim}, {shard.rows} rows)"
    return ""
