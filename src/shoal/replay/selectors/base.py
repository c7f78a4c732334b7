"""Selector: which rows.

A selector answers `select(n)` over many shards with keys and exact probabilities. It lives in the reader's process and
takes in new rows by comparing heads: writing a row costs a writer nothing for it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.replay.shard import ShardReader
from shoal.replay.starts import Starts
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Selector(Protocol):
    """Which rows to learn from. Selectors inherit it for what most of them need not say."""

    name: str
    """As in the settings; metrics carry it."""
    fresh: bool = False
    """Whether it is a queue: its draws are new experience, not replayed."""

    def attach(self, shard: ShardReader, span: Span) -> None:
        """Adds a shard; keys name it by the order of attaching."""

    def refresh(self) -> None:
        """Takes in what the writers did since the last call."""

    @property
    def size(self) -> int:
        """Rows that could be drawn now."""

    def ready(self, n: int) -> bool:
        """Whether `select(n)` can be answered now."""

    def most(self, n: int) -> int:
        """The most draws, up to n, that can be had now."""
        return n if self.ready(n) else 0

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """Draws n starting rows, in arrays that are the caller's to keep."""

    def redraw(self, n: int, rng: np.random.Generator) -> Selection | None:
        """Draws in place of n rows that a writer reached while they were copied; None when there is nothing to draw."""
        return self.select(n, rng) if self.ready(n) else None

    def release(self) -> None:
        """Hears that what was selected has been copied: writers that wait for it may go on."""
        return None

    def spare(self) -> None:
        """Hears that it has enough and other parts of a mixture have not: writers that wait for it may go on."""
        return None

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Takes new priorities; returns how many came too late, their rows being gone."""
        return 0

    def metrics(self) -> dict[str, float]:
        """Numbers worth logging."""
        return {}


def split_by_count(counts: list[int], n: int, rng: np.random.Generator) -> list[int]:
    """How many of n uniform draws fall into each shard."""
    if len(counts) == 1:
        return [n]
    total = sum(counts)
    return [int(k) for k in rng.multinomial(n, [count / total for count in counts])]


def attach_starts(starts: list[Starts], shard: ShardReader, span: Span, newest: float = 1.0) -> Starts:
    """Adds a shard's starts to a selector's list."""
    added = Starts(shard, span, newest=newest)
    starts.append(added)
    return added
