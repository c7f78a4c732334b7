"""Back-pressure: a writer that waits for a queue's reader.

The reader writes into a shard's header how far it has read (`cursor`) and up to which row the writer may go in any case
(`grant`). The writer asks before every row; there are no messages. A shard without a reader is full when its share of
the queue is.

The queue's capacity is divided evenly among the shards. With a slow or dead writer, or a stream that a restart has cut,
the reader could lack a batch while all others wait. A reader that lacks rows therefore grants them to every writer, and
the fastest fill the gap. A grant ends before the ring does, so a waiting writer never overwrites an unread row.
"""

from __future__ import annotations

from shoal.errors import ConfigError
from shoal.replay.shard import ShardWriter
from shoal.replay.shard_files import Header

_HEAD, _CURSOR, _GRANT = int(Header.HEAD), int(Header.CURSOR), int(Header.GRANT)
"""As plain numbers: asked before every row."""
SPARE_ROWS = 2
"""Rows of the ring that no grant touches: one that is claimed, one that a writer previews."""


def queue_rows(capacity: int, steps: int, lanes_total: int, before: int) -> int:
    """How many rows a shard may be ahead of its reader: its share of the capacity, at least one stretch.

    Args:
        capacity: unread sequences the queue holds, over all shards and lanes; not less than one batch takes of it.
        steps: from one sequence to the next (`span.stride`).
        lanes_total: lanes of all shards.
        before: rows that a view looks back, which the reader still needs (`span.before`), and those that only warm up.
    """
    stretches = max(1, -(-capacity // lanes_total))
    # The last stretch needs a row to bootstrap from; one more, so that the row that completes it is never waited for.
    return before + stretches * steps + 2


class BackPressure:
    """Says whether a shard's writer must wait for the queue's reader."""

    def __init__(self, writer: ShardWriter, limit_rows: int) -> None:
        """Args:
        writer: the shard's writer.
        limit_rows: rows it may be ahead of the reader; see `queue_rows`.
        """
        if limit_rows + SPARE_ROWS > writer.info.rows:
            raise ConfigError(
                f"A full queue takes {limit_rows} rows of {writer.path}, which has {writer.info.rows}. "
                "Raise replay.capacity, or lower the queue's own capacity."
            )
        self._words, self._limit = writer.header.words, limit_rows

    @property
    def full(self) -> bool:
        """Whether the next row must wait."""
        words = self._words
        return words[_HEAD] >= max(words[_CURSOR] + self._limit, words[_GRANT])
