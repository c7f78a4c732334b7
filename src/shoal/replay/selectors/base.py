"""Selector: which rows to learn from.

A selector answers `select(n)` over many shards with keys and exact probabilities. It runs in the reader's process and
finds new rows by comparing heads, so it costs the writers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.replay.shard import ShardReader
from shoal.replay.shard_files import ring_margin
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Selector(Protocol):
    """Which rows to learn from. Selectors inherit it, with the answers that most of them share."""

    name: str
    """As in the settings and in metrics."""
    fresh: bool = False
    """Whether it is a queue: its draws are new experience, not replayed."""

    def attach(self, shard: ShardReader, span: Span) -> None:
        """Adds a shard; keys name it by the order of attaching."""

    def refresh(self) -> None:
        """Reads what the writers did since the last call."""

    @property
    def size(self) -> int:
        """How many rows (or sequences, for selectors of sequences) could be drawn now."""

    def ready(self, n: int) -> bool:
        """Whether `select(n)` can be answered now. One row is enough where draws are with replacement."""
        return self.size > 0

    def most(self, n: int) -> int:
        """The most draws, up to n, that are possible now."""
        return n if self.ready(n) else 0

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """Draws n starting rows into new arrays."""

    def redraw(self, n: int, rng: np.random.Generator) -> Selection | None:
        """Draws n rows in place of some that could not be used; None when there is nothing to draw."""
        return self.select(n, rng) if self.ready(n) else None

    def release(self) -> None:
        """Called when the selected rows were copied: writers that wait for this selector may continue."""
        return None

    def spare(self) -> None:
        """Called when other parts of a mixture lack rows: writers that wait for this selector may continue."""
        return None

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Sets new priorities; returns how many were too late because their rows are overwritten."""
        return 0

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        return {}


def split_by_count(counts: list[int], n: int, rng: np.random.Generator) -> list[int]:
    """How many of n uniform draws fall into each shard."""
    if len(counts) == 1:
        return [n]
    total = sum(counts)
    return [int(k) for k in rng.multinomial(n, [count / total for count in counts])]


def safe_from(shards: Iterable[ShardReader], before: int) -> npt.NDArray[np.int64]:
    """The first row of each shard that its writer does not reach while a batch is copied.

    `before` is how many rows before it are read too, for stacked frames.
    """
    return np.array([shard.oldest_beyond(before + ring_margin(shard.rows)) for shard in shards], np.int64)
