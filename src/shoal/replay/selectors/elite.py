"""Elite sampling: keeps the candidates that are the least off-policy.

From elite_buffer_vtrace: each row records the acting network's features of its state. Their distance from the current
network's features of the same state says how off-policy the row has become. `lambda * n` candidates are drawn and the
best n kept; lambda is annealed to 1, where nothing is scored.

Deviations: `cosine` is a distance (the original preferred the least alike); a few states per candidate are compared
(see `scored`); candidates drawn twice count once where strategies 2 to 4 have enough others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.held import HeldSequences
from shoal.replay.selectors.scored import Features, Floats, Positions, Scored, distances
from shoal.replay.selectors.uniform import Uniform
from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import Keys


class Elite(Scored):
    """Uniform candidates, or those that `capacity` holds; keeps the least off-policy ones."""

    name = "elite"

    def __init__(
        self,
        features: Features,
        *,
        strategy: int = 3,
        capacity: int | None = None,
        insertion: bool = False,
        insertion_sample: int = 20,
        **scoring: Any,
    ) -> None:
        """Args:
        features: the current network's features of observations.
        strategy: 1: the closest; 2: evenly over all distances; 3: the least sampled, of those the closest; 4: evenly
            over all distances, the least sampled of each section.
        capacity: sequences that candidates are drawn from; None: all that are stored.
        insertion: whether a new sequence replaces the furthest of `insertion_sample`, not the oldest.
        insertion_sample: see insertion.
        **scoring: see `Scored`.
        """
        if strategy not in (1, 2, 3, 4):
            raise ConfigError(f"There is no elite strategy {strategy}: use 1, 2, 3 or 4.")
        if insertion and capacity is None:
            raise ConfigError("Elite insertion needs a capacity.")
        judge = self._off_policy if insertion else None
        inner = Uniform() if capacity is None else HeldSequences(capacity, judge, insertion_sample)
        super().__init__(features, inner, recorded=True, **scoring)
        self._strategy = strategy
        self._sampled = np.zeros(0, np.uint32)  # how often a row's sequence was kept: shards, rows and lanes in a row
        self._begin = np.zeros(0, np.int64)  # of each shard
        self._heads: list[int] = []

    def attach(self, shard: ShardReader, span: Span) -> None:
        super().attach(shard, span)
        self._begin = np.append(self._begin, len(self._sampled))
        self._sampled = np.append(self._sampled, np.zeros(shard.rows * shard.lanes, np.uint32))
        self._heads.append(shard.head)

    def refresh(self) -> None:
        for index, shard in enumerate(self._states.table.shards):
            before, head = self._heads[index], shard.head
            if head > before:  # rewritten rows were never sampled
                mine = self._sampled[self._begin[index] :][: shard.rows * shard.lanes].reshape(shard.rows, -1)
                mine[np.arange(max(before, head - shard.rows), head) % shard.rows] = 0
                self._heads[index] = head
        super().refresh()

    def _far(self, keys: Keys, rng: np.random.Generator) -> Floats:
        return self._off_policy(keys)

    def _keep(self, keys: Keys, far: Floats, n: int) -> Positions:
        table = self._states.table
        row = keys.logical % table.rows[keys.shard]
        places: Positions = np.asarray(self._begin[keys.shard] + row * table.lanes[keys.shard] + keys.lane, np.int64)
        kept = pick(self._strategy, places, far, self._sampled[places], n)
        np.add.at(self._sampled, places[kept], 1)
        return kept

    def _off_policy(self, keys: Keys) -> Floats:
        """[M] distances between the recorded and the current features of sequences."""
        states = self._states.spread(keys)
        current, recorded = self._states.current(states), self._states.recorded(states)
        return distances(self._states.blocks(current), self._states.blocks(recorded), self._distance)


def pick(strategy: int, names: Positions, far: Floats, sampled: npt.NDArray[np.uint32], n: int) -> Positions:
    """[n] the indices of the candidates to keep. Equal names are one sequence that was drawn more than once."""
    order = np.argsort(far, kind="stable")
    if strategy == 1:  # drawn twice, kept twice
        return order[:n]
    once = order[np.sort(np.unique(names[order], return_index=True)[1])]
    order = once if len(once) >= n else order
    if strategy == 2:
        return order[np.arange(n) * len(order) // n]
    if strategy == 3:
        return order[np.argsort(sampled[order], kind="stable")[:n]]
    stretch = np.arange(len(order)) * n // len(order)  # n sections of neighbouring distances
    best = np.lexsort((np.arange(len(order)), sampled[order], stretch))
    return order[best[np.searchsorted(stretch[best], np.arange(n))]]
