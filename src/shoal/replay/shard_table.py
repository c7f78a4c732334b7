"""ShardTable: the addresses of the columns of several shards, so that one kernel call reads them all."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from shoal.replay.gather import any_below
from shoal.replay.shard import ShardReader
from shoal.types import Keys

Int64s = npt.NDArray[np.int64]


class ShardTable:
    """Ring lengths, lanes and column addresses by shard. Keeps the shards, so that their memory stays mapped."""

    def __init__(self, shards: Iterable[ShardReader] = ()) -> None:
        self.shards: list[ShardReader] = []
        self.rows: Int64s = np.empty(0, np.int64)
        self.lanes: Int64s = np.empty(0, np.int64)
        self.endless: Int64s = np.empty(0, np.int64)
        """No limit, for kernels that take the row where each shard ends, when the selector has checked that already."""
        self._address: dict[str, Int64s] = {}
        self._blocks: dict[tuple[str, ...], Int64s] = {}
        for shard in shards:
            self.add(shard)

    def add(self, shard: ShardReader) -> None:
        """Appends a shard: its index is the number of shards before it."""
        self.shards.append(shard)
        self._changed()

    def remove(self, place: int) -> None:
        """Removes a shard; the indices of those after it fall by one."""
        del self.shards[place]
        self._changed()

    def _changed(self) -> None:
        self.rows = np.array([one.rows for one in self.shards], np.int64)
        self.lanes = np.array([one.lanes for one in self.shards], np.int64)
        self.endless = np.full(len(self.shards), np.iinfo(np.int64).max)
        self._address.clear()
        self._blocks.clear()

    def __getitem__(self, column: str) -> Int64s:
        """The column's address in every shard; 0 where a shard has none of that name."""
        known = self._address.get(column)
        if known is None:
            columns = [shard.by_lane.get(column) for shard in self.shards]
            addresses = [0 if one is None else one.ctypes.data for one in columns]
            known = self._address[column] = np.array(addresses, np.int64)
        return known

    def block(self, columns: tuple[str, ...]) -> Int64s:
        """[column, shard] the addresses of several columns."""
        known = self._blocks.get(columns)
        if known is None:
            known = self._blocks[columns] = np.array([self[name] for name in columns])
        return known

    def oldest(self) -> Int64s:
        """The oldest row of every shard that is certainly whole at this moment."""
        return np.array([shard.oldest for shard in self.shards], np.int64)

    def torn(self, keys: Keys, places: Int64s, before: int = 0) -> Int64s:
        """Those of the places whose rows the writer may have changed while they were copied. Ask after copying.

        Args:
            keys: the rows that were copied, one per place.
            places: where in the batch.
            before: rows read before each, for stacked frames.
        """
        whole = [shard.oldest_beyond(before) for shard in self.shards]
        if not len(places) or not any_below(keys.logical, max(whole)):  # nearly always
            return places[:0]
        return places[keys.logical < np.array(whole)[keys.shard]]
