"""View: how rows of a shard become training data.

A view says how far it looks from its starting row (`span`), prepares batches once (`allocate`) and fills them in place
(`fill`). The stored stream is never changed: the same rows serve 1-step, n-step and sequence views at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from shoal.errors import ReplayError
from shoal.replay.gather import (
    SMALL_ROW,
    Copier,
    Int32s,
    Int64s,
    as_rows,
    copy_pairs,
    n_step_returns,
    n_step_rows,
    stack_origins,
)
from shoal.replay.schema import Schema
from shoal.replay.shard import ShardReader
from shoal.replay.starts import Span
from shoal.types import Array, Sequence, Transition

Allocate = Callable[[tuple[int, ...], Any], Array]
"""Makes an output array: numpy's `zeros`, or one in pinned memory."""


class View(Protocol):
    """How rows become training data."""

    @property
    def span(self) -> Span:
        """How far it looks from its starting row."""

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Transition | Sequence:
        """An empty batch, touched once so that filling it faults no page."""

    def fill(self, shard: ShardReader, lane: Int32s, logical: Int64s, target: Int64s, out: Any, copier: Copier) -> None:
        """Copies the rows that start at (lane, logical) into the places `target` of a batch."""


KNOWN = 64
"""Shards or batches whose row views are remembered."""


class _Rows:
    """Arrays as rows of bytes, made once per shard or batch: made anew for every batch they took a third of it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, dict[str, Array]]] = {}

    def __call__(self, owner: Any, make: Callable[[Any], dict[str, Array]]) -> dict[str, Array]:
        """The rows of an owner's arrays. The owner is kept, so that its id stays its own."""
        known = self._known.get(id(owner))
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[id(owner)] = (owner, make(owner))
        return known[1]

    def of_shard(self, shard: ShardReader) -> dict[str, Array]:
        """A shard's columns as rows."""
        return self(shard, self._of_columns)

    def _of_columns(self, shard: ShardReader) -> dict[str, Array]:
        return {name: as_rows(column, 2) for name, column in shard.columns.items()}


class NStepView:
    """n-step transitions: the reward of up to n steps, and the observation it is bootstrapped from.

    The return stops at an episode's end. Termination sets `discount` to 0; truncation does not: its final observation
    is bootstrapped from.
    """

    def __init__(self, schema: Schema, n: int, gamma: float, extras: tuple[str, ...] = ()) -> None:
        """Args:
        schema: the shards' schema.
        n: how many steps at most.
        gamma: discount per step.
        extras: other recorded columns to bring along, from the first row.
        """
        if n < 1 or not 0.0 <= gamma <= 1.0:
            raise ReplayError(f"n must be at least 1 and gamma within [0, 1]; got n={n}, gamma={gamma}.")
        self.n, self.gamma, self.stack, self._schema = n, gamma, schema.frame_stack, schema
        self._extras = tuple(schema[name].name for name in extras)
        self._small = self.stack == 1 and max(schema["obs"].nbytes, schema["action"].nbytes) <= SMALL_ROW
        self._rows = _Rows()

    @property
    def span(self) -> Span:
        """Looks back over the frame stack, ahead to the bootstrap row."""
        return Span(before=self.stack - 1, after=self.n)

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Transition:
        """An empty batch of transitions."""
        stack = (self.stack,) if self.stack > 1 else ()
        obs_shape = (batch, *stack, *schema["obs"].shape)
        return Transition(
            obs=allocate(obs_shape, schema["obs"].dtype),
            action=allocate((batch, *schema["action"].shape), schema["action"].dtype),
            reward=allocate((batch,), "float32"),
            discount=allocate((batch,), "float32"),
            next_obs=allocate(obs_shape, schema["obs"].dtype),
            extras={name: allocate((batch, *schema[name].shape), schema[name].dtype) for name in self._extras},
        )

    def fill(
        self, shard: ShardReader, lane: Int32s, logical: Int64s, target: Int64s, out: Transition, copier: Copier
    ) -> None:
        """See `View.fill`."""
        columns, rows, into = shard.columns, self._rows.of_shard(shard), self._rows(out, self._rows_of)
        stream = (columns["reward"], columns["terminated"], columns["truncated"])
        if self._small:
            outs = (out.reward, out.discount, into["action"], into["obs"], into["next_obs"])
            n_step_rows(*stream, rows["action"], rows["obs"], lane, logical, target, self.n, self.gamma, *outs)
        else:

            def piece(part: slice) -> None:
                # Each thread looks up its own part, too: that costs a twentieth of the copying.
                column, start, place = lane[part], logical[part], target[part]
                following = np.empty_like(start)
                n_step_returns(*stream, column, start, place, self.n, self.gamma, out.reward, out.discount, following)
                origin, frame = stacks(shard, column, start, place, self.stack)
                next_origin, _ = stacks(shard, column, following, place, self.stack)
                copy_pairs(rows["obs"], origin, next_origin, frame, self.stack, into["obs"], into["next_obs"])

            copier.share(piece, len(logical), 2 * len(logical) * self.stack * into["obs"].shape[1])
            copier.rows(rows["action"], origins(shard, lane, logical), target, into["action"])
        for name in self._extras:
            copier.rows(rows[name], origins(shard, lane, logical), target, into[name])

    def _rows_of(self, out: Transition) -> dict[str, Array]:
        frames = 1 if self.stack == 1 else 2
        rows = {"action": as_rows(out.action, 1)}
        rows |= {"obs": as_rows(out.obs, frames), "next_obs": as_rows(out.next_obs, frames)}
        rows |= {name: as_rows(out.extras[name], 1) for name in self._extras}
        for name, array in rows.items():  # kernels check no bounds
            if array.shape[1] != self._schema["obs" if name == "next_obs" else name].nbytes:
                raise ReplayError(f"{name} of this batch does not fit the schema; make batches with `allocate`.")
        return rows


class SequenceView:
    """Unbroken stretches of the stream, time-major, for recurrent networks and V-trace.

    A sequence is `burn_in + length` steps and one more row to bootstrap from. It may run over episode ends; rows whose
    `boundary` is FINAL hold no transition and are to be masked.
    """

    def __init__(
        self,
        schema: Schema,
        length: int,
        burn_in: int = 0,
        extras: tuple[str, ...] = (),
        at_start: tuple[str, ...] = (),
    ) -> None:
        """Args:
        schema: the shards' schema.
        length: steps to learn from.
        burn_in: steps before them that only warm up a recurrent state.
        extras: other recorded columns to bring along, for every row.
        at_start: recorded columns wanted from the first row only, such as a recurrent state.
        """
        if length < 1 or burn_in < 0:
            raise ReplayError(f"length must be at least 1 and burn_in at least 0; got {length} and {burn_in}.")
        self.length, self.burn_in, self.stack = length, burn_in, schema.frame_stack
        self._extras = tuple(schema[name].name for name in extras)
        self._at_start = tuple(schema[name].name for name in at_start)
        if both := set(extras) & set(at_start):
            raise ReplayError(f"{', '.join(sorted(both))}: ask for a column at every row or at the start, not both.")
        self._rows = _Rows()

    @property
    def steps(self) -> int:
        """Steps in one sequence, burn-in included."""
        return self.burn_in + self.length

    @property
    def span(self) -> Span:
        """Looks back over the frame stack, ahead over the sequence; goes on beyond episode ends."""
        return Span(before=self.stack - 1, after=self.steps, crosses_episodes=True)

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Sequence:
        """An empty batch of sequences."""
        steps, stack = self.steps, (self.stack,) if self.stack > 1 else ()
        extras = {name: allocate((steps + 1, batch, *schema[name].shape), schema[name].dtype) for name in self._extras}
        extras |= {name: allocate((batch, *schema[name].shape), schema[name].dtype) for name in self._at_start}
        return Sequence(
            obs=allocate((steps + 1, batch, *stack, *schema["obs"].shape), schema["obs"].dtype),
            action=allocate((steps, batch, *schema["action"].shape), schema["action"].dtype),
            reward=allocate((steps, batch), "float32"),
            terminated=allocate((steps, batch), "bool"),
            truncated=allocate((steps, batch), "bool"),
            boundary=allocate((steps + 1, batch), "uint8"),
            extras=extras,
        )

    def fill(
        self, shard: ShardReader, lane: Int32s, logical: Int64s, target: Int64s, out: Sequence, copier: Copier
    ) -> None:
        """See `View.fill`."""
        rows, batch = self._rows.of_shard(shard), out.reward.shape[1]
        time = np.arange(self.steps + 1, dtype=np.int64)[:, None]
        when = (logical[None, :] + time).reshape(-1)  # [(T + 1) * b]
        lanes = np.broadcast_to(lane, (self.steps + 1, len(lane))).reshape(-1).astype(np.int32)
        place = (target[None, :] + time * batch).reshape(-1)
        origin = (when % shard.rows) * shard.lanes + lanes
        used = self.steps * len(lane)  # all but the bootstrap row
        single: Mapping[str, Array] = {
            "action": out.action,
            "reward": out.reward,
            "terminated": out.terminated,
            "truncated": out.truncated,
        }
        for name, array in single.items():
            copier.rows(rows[name], origin[:used], place[:used], as_rows(array, 2))
        copier.rows(rows["boundary"], origin, place, as_rows(out.boundary, 2))
        for name in self._extras:
            copier.rows(rows[name], origin, place, as_rows(out.extras[name], 2))
        for name in self._at_start:
            copier.rows(rows[name], origin[: len(lane)], target, as_rows(out.extras[name], 1))
        if self.stack == 1:
            copier.rows(rows["obs"], origin, place, as_rows(out.obs, 2))
        else:
            origin, place = stacks(shard, lanes, when, place, self.stack)
            copier.rows(rows["obs"], origin, place, as_rows(out.obs, 3))


def origins(shard: ShardReader, lane: Int32s, logical: Int64s) -> Int64s:
    """Where rows lie in a shard's columns, lanes joined to rows."""
    return (logical % shard.rows) * shard.lanes + lane


def stacks(shard: ShardReader, lane: Int32s, logical: Int64s, target: Int64s, stack: int) -> tuple[Int64s, Int64s]:
    """Where the frames of stacks lie, as the actor saw them, and their places in a batch of [B * stack] frames."""
    origin, place = np.empty(len(logical) * stack, np.int64), np.empty(len(logical) * stack, np.int64)
    stack_origins(shard.columns["boundary"], lane, logical, target, stack, origin, place)
    return origin, place
