"""Copying rows until all of them can be used: the writer overtakes some, and other runs may hand out bad ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.errors import ReplayError
from shoal.replay.shard_table import Int64s

MAX_REDRAWS = 100


def copy_until_usable(copy: Callable[[Int64s], Int64s], places: Int64s) -> Iterator[Int64s]:
    """Copies a batch, and yields the places to draw again until none is left.

        for unusable in copy_until_usable(copy, places):
            keys.put(unusable, draw(len(unusable)))

    Args:
        copy: copies the rows of some places; returns those of the places that cannot be used.
        places: all places of the batch.

    Raises:
        ReplayError: rows are still unusable after `MAX_REDRAWS` redraws.
    """
    for _ in range(MAX_REDRAWS):
        places = copy(places)
        if not len(places):
            return
        yield places
    if left := len(copy(places)):
        raise ReplayError(
            f"The writer overtook {left} rows {MAX_REDRAWS} times while they were copied. Raise replay.capacity."
        )
