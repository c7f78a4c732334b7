"""View: how rows of shards become training data.

A view says how many rows it reads around its starting row (`span`) and which columns, makes batches once (`allocate`)
and fills them in place (`fill`). The stored stream is never changed: the same rows serve 1-step, n-step and sequence
views at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from shoal.errors import ReplayError
from shoal.replay.schema import Column, Schema
from shoal.types import Array, Keys, Sequence, Transition

if TYPE_CHECKING:
    from shoal.replay.gather import Copier
    from shoal.replay.shard_table import Int64s, ShardTable

Allocate = Callable[[tuple[int, ...], Any], Array]
"""Makes an output array: numpy's `zeros`, or one in pinned memory."""


class RowPriorities(NamedTuple):
    """How the first priority of a sequence comes from those that an actor recorded for its steps:
    eta * largest + (1 - eta) * mean.
    """

    lag: int
    """Rows from a step to the row that carries its priority."""
    eta: float


class Span(NamedTuple):
    """How many rows a view reads before and after its starting row, and whether it reads beyond an episode's end."""

    before: int
    after: int
    crosses_episodes: bool = False
    overlap: int = 0
    """Burn-in rows at the beginning. In consecutive sequences they are also the last rows of the sequence before."""
    period: int = 1
    """Draws start at rows whose number divides by this."""
    priorities: RowPriorities | None = None
    """None: the last row carries the priority of the first."""

    @property
    def stride(self) -> int:
        """Rows from one sequence to the next when they are consecutive."""
        return self.after - self.overlap


class View(Protocol):
    """How rows become training data."""

    @property
    def span(self) -> Span:
        """The rows it reads around its starting row."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns it reads; every shard must have them, alike."""

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Transition | Sequence:
        """An empty batch of `batch` draws; `allocate` makes its arrays."""

    def fill(self, table: ShardTable, keys: Keys, target: Int64s, out: Any, copier: Copier) -> None:
        """Copies the rows that start at `keys` into the places `target` of a batch."""

    def narrowed(self, out: Any, n: int) -> Transition | Sequence:
        """The first n of a batch, in the same memory."""


Found = TypeVar("Found")
KNOWN = 64
"""Batches whose addresses are remembered."""


class _Addresses(Generic[Found]):
    """Addresses of a batch's arrays, looked up once per batch: `ctypes` takes longer than copying small rows."""

    def __init__(self, find: Callable[[Any], Found]) -> None:
        self._find = find
        self._known: dict[int, tuple[Any, Found]] = {}

    def __call__(self, batch: Any) -> Found:
        """What was found. Keeps the batch, so that no other object gets its id."""
        known = self._known.get(id(batch))
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[id(batch)] = (batch, self._find(batch))
        return known[1]


def _address(array: Array, column: Column, frames: int = 1, leading: int = 1) -> int:
    """The address of a batch's array. Refuses an array whose entries, after `leading` axes, are not `frames` rows of
    the column: kernels check nothing.
    """
    entry = array.itemsize * int(np.prod(array.shape[leading:], dtype=np.int64))
    if not array.flags.c_contiguous or entry != column.nbytes * frames:
        raise ReplayError(f"{column.name} of this batch does not fit the schema; make batches with `allocate`.")
    return int(array.ctypes.data)


class NStepView:
    """n-step transitions: the discounted reward of up to n steps, and the observation to bootstrap from.

    The return stops at an episode's end. Termination sets `discount` to 0. Truncation does not: the target bootstraps
    from the final observation.
    """

    reads = ("obs", "action", "reward", "terminated", "truncated", "boundary")

    def __init__(self, schema: Schema, n: int, gamma: float) -> None:
        """Args:
        schema: the shards' schema.
        n: how many steps at most.
        gamma: discount per step.
        """
        if n < 1 or not 0.0 <= gamma <= 1.0:
            raise ReplayError(f"n must be at least 1 and gamma within [0, 1]; got n={n}, gamma={gamma}.")
        self.n, self.gamma, self.stack, self._schema = n, gamma, schema.frame_stack, schema
        self.span = Span(before=self.stack - 1, after=n)
        """From the oldest stacked frame to the bootstrap row."""
        self._addresses = _Addresses(self._find)

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Transition:
        stack = (self.stack,) if self.stack > 1 else ()
        obs_shape = (batch, *stack, *schema["obs"].shape)
        return Transition(
            obs=allocate(obs_shape, schema["obs"].dtype),
            action=allocate((batch, *schema["action"].shape), schema["action"].dtype),
            reward=allocate((batch,), "float32"),
            discount=allocate((batch,), "float32"),
            next_obs=allocate(obs_shape, schema["obs"].dtype),
        )

    def fill(self, table: ShardTable, keys: Keys, target: Int64s, out: Transition, copier: Copier) -> None:
        into, schema = self._addresses(out), self._schema
        action, frame = schema["action"].nbytes, schema["obs"].nbytes
        arguments: list[Any] = [table.rows, table.endless, *(table[name] for name in _STREAM)]
        arguments += [self.n, self.gamma, self.stack, action, frame]
        arguments += [out.reward, out.discount, into["action"], into["obs"], into["next_obs"]]
        copier.transitions(keys, target, arguments, 2 * len(target) * self.stack * frame)

    def narrowed(self, out: Transition, n: int) -> Transition:
        return Transition._make(array[:n] for array in out)

    def _find(self, out: Transition) -> dict[str, int]:
        obs = self._schema["obs"]
        found = {"action": _address(out.action, self._schema["action"])}
        return found | {name: _address(getattr(out, name), obs, self.stack) for name in ("obs", "next_obs")}


_STREAM = ("reward", "terminated", "truncated", "boundary", "action", "obs", "next_obs")
"""The columns of `n_step_rows`, in its order."""


SMALL = 64
"""Bytes of a row that a batch of sequences stores beside the next row of its draw, not beside those of other draws:
each sequence is then one copy instead of one per row. Larger rows copy as fast one by one, and networks want those of
one time step side by side.
"""


class SequenceView:
    """Unbroken sequences of rows, time-major, for recurrent networks and V-trace.

    Time is the first axis of every array. In memory, small rows lie draw by draw: see `SMALL`.

    A sequence is `burn_in + length` steps and one more row to bootstrap from. It may cross episode ends: mask the rows
    whose `boundary` is FINAL, which hold no transition.
    """

    def __init__(
        self,
        schema: Schema,
        length: int,
        burn_in: int = 0,
        extras: tuple[str, ...] = (),
        at_start: tuple[str, ...] = (),
        period: int = 1,
        priorities: RowPriorities | None = None,
    ) -> None:
        """Args:
        schema: the shards' schema.
        length: steps to learn from.
        burn_in: steps before them that only warm up a recurrent state.
        extras: other recorded columns to copy, for every row.
        at_start: recorded columns to copy for the first row only, such as a recurrent state.
        period: rows from the start of one sequence to that of the next; 1: any row may be one.
        priorities: how prioritized draws come by a sequence's first priority.
        """
        if length < 1 or burn_in < 0:
            raise ReplayError(f"length must be at least 1 and burn_in at least 0; got {length} and {burn_in}.")
        if period < 1:
            raise ReplayError(f"period must be at least 1; got {period}.")
        if both := set(extras) & set(at_start):
            raise ReplayError(f"{', '.join(sorted(both))}: ask for a column at every row or at the start, not both.")
        self.length, self.burn_in, self.stack, self._schema = length, burn_in, schema.frame_stack, schema
        self.steps = steps = burn_in + length
        """Steps in one sequence, burn-in included."""
        self._rows = {"obs": steps + 1, "boundary": steps + 1, **dict.fromkeys(_EVERY_STEP, steps)}  # of each column
        self._rows |= {schema[name].name: steps + 1 for name in extras} | {schema[name].name: 1 for name in at_start}
        self._obs_bytes = (steps + 1) * self._entry("obs")  # of one draw
        self.reads = tuple(self._rows)
        """The columns it reads."""
        self.span = Span(self.stack - 1, steps, True, burn_in, period, priorities)
        """From the oldest stacked frame to the bootstrap row, beyond episode ends."""
        self._at_start = at_start
        # Not extras: learners drop their last row, and a GPU copies what is left at once only if it leaves no gaps.
        self._by_draw = {name for name in Sequence._fields[:-1] if self._entry(name) <= SMALL}
        self._addresses = _Addresses(self._find)

    def allocate(self, schema: Schema, batch: int, allocate: Allocate) -> Sequence:
        arrays = {}
        for name, rows in self._rows.items():
            leading = (batch,) if name in self._at_start else (batch, rows) if name in self._by_draw else (rows, batch)
            frames = (self.stack,) if name == "obs" and self.stack > 1 else ()
            array = allocate((*leading, *frames, *schema[name].shape), schema[name].dtype)
            arrays[name] = array.swapaxes(0, 1) if name in self._by_draw else array
        return Sequence(**{name: arrays.pop(name) for name in Sequence._fields[:-1]}, extras=arrays)

    def fill(self, table: ShardTable, keys: Keys, target: Int64s, out: Sequence, copier: Copier) -> None:
        others = (table.rows, table["boundary"], table.block(self.reads), self._addresses(out))
        copier.stretches(keys, target, others, len(target) * self._obs_bytes)

    def narrowed(self, out: Sequence, n: int) -> Sequence:
        extras = {name: one[:n] if name in self._at_start else one[:, :n] for name, one in out.extras.items()}
        return Sequence._make([*(array[:, :n] for array in out[:-1]), extras])  # not contiguous: the batch is axis 1

    def _entry(self, name: str) -> int:
        """Bytes of one row of a batch."""
        return self._schema[name].nbytes * (self.stack if name == "obs" else 1)

    def _find(self, out: Sequence) -> Int64s:
        """The plan of `copy_stretches`."""
        arrays, plan = {**out._asdict(), **out.extras}, []
        for name, rows in self._rows.items():
            array, column, frames = arrays[name], self._schema[name], self.stack if name == "obs" else 1
            leading = 1 if name in self._at_start else 2
            # Rows and draws may lie in any order, but each row must be in one piece.
            address = _address(array[(slice(1),) * leading], column, frames, leading)
            per_step = array.strides[0] if leading == 2 else 0
            plan.append([rows, column.nbytes, frames, per_step, array.strides[leading - 1], address])
        return np.array(plan)


_EVERY_STEP = ("action", "reward", "terminated", "truncated")
"""Columns without the bootstrap row."""
