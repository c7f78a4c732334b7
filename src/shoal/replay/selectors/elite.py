"""Elite sampling: of several candidates the ones that the present policy would still take for its own.

From elite_buffer_vtrace: each row carries the feature that the acting network saw; how far the current network's
feature of the same state lies from it says how off-policy the row has become. `lambda * n` candidates are drawn and the
best n kept; lambda is annealed to 1, where draws are plain and nothing is scored.

Deviations: `cosine` is a distance (the original preferred the least alike); a few states per candidate are compared
(see `scored`); candidates drawn twice count once where strategies 2 to 4 have enough others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.selectors.held import HeldSequences
from shoal.replay.selectors.scored import (
    COMPARED_STEPS,
    Annealing,
    Distance,
    Features,
    Floats,
    Positions,
    Scored,
    States,
    distances,
)
from shoal.replay.selectors.uniform import Uniform
from shoal.replay.shard import ShardReader
from shoal.replay.views import Span
from shoal.types import Keys


class Elite(Scored):
    """Candidates of an inner selector, the least off-policy first."""

    name = "elite"

    def __init__(
        self,
        features: Features,
        *,
        inner: Selector | None = None,
        distance: Distance = "l2",
        candidates: float = 6.0,
        anneal: float = 2.0,
        anneal_draws: int = 10_000,
        compared_steps: int | None = COMPARED_STEPS,
        strategy: int = 3,
        capacity: int | None = None,
        insertion: bool = False,
        insertion_sample: int = 20,
        drawn: int = 0,
    ) -> None:
        """Args:
        features: the current network's features of observations.
        inner: what candidates are drawn from; by default everything uniformly, or what `capacity` holds.
        distance: between recorded and current features.
        candidates: lambda at first: candidates per draw.
        anneal: lambda reaches 1 after this many times `anneal_draws` batches.
        anneal_draws: see anneal.
        compared_steps: states of a candidate that are compared; None: all.
        strategy: 1: the closest; 2: evenly over all distances; 3: the least sampled, the closest of those; 4: evenly
            over all distances, the least sampled of each stretch.
        capacity: sequences that candidates are drawn from; None: all that are stored.
        insertion: whether the furthest of `insertion_sample` sequences leaves for a new one, not the oldest.
        insertion_sample: see insertion.
        drawn: batches drawn before, by a run that goes on.
        """
        if strategy not in (1, 2, 3, 4):
            raise ConfigError(f"There is no elite strategy {strategy}: use 1, 2, 3 or 4.")
        if (inner is not None and capacity is not None) or (insertion and capacity is None):
            raise ConfigError("Elite insertion needs a capacity, and a capacity leaves no choice of an inner selector.")
        if capacity is not None:
            inner = HeldSequences(capacity, self._off_policy if insertion else None, insertion_sample)
        states = States(features, compared_steps, recorded=True)
        super().__init__(inner or Uniform(), states, Annealing(candidates, anneal, anneal_draws, drawn))
        self._distance, self._strategy = distance, strategy
        self._sampled = np.zeros(0, np.uint32)  # how often a row's sequence was kept: shards, rows and lanes in a row
        self._begin, self._rows, self._lanes = (np.zeros(0, np.int64) for _ in range(3))  # of each shard
        self._heads: list[int] = []

    def attach(self, shard: ShardReader, span: Span) -> None:
        """See `Selector.attach`."""
        super().attach(shard, span)
        self._begin = np.append(self._begin, len(self._sampled))
        self._rows, self._lanes = np.append(self._rows, shard.rows), np.append(self._lanes, shard.lanes)
        self._sampled = np.append(self._sampled, np.zeros(shard.rows * shard.lanes, np.uint32))
        self._heads.append(shard.head)

    def refresh(self) -> None:
        """See `Selector.refresh`."""
        for index, shard in enumerate(self._states.table.shards):
            before, head = self._heads[index], shard.head
            if head > before:  # a row written anew was never sampled
                mine = self._sampled[self._begin[index] :][: shard.rows * shard.lanes].reshape(shard.rows, -1)
                mine[np.arange(max(before, head - shard.rows), head) % shard.rows] = 0
                self._heads[index] = head
        super().refresh()

    def _far(self, keys: Keys, rng: np.random.Generator) -> Floats:
        return self._off_policy(keys)

    def _keep(self, keys: Keys, far: Floats, n: int) -> Positions:
        row = keys.logical % self._rows[keys.shard]
        places: Positions = np.asarray(self._begin[keys.shard] + row * self._lanes[keys.shard] + keys.lane, np.int64)
        kept = pick(self._strategy, places, far, self._sampled[places], n)
        np.add.at(self._sampled, places[kept], 1)
        return kept

    def _off_policy(self, keys: Keys) -> Floats:
        """[M] how far sequences are from what the current network makes of them."""
        states = self._states.spread(keys)
        current, recorded = self._states.current(states), self._states.recorded(states)
        return distances(self._states.blocks(current), self._states.blocks(recorded), self._distance)


def pick(strategy: int, names: Positions, far: Floats, sampled: npt.NDArray[np.uint32], n: int) -> Positions:
    """Which n of the candidates are kept; a name stands for a sequence, drawn once or more often."""
    order = np.argsort(far, kind="stable")
    if strategy == 1:  # drawn twice, kept twice
        return order[:n]
    once = order[np.sort(np.unique(names[order], return_index=True)[1])]
    order = once if len(once) >= n else order
    if strategy == 2:
        return order[np.arange(n) * len(order) // n]
    if strategy == 3:
        return order[np.argsort(sampled[order], kind="stable")[:n]]
    stretch = np.arange(len(order)) * n // len(order)  # n of them, each of neighbours
    best = np.lexsort((np.arange(len(order)), sampled[order], stretch))
    return order[best[np.searchsorted(stretch[best], np.arange(n))]]
