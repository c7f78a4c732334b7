"""Proportional prioritized replay (Schaul et al., https://arxiv.org/abs/1511.05952) over many shards.

One sum tree per shard, all in the reader's process: appending never touches a tree, so actors never wait for learners.
A new row gets the priority that its actor computed (Ape-X), or the largest so far where there is none.
`probabilities` are exact over all shards: leaf / sum of all roots.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from shoal.errors import ConfigError
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.starts import Change, Starts
from shoal.replay.sum_tree import SumTree
from shoal.replay.views import Span
from shoal.types import CUT, STEP, Keys, Selection

LARGEST = 1e12
"""A larger priority, infinity too, counts as this."""

_MAGNITUDES = numba.int64(numba.types.Array(numba.float32, 1, "C", readonly=True), numba.float64, numba.float64[::1])


@numba.njit(_MAGNITUDES, nogil=True, cache=True)
def _magnitudes(priorities, epsilon, out):  # type: ignore[no-untyped-def]
    """|priority| + epsilon; returns where the largest is."""
    largest = 0
    for i in range(priorities.shape[0]):
        size = abs(np.float64(priorities[i]))
        # A NaN loss must not spoil the tree: its row gets the smallest priority, and the learner reports the NaN.
        out[i] = (min(size, LARGEST) if size == size else 0.0) + epsilon
        if out[i] > out[largest]:
            largest = i
    return largest


def _draws_below(edge: float, points: npt.NDArray[np.float64], step: float) -> int:
    """How many of the stratified draws (i + points[i]) * step lie below an edge."""
    stratum = int(edge / step)
    if stratum >= len(points):
        return len(points)
    return stratum + int((stratum + points[stratum]) * step < edge)


class Prioritized(Selector):
    """P(i) = p_i / sum p, p = (|delta| + epsilon)^alpha, stratified over the batch."""

    name = "prioritized"

    def __init__(self, alpha: float = 0.6, epsilon: float = 1e-6) -> None:
        if alpha < 0 or epsilon <= 0:
            raise ConfigError(f"alpha must not be negative and epsilon positive; got alpha={alpha}, epsilon={epsilon}.")
        self._alpha, self._epsilon = alpha, epsilon
        self._shards: list[tuple[Starts, SumTree]] = []
        self._size = 0
        self._largest = 1.0  # of the leaves, that is after ^alpha

    def attach(self, shard: ShardReader, span: Span) -> None:
        period = 1 if shard.rows % span.period else span.period
        self._shards.append((Starts(shard, span), SumTree(shard.rows, shard.lanes, period)))

    def refresh(self) -> None:
        for starts, tree in self._shards:
            for change in starts.refresh():
                tree.set_rows(change.position, self._leaves_of(starts, change))
                self._size = sum(starts.count for starts, _ in self._shards)

    @property
    def size(self) -> int:
        return self._size

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        keys, points, probabilities = Keys.empty(n), rng.random(n), np.empty(n)
        roots = [tree.total for _, tree in self._shards]
        total = sum(roots)
        if len(roots) == 1:
            starts, tree = self._shards[0]
            tree.draw(points, 0, total / n, 0.0, total, starts.stop - 1, (keys.lane, keys.logical, probabilities))
            return Selection(keys, probabilities)
        last, below, start = max(index for index, root in enumerate(roots) if root > 0.0), 0.0, 0
        for index, ((starts, tree), root) in enumerate(zip(self._shards, roots, strict=True)):
            # Stratified points ascend, so each shard gets one slice of the batch.
            stop = n if index == last else _draws_below(below + root, points, total / n)
            if start < stop:
                part = slice(start, stop)
                keys.shard[part] = index
                into = (keys.lane[part], keys.logical[part], probabilities[part])
                tree.draw(points[part], start, total / n, below, total, starts.stop - 1, into)
            below, start = below + root, max(start, stop)
        return Selection(keys, probabilities)

    def update(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> int:
        """Sets leaves to (|delta| + epsilon)^alpha; skips and counts rows that were overwritten since."""
        leaves, largest = self._power(priorities)
        if len(leaves):
            self._largest = max(self._largest, float(leaves[largest]))
        dropped = 0
        for index, (starts, tree) in enumerate(self._shards):
            dropped += tree.update(index, keys, leaves, starts.first, starts.stop)
        return dropped

    def _leaves_of(self, starts: Starts, change: Change) -> npt.NDArray[np.float64]:
        """Leaves of changed rows: zero where no sample may start."""
        if not change.flags.any():  # rows struck off
            return np.zeros(len(change.flags))
        count = len(change.flags) // starts.shard.lanes
        recorded = starts.shard.columns.get("priority")
        if recorded is None:
            return np.where(change.flags == 1, self._largest, 0.0)
        if starts.span.priorities is not None:
            return self._leaves_of_sequences(starts, change, recorded)
        # The row that completes a transition carries the priority of the row that began it (see `Policy.record`).
        after = starts.span.after
        rows = np.arange(change.logical + 1, change.logical + count + after) % starts.shard.rows
        leaves = self._power(recorded[rows[after - 1 :]].reshape(-1))[0]
        cut = starts.shard.columns["boundary"][rows] == CUT
        if cut.any():
            # A CUT right after an episode's end: the row that would carry the priority was never written.
            leaves[sliding_window_view(cut, after, axis=0).any(axis=-1).reshape(-1)] = self._largest
        return np.asarray(np.where(change.flags == 1, leaves, 0.0))

    def _leaves_of_sequences(
        self, starts: Starts, change: Change, recorded: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float64]:
        """Leaves of changed rows, where a sequence's priority is made of those recorded for its steps.

        The last rows of a sequence may have theirs beyond its end, where rows need not be written yet: they are left
        out. No flagged sequence holds a CUT.
        """
        span, shard = starts.span, starts.shard
        assert span.priorities is not None
        lag, eta = span.priorities
        begins = np.flatnonzero(change.flags)
        lane, first = begins % shard.lanes, change.logical + begins // shard.lanes + span.overlap  # [S]
        steps = first + np.arange(span.stride - lag + 1)[:, None]  # [steps whose priority is within, S]
        size = recorded[(steps + lag) % shard.rows, lane]
        # NaN and infinity count as elsewhere. Rows that hold no step count as 0, in the largest and in the sum.
        size = np.minimum(np.abs(np.nan_to_num(size, nan=0.0)), np.float32(LARGEST))
        holds = shard.columns["boundary"][steps % shard.rows, lane] == STEP
        size = np.where(holds, size, 0.0)
        known = holds.sum(axis=0)
        leaves = np.zeros(len(change.flags))
        if len(size):
            priority = eta * size.max(axis=0) + (1.0 - eta) * size.sum(axis=0) / np.maximum(known, 1)
            leaves[begins] = np.where(known > 0, self._power(priority)[0], self._largest)
        else:  # n-step errors of all rows end beyond the sequence
            leaves[begins] = self._largest
        return leaves

    def _power(self, priorities: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], int]:
        """Leaves, and where the largest is."""
        leaves = np.empty(len(priorities))
        largest = _magnitudes(np.ascontiguousarray(priorities, np.float32), self._epsilon, leaves)
        # numpy's power is vectorised, three times as fast as numba's.
        return np.power(leaves, self._alpha, out=leaves), largest
