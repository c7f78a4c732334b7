"""Several selectors over the same shards, each with its share of the batch. No row is stored twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.shares import check_ratios, divides, shares
from shoal.replay.views import Span
from shoal.types import Keys, Selection


class Part(NamedTuple):
    """One selector and its share of every batch."""

    selector: Selector
    ratio: float


class Layout(NamedTuple):
    """How a batch of n draws is divided among the parts."""

    draws: list[tuple[Selector, int]]
    """Of each part its selector, and how many."""
    part: npt.NDArray[np.int32]
    """[n] the part of each draw."""
    fresh: npt.NDArray[np.bool_]
    """[n] whether each draw comes from a queue."""


class Mixture(Selector):
    """Parts with ratios. A batch holds exactly `ratio * n` draws of each, in the order of the parts."""

    name = "mixture"

    def __init__(self, parts: Sequence[Part]) -> None:
        self._ratios = [part.ratio for part in parts]
        check_ratios(self._ratios)
        if sum(part.selector.fresh for part in parts) > 1:
            raise ConfigError("A mixture can have one queue (fifo, circular): a shard keeps one reader's place.")
        self.parts = tuple(parts)
        self._layouts: dict[int, Layout] = {}
        names = [part.selector.name for part in parts]
        self._prefixes = [f"{name}-{place}" if names.count(name) > 1 else name for place, name in enumerate(names)]

    def layout(self, n: int) -> Layout:
        """How n draws are divided; refuses a batch that does not divide by the ratios, naming the nearest that do."""
        known = self._layouts.get(n)
        if known is None:
            counts = shares(self._ratios, n)
            part = np.repeat(np.arange(len(self.parts), dtype=np.int32), counts)
            fresh = np.array([part.selector.fresh for part in self.parts], np.bool_)
            selectors = [part.selector for part in self.parts]
            known = self._layouts[n] = Layout(list(zip(selectors, counts, strict=True)), part, fresh[part])
        return known

    def attach(self, shard: ShardReader, span: Span) -> None:
        for part in self.parts:
            part.selector.attach(shard, span)

    def refresh(self) -> None:
        for part in self.parts:
            part.selector.refresh()

    @property
    def size(self) -> int:
        """The size of the largest part."""
        return max([part.selector.size for part in self.parts])

    def sizes(self, n: int) -> int | npt.NDArray[np.int64]:
        """[n] the size of each draw's part, or one number where there is one part. 1 for a queue, whose next draw is
        certain.
        """
        if len(self.parts) == 1:
            return self.parts[0].selector.size
        each = [1 if part.selector.fresh else part.selector.size for part in self.parts]
        return np.array(each, np.int64)[self.layout(n).part]

    def ready(self, n: int) -> bool:
        """Whether every part is. Asks all of them, so that a queue learns how much is missing."""
        answers = [selector.ready(share) for selector, share in self.layout(n).draws]
        if all(answers):
            return True
        for part, answer in zip(self.parts, answers, strict=True):
            if answer:
                part.selector.spare()
        return False

    def fitting(self, least: int, n: int) -> int:
        """The largest batch that is possible now: n, or a smaller one that divides by the ratios, at least `least`
        (which must divide too); else 0.
        """
        if self.ready(n):
            return n
        if least == n:
            return 0
        bound = n - 1
        for (selector, share), ratio in zip(self.layout(n).draws, self._ratios, strict=True):
            most = selector.most(share)
            if most < share:
                bound = min(bound, int(most / ratio + 1e-6))
        for size in range(bound, least - 1, -1):
            if divides(self._ratios, size) and self.ready(size):
                return size
        self.ready(least)  # so that a queue asks its writers for no more than that
        return 0

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        if len(self.parts) == 1:
            return self.parts[0].selector.select(n, rng)
        drawn = (selector.select(share, rng) for selector, share in self.layout(n).draws)
        keys, probabilities = zip(*drawn, strict=True)
        return Selection(Keys.joined(*keys), np.concatenate(probabilities))

    def release(self) -> None:
        for part in self.parts:
            part.selector.release()

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Every part gets the priorities of all rows, whichever part drew them."""
        return max([part.selector.update(keys, priorities) for part in self.parts])

    def metrics(self) -> dict[str, float]:
        """The parts' metrics, as `elite/lambda`; parts of one name carry their index too, as `elite-1/lambda`."""
        named = zip(self._prefixes, self.parts, strict=True)
        return {f"{prefix}/{name}": value for prefix, part in named for name, value in part.selector.metrics().items()}
