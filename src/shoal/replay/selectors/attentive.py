"""Attentive experience replay (Sun, Zhou, Li, AAAI 2020): of several candidates the ones most like where actors are.

`lambda * n` candidates are drawn; those whose states' features lie closest to the features of a state that an actor has
just visited are kept. Both are the current network's, so nothing needs to be recorded. lambda is annealed to 1, where
draws are plain and nothing is scored.

Sequences are compared as in elite_buffer_vtrace: each compared state with the reference. It has one reference, the last
state of the newest unroll; with many actors every shard gives one, and the nearest counts.
"""

from __future__ import annotations

import numpy as np

from shoal.replay.selectors.base import Selector
from shoal.replay.selectors.scored import (
    COMPARED_STEPS,
    Annealing,
    Distance,
    Features,
    Floats,
    Positions,
    Scored,
    States,
    cross_distances,
)
from shoal.replay.selectors.uniform import Uniform
from shoal.types import CUT, Keys

LOOKED_BACK = 8
"""Rows looked back from the newest for one that is not a CUT."""


class Attentive(Scored):
    """Candidates of an inner selector, the most like the newest states first."""

    name = "attentive"

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
        capacity: int | None = None,
        drawn: int = 0,
    ) -> None:
        """Args:
        features: the current network's features of observations.
        inner: what candidates are drawn from; by default everything uniformly, or the newest `capacity` sequences.
        distance: between features.
        candidates: lambda at first: candidates per draw.
        anneal: lambda reaches 1 after this many times `anneal_draws` batches.
        anneal_draws: see anneal.
        compared_steps: states of a candidate that are compared; None: all.
        capacity: see inner.
        drawn: batches drawn before, by a run that goes on.
        """
        annealing = Annealing(candidates, anneal, anneal_draws, drawn)
        super().__init__(inner or Uniform(capacity=capacity), States(features, compared_steps), annealing)
        self._distance = distance

    def _keep(self, keys: Keys, far: Floats, n: int) -> Positions:
        return np.argsort(far, kind="stable")[:n]

    def _far(self, keys: Keys, rng: np.random.Generator) -> Floats:
        """[M] how far sequences are from the nearest reference."""
        states, newest = self._states.spread(keys), self._newest(rng)
        if not len(newest.logical):  # nothing but CUTs: all are alike
            return np.zeros(len(keys.logical), np.float32)
        features = self._states.current(Keys.joined(states, newest))  # one pass of the network for all
        count = len(states.logical)
        far = cross_distances(self._states.blocks(features[:count]), features[count:], self._distance)
        return np.asarray(far.min(axis=1))

    def _newest(self, rng: np.random.Generator) -> Keys:
        """The last state of each shard, in one of its lanes."""
        found = []
        for index, shard in enumerate(self._states.table.shards):
            lane, head = int(rng.integers(shard.lanes)), shard.head
            boundary = shard.by_lane["boundary"][lane]
            for row in range(head - 1, max(shard.oldest, head - 1 - LOOKED_BACK) - 1, -1):
                if boundary[row % shard.rows] != CUT:
                    found.append((index, lane, row))
                    break
        columns = np.array(found, np.int64).reshape(-1, 3).T
        return Keys(columns[0].astype(np.int32), columns[1].astype(np.int32), columns[2])
