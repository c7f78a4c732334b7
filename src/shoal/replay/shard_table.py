"""ShardTable: where the columns of several shards lie, so that one kernel call reads them all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shoal.replay.shard import ShardReader

Int64s = npt.NDArray[np.int64]


class ShardTable:
    """Row numbers and column addresses by shard. Holds the shards, so that their memory stays mapped."""

    def __init__(self, shards: Iterable[ShardReader] = ()) -> None:
        self.shards: list[ShardReader] = []
        self.rows: Int64s = np.empty(0, np.int64)
        self.lanes: Int64s = np.empty(0, np.int64)
        self.endless: Int64s = np.empty(0, np.int64)
        """For kernels that ask where a shard ends, where the selector has seen to it already."""
        self._address: dict[str, Int64s] = {}
        for shard in shards:
            self.add(shard)

    def add(self, shard: ShardReader) -> None:
        """The shard's place is the number of those before it."""
        self.shards.append(shard)
        self._changed()

    def remove(self, place: int) -> None:
        """Those behind it move up."""
        del self.shards[place]
        self._changed()

    def _changed(self) -> None:
        self.rows = np.array([one.rows for one in self.shards], np.int64)
        self.lanes = np.array([one.lanes for one in self.shards], np.int64)
        self.endless = np.full(len(self.shards), np.iinfo(np.int64).max)
        self._address.clear()

    def __getitem__(self, column: str) -> Int64s:
        """The column's address in every shard; 0 where a shard has none of that name."""
        known = self._address.get(column)
        if known is None:
            columns = [shard.by_lane.get(column) for shard in self.shards]
            addresses = [0 if one is None else one.ctypes.data for one in columns]
            known = self._address[column] = np.array(addresses, np.int64)
        return known

    def oldest(self) -> Int64s:
        """The oldest row of every shard that is certainly whole at this moment."""
        return np.array([shard.oldest for shard in self.shards], np.int64)
