"""Several selectors over the same shards, each with its share of the batch. No row is stored twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Part(NamedTuple):
    """One selector and its share of every batch."""

    selector: Selector
    ratio: float


class Mixture:
    """Parts with ratios. A batch holds exactly `ratio * n` draws of each, in the order of the parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        total = sum(part.ratio for part in parts)
        if not parts or abs(total - 1.0) > 1e-9 or any(part.ratio <= 0 for part in parts):
            raise ConfigError(f"The ratios of a mixture must be positive and sum to 1; they sum to {total:g}.")
        self.parts = tuple(parts)

    def shares(self, n: int) -> list[int]:
        """How many of n draws each part gets; refuses a batch that does not divide, naming the nearest that do."""
        if len(self.parts) == 1:
            return [n]
        exact = [part.ratio * n for part in self.parts]
        shares = [round(share) for share in exact]
        if any(abs(share - whole) > 1e-6 for share, whole in zip(exact, shares, strict=True)):
            fits = [m for m in range(max(1, n - 256), n + 257) if self._divides(m)]
            nearest = sorted(sorted(fits, key=lambda m: abs(m - n))[:2])
            ratios = ", ".join(f"{part.ratio:g}" for part in self.parts)
            raise ConfigError(f"A batch of {n} does not divide by the ratios {ratios}; the nearest that do: {nearest}.")
        return shares

    def _divides(self, n: int) -> bool:
        return all(abs(part.ratio * n - round(part.ratio * n)) <= 1e-6 for part in self.parts)

    def part_of(self, n: int) -> npt.NDArray[np.int32]:
        """Which part each of n draws comes from."""
        return np.repeat(np.arange(len(self.parts), dtype=np.int32), self.shares(n))

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
        for part in self.parts:
            part.selector.attach(shard, span)

    def refresh(self) -> None:
        """See `Selector.refresh`."""
        for part in self.parts:
            part.selector.refresh()

    @property
    def size(self) -> int:
        """Rows the largest part could draw."""
        return max(part.selector.size for part in self.parts)

    def ready(self, n: int) -> bool:
        """Whether every part is."""
        return all(part.selector.ready(share) for part, share in zip(self.parts, self.shares(n), strict=True))

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        """See `Selector.select`."""
        if len(self.parts) == 1:
            return self.parts[0].selector.select(n, rng)
        drawn = [part.selector.select(share, rng) for part, share in zip(self.parts, self.shares(n), strict=True)]
        keys = Keys(*(np.concatenate(columns) for columns in zip(*(one.keys for one in drawn), strict=True)))
        return Selection(keys, np.concatenate([one.probabilities for one in drawn]))

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Every prioritized part hears of every row, whichever part drew it."""
        return max(part.selector.update(keys, priorities) for part in self.parts)
