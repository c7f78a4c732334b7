"""Attentive experience replay (Sun, Zhou, Li, AAAI 2020): keeps the candidates most like the actors' current states.

`lambda * n` candidates are drawn. Those are kept whose states' features are closest to the features of a state that an
actor has just visited. Both are the current network's features, so nothing needs to be recorded. lambda is annealed to
1, where nothing is scored.

Sequences are compared as in elite_buffer_vtrace: each compared state with the reference. There the reference is the
last state of the newest unroll; here every shard gives one, and the nearest counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.replay.selectors.scored import Features, Floats, Positions, Scored, cross_distances
from shoal.replay.selectors.uniform import Uniform
from shoal.types import CUT, Keys

LOOKED_BACK = 8
"""How many of the newest rows are searched for one that is not a CUT."""


class Attentive(Scored):
    """Uniform candidates; keeps those most like the newest states."""

    name = "attentive"

    def __init__(self, features: Features, *, capacity: int | None = None, **scoring: Any) -> None:
        """Args:
        features: the current network's features of observations.
        capacity: newest sequences that candidates are drawn from; None: all that are stored.
        **scoring: see `Scored`.
        """
        super().__init__(features, Uniform(capacity=capacity), **scoring)

    def _keep(self, keys: Keys, far: Floats, n: int) -> Positions:
        return np.argsort(far, kind="stable")[:n]

    def _far(self, keys: Keys, rng: np.random.Generator) -> Floats:
        """[M] distances to the nearest reference."""
        states, newest = self._states.spread(keys), self._newest(rng)
        if not len(newest.logical):  # only CUTs
            return np.zeros(len(keys.logical), np.float32)
        features = self._states.current(Keys.joined(states, newest))  # one pass of the network for all
        count = len(states.logical)
        far = cross_distances(self._states.blocks(features[:count]), features[count:], self._distance)
        return np.asarray(far.min(axis=1))

    def _newest(self, rng: np.random.Generator) -> Keys:
        """The last state of each shard, in a random lane."""
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
