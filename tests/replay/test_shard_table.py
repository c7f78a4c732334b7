"""Where columns of several shards lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.replay.shard_table import ShardTable


def test_shards_come_and_go(shards: Any, blank: Any) -> None:
    pairs = [shards.small(rows, lanes) for rows, lanes in ((5, 1), (7, 2), (9, 3))]
    table = ShardTable(reader for _, reader in pairs)
    assert (table.rows.tolist(), table.lanes.tolist()) == ([5, 7, 9], [1, 2, 3])
    before = table["obs"].tolist()
    assert before == [reader.by_lane["obs"].ctypes.data for _, reader in pairs]
    table.remove(1)
    assert (table.rows.tolist(), table.lanes.tolist(), table["obs"].tolist()) == (
        [5, 9],
        [1, 3],
        [before[0], before[2]],
    )
    table.add(pairs[1][1])
    assert table.rows.tolist() == [5, 9, 7] and table["obs"].tolist() == [before[0], before[2], before[1]]
    assert len(table.endless) == 3 and (table.endless > 10**18).all()
    assert [reader.rows for reader in table.shards] == [5, 9, 7]


def test_the_oldest_row_moves_with_the_writer(shards: Any, blank: Any) -> None:
    (writer, reader), (_, still) = shards.small(5), shards.small(5)
    table = ShardTable([reader, still])
    assert table.oldest().tolist() == [0, 0]
    writer.append_chunk(blank(reader.info, 5))
    assert table.oldest().tolist() == [0, 0]
    writer.append_chunk(blank(reader.info, 2))
    assert table.oldest().tolist() == [2, 0]
    writer.claim_row()
    assert table.oldest().tolist() == [3, 0], "claimed rows are not whole any more"


def test_an_empty_table_has_empty_columns() -> None:
    table = ShardTable()
    assert len(table["obs"]) == len(table.rows) == len(table.lanes) == len(table.oldest()) == 0
    assert table["obs"].dtype == np.int64
