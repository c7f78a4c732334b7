"""What elite and attentive share: candidates of another selector, the current network's features of their states,
distances, and the annealing.

Scoring happens where batches are drawn, in the prefetching thread. Only a few states of each candidate are compared,
evenly spaced from the first on: with lambda = 6 candidates per draw, comparing all 20 states of a sequence takes six
forward passes of the network per update, comparing three takes less than one. The original compares all, as
`compared_steps=None` does.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError, WrongSchema
from shoal.replay.gather import copy_stretches
from shoal.replay.selectors.base import Selector
from shoal.replay.shard import ShardReader
from shoal.replay.shard_table import ShardTable
from shoal.replay.views import Span
from shoal.types import Array, Keys, Selection

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
Features = Callable[[Array], Array]
"""Observations [M, *obs_shape] to the current network's features of them, [M, F]."""
Distance = Literal["l2", "cosine", "kl"]
FEATURE = "feature"
"""The column in which a policy records the features it acted on."""
COMPARED_STEPS = 3
"""States of a sequence that are compared by default."""
TINY = 1e-12


class Annealing:
    """lambda, the number of candidates per draw: falls linearly from `first` to 1."""

    def __init__(self, first: float, anneal: float, draws: int, done: int = 0) -> None:
        """Args:
        first: lambda at the beginning.
        anneal: lambda reaches 1 after `anneal * draws` batches.
        draws: see anneal.
        done: batches drawn before, for a resumed run.
        """
        if first < 1 or anneal <= 0 or draws < 1:
            raise ConfigError(
                f"candidates and anneal_draws must be at least 1, anneal positive; got {first}, {draws} and {anneal}."
            )
        self._first, self._draws, self._done = first, anneal * draws, done

    @property
    def now(self) -> float:
        """lambda now."""
        return max(1.0, self._first - (self._first - 1) * self._done / self._draws)

    def candidates(self, n: int) -> int:
        """Counts one batch; returns how many candidates to draw for n draws, at least n."""
        self._done += 1
        return max(n, int(self.now * n + 1e-6))


class States:
    """The compared states of sequences: their current features, and those recorded when they were played."""

    def __init__(self, features: Features, compared_steps: int | None, *, recorded: bool = False) -> None:
        """Args:
        features: the current network.
        compared_steps: states of a sequence that are compared; None: all.
        recorded: whether shards must have the column of recorded features.
        """
        self._features, self._compared, self._recorded = features, compared_steps, recorded
        self.table = ShardTable()
        self._arrays: dict[str, Array] = {}
        self._offsets = np.zeros(1, np.int64)

    def attach(self, shard: ShardReader, span: Span) -> None:
        schema = shard.info.schema
        if self._recorded and FEATURE not in schema:
            raise WrongSchema(
                f"{shard.path} has no column {FEATURE!r}, which this selector compares with: use an algorithm that "
                "records features (impala, impact), or another selector."
            )
        steps = span.after if span.crosses_episodes else 1
        count = min(steps, self._compared or steps)
        self._offsets = np.arange(count) * steps // count  # evenly spaced, from the first on
        self.table.add(shard)

    def spread(self, keys: Keys) -> Keys:
        """The compared states of sequences, [M * C]: those of the first, of the second, …"""
        count = len(self._offsets)
        logical = (keys.logical[:, None] + self._offsets).reshape(-1)
        return Keys(np.repeat(keys.shard, count), np.repeat(keys.lane, count), logical)

    def current(self, states: Keys) -> Floats:
        """[M, F] the current network's features of states."""
        schema = self.table.shards[0].info.schema
        obs = self._gather("obs", states, schema.frame_stack)
        return np.asarray(self._features(obs), np.float32).reshape(len(obs), -1)

    def recorded(self, states: Keys) -> Floats:
        """[M, F] the features that the policy recorded when it acted."""
        return self._gather(FEATURE, states, 1).reshape(len(states.logical), -1).astype(np.float32)

    def blocks(self, features: Floats) -> Floats:
        """[M, C, F] features by sequence."""
        return features.reshape(-1, len(self._offsets), features.shape[-1])

    def _gather(self, name: str, states: Keys, stack: int) -> Array:
        """A column of states, in an array that the next call overwrites."""
        column, count = self.table.shards[0].info.schema[name], len(states.logical)
        into = self._arrays.get(name)
        if into is None or len(into) < count:
            shape = (count, *((stack,) if stack > 1 else ()), *column.shape)
            into = self._arrays[name] = np.zeros(shape, column.dtype)
        table = self.table
        arguments: list[Any] = [*(np.ascontiguousarray(one) for one in states), np.arange(count), table.rows]
        plan = np.array([[1, column.nbytes, stack, 0, stack * column.nbytes, into.ctypes.data]])
        arguments += [table["boundary"], table.block((name,)), plan]
        copy_stretches(*arguments)
        return into[:count]


class Scored(Selector):
    """Draws `lambda * n` candidates of an inner selector and keeps the best n; all of them where lambda is 1.

    `probabilities` are those of the inner selector's draws: the probability to be kept has no closed form, and V-trace
    corrects for the policy, not for the choice.
    """

    def __init__(
        self,
        features: Features,
        inner: Selector,
        *,
        distance: Distance = "l2",
        candidates: float = 6.0,
        anneal: float = 2.0,
        anneal_draws: int = 10_000,
        compared_steps: int | None = COMPARED_STEPS,
        drawn: int = 0,
        recorded: bool = False,
    ) -> None:
        """Args:
        features: the current network's features of observations.
        inner: what candidates are drawn from.
        distance: between features.
        candidates: lambda at first: candidates per draw.
        anneal: lambda reaches 1 after `anneal * anneal_draws` batches.
        anneal_draws: see anneal.
        compared_steps: states of a candidate that are compared; None: all.
        drawn: batches drawn before, for a resumed run.
        recorded: whether current features are compared with recorded ones.
        """
        self._inner, self._distance = inner, distance
        self._states = States(features, compared_steps, recorded=recorded)
        self._annealing = Annealing(candidates, anneal, anneal_draws, drawn)
        self.mean_distance = self.mean_candidate_distance = 0.0

    @abstractmethod
    def _far(self, keys: Keys, rng: np.random.Generator) -> Floats:
        """[M] the distance of each candidate."""

    @abstractmethod
    def _keep(self, keys: Keys, far: Floats, n: int) -> Positions:
        """[n] the indices of the candidates to keep."""

    def attach(self, shard: ShardReader, span: Span) -> None:
        self._states.attach(shard, span)
        self._inner.attach(shard, span)

    def refresh(self) -> None:
        self._inner.refresh()

    @property
    def size(self) -> int:
        return self._inner.size

    def ready(self, n: int) -> bool:
        return self._inner.ready(n)

    def select(self, n: int, rng: np.random.Generator) -> Selection:
        wanted = self._annealing.candidates(n)
        drawn = self._inner.select(wanted, rng)
        if wanted == n:
            return drawn
        far = self._far(drawn.keys, rng)
        kept = self._keep(drawn.keys, far, n)
        self.mean_distance, self.mean_candidate_distance = float(far[kept].mean()), float(far.mean())
        return Selection(drawn.keys.at(kept), drawn.probabilities[kept])

    def redraw(self, n: int, rng: np.random.Generator) -> Selection | None:
        """Draws without scoring: a few rows are not worth a pass of the network."""
        return self._inner.redraw(n, rng)

    def update(self, keys: Keys, priorities: Floats) -> int:
        return self._inner.update(keys, priorities)

    def metrics(self) -> dict[str, float]:
        """lambda, and the mean distances of what was kept and of all candidates."""
        means = {"distance": self.mean_distance, "candidate_distance": self.mean_candidate_distance}
        return {"lambda": self._annealing.now, **means}


def distances(current: Floats, other: Floats, kind: Distance) -> Floats:
    """[M] distances of blocks [M, C, F].

    l2 is the Euclidean norm of the whole block's difference, cosine is 1 - the cosine of the angle between the whole
    blocks, kl is the sum over states of KL(softmax(current) || softmax(other)).
    """
    if kind == "l2":
        return np.asarray(np.sqrt(np.square(current - other).sum(axis=(1, 2))))
    if kind == "cosine":
        dot = np.einsum("mcf,mcf->m", current, other)
        lengths = np.sqrt(np.square(current).sum(axis=(1, 2)) * np.square(other).sum(axis=(1, 2)))
        return np.asarray(1.0 - dot / np.maximum(lengths, TINY))
    log_p, log_q = _log_softmax(current), _log_softmax(other)
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=(1, 2)))


def cross_distances(current: Floats, reference: Floats, kind: Distance) -> Floats:
    """[M, R] `distances` of blocks [M, C, F] to each reference [R, F] repeated C times, by matrix products."""
    count = current.shape[1]
    if kind == "kl":
        log_p = _log_softmax(current)
        p = np.exp(log_p)
        return np.asarray((p * log_p).sum(axis=(1, 2))[:, None] - p.sum(axis=1) @ _log_softmax(reference).T)
    dot = current.sum(axis=1) @ reference.T
    ours, theirs = np.square(current).sum(axis=(1, 2))[:, None], count * np.square(reference).sum(axis=1)
    if kind == "l2":
        return np.asarray(np.sqrt(np.maximum(ours - 2 * dot + theirs, 0.0)))
    return np.asarray(1.0 - dot / np.maximum(np.sqrt(ours * theirs), TINY))


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
