"""Copying scattered rows into a prepared batch, at the speed of memory.

Rows are copied as bytes, whatever their dtype, directly from the shards' mapped columns into the batch: no index array,
no new output, no page fault. One call reads all shards of a `ShardTable` and everything a draw needs, so Python's lock
is taken once per batch and thread, not once per shard and column.

No kernel here passes an array to a helper: numba would count references to it, and those atomic operations keep the
cache misses of neighbouring rows from overlapping (5x slower on small rows, even with inline="always"). For the same
reason columns and outputs are addresses: nothing checks bounds, `views` checks widths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from shoal.replay.memory import (
    clear_bytes,
    copy_byte,
    copy_bytes,
    copy_half,
    copy_word,
    load_byte,
    load_float,
    load_uint32,
    prefetch,
)
from shoal.types import Keys

PARALLEL_BYTES = 1 << 20
"""One thread copies smaller batches faster than another wakes up."""
PIECES = 2
"""Pieces per thread: several, so that a delayed thread leaves its share to the others."""
SMALL_ROW = 512
"""Rows of up to this many bytes are all prefetched before the first is copied."""
BYTE, HALF, WORD, WORDS = 1, 4, 8, 64
"""Rows of one byte, of half a word, and of whole words up to 64 bytes are copied without a call of memcpy."""
LINE, PAGE, AHEAD = 64, 4096, 512
"""Bytes of a cache line, of a page of shared memory, and to prefetch of each page of the next draw."""
DRAWS_AHEAD = 2
"""Sequences are prefetched this many draws before they are copied: more of them push each other out of the cache."""

_INTS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_SHORTS = numba.types.Array(numba.int32, 1, "C", readonly=True)
_KEYS = (_SHORTS, _SHORTS, _INTS)
_TABLE = numba.types.Array(numba.int64, 2, "C", readonly=True)
_OUT_FLOATS = numba.float32[::1]
_INT = numba.int64


@numba.njit(numba.void(_INT, _INT, _INT), nogil=True, cache=True)
def _copy_row(into, source, width):  # type: ignore[no-untyped-def]
    if width <= WORDS and width % WORD == 0:
        for word in range(0, width, WORD):
            copy_word(into + word, source + word)
    elif width == HALF:
        copy_half(into, source)
    elif width == BYTE:
        copy_byte(into, source)
    else:
        copy_bytes(into, source, width)


@numba.njit(numba.void(*(_INT,) * 9), nogil=True, cache=True)
def _copy_stack(column, boundary, base, ring, newest, before, stack, width, into):  # type: ignore[no-untyped-def]
    """The frame at ring position `newest` of a lane that begins at row `base`, and up to `stack - 1` before it."""
    known, back = 1, newest
    while known < stack and known <= before:
        # A row after a FINAL or CUT one begins a new episode, and so does the very first row.
        back = back - 1 if back > 0 else ring - 1
        if load_byte(boundary + base + back) != 0:
            break
        known += 1
    if known < stack:
        clear_bytes(into, (stack - known) * width)
        into += (stack - known) * width
    wrapped = known - 1 - newest  # frames that lie at the ring's end
    if wrapped > 0:
        copy_bytes(into, column + (base + ring - wrapped) * width, wrapped * width)
        copy_bytes(into + wrapped * width, column + base * width, (known - wrapped) * width)
    else:
        copy_bytes(into, column + (base + newest - known + 1) * width, known * width)


_N_STEP = numba.void(
    *(*_KEYS, _INTS, *(_INTS,) * 9),
    *(_INT, numba.float64, _INT, _INT, _INT, _OUT_FLOATS, _OUT_FLOATS, _INT, _INT, _INT),
)


@numba.njit(_N_STEP, nogil=True, cache=True)
def n_step_rows(  # type: ignore[no-untyped-def]
    shard,
    lane,
    logical,
    target,
    rows,
    heads,
    reward,
    terminated,
    truncated,
    boundary,
    action,
    obs,
    next_obs,
    n,
    gamma,
    stack,
    action_width,
    width,
    out_reward,
    out_discount,
    out_action,
    out_obs,
    out_next,
):
    """n-step transitions, none reaching beyond its shard's row `heads`: discounted reward of up to n steps, the
    discount of what follows (0 after termination), the action, and the observations at both ends, of `stack` frames
    each, zeros before the episode began.
    """
    count = logical.shape[0]
    position = np.empty(count, np.int64)  # kept: divisions are slow
    for i in range(count):
        s = np.uintp(shard[i])
        position[i] = logical[i] % rows[s]
        origin = lane[i] * rows[s] + position[i]
        prefetch(reward[s] + 4 * origin)
        prefetch(terminated[s] + origin)
        prefetch(truncated[s] + origin)
        prefetch(action[s] + action_width * origin)
        if stack > 1:
            prefetch(boundary[s] + origin)
        if width <= SMALL_ROW:
            prefetch(obs[s] + width * origin)
            if next_obs[s] != 0:
                prefetch(next_obs[s] + width * (origin + n - 1))
            else:
                prefetch(obs[s] + width * (origin + n))
    for i in range(count):
        if width > SMALL_ROW:
            # The processor prefetches within a page by itself, but not the next page or the next draw.
            soon = min(i + 1, count - 1)
            s = np.uintp(shard[soon])
            origin = lane[soon] * rows[s] + position[soon]
            start = obs[s] + width * (origin - stack + 1)
            end = start + width * (stack if next_obs[s] != 0 else stack + n)
            prefetch(start)
            for page in range(start // PAGE * PAGE, end, PAGE):
                for ahead in range(0, AHEAD, LINE):
                    prefetch(page + ahead)
        s, place, row = np.uintp(shard[i]), target[i], position[i]
        ring = rows[s]
        base = lane[i] * ring
        _copy_row(out_action + place * action_width, action[s] + (base + row) * action_width, action_width)
        total, discount = 0.0, 1.0
        last, steps = row, 0
        for _ in range(n):
            last = row
            origin = base + row
            total += discount * load_float(reward[s] + 4 * origin)
            discount *= gamma
            steps += 1
            row = row + 1 if row + 1 < ring else 0
            if load_byte(terminated[s] + origin) != 0:
                discount = 0.0
                break
            if load_byte(truncated[s] + origin) != 0 or logical[i] + steps >= heads[s]:
                break
        out_reward[place] = total
        out_discount[place] = discount
        for end in range(2):
            newest = position[i] if end == 0 else (last if next_obs[s] != 0 else row)
            column = next_obs[s] if end == 1 and next_obs[s] != 0 else obs[s]
            before = logical[i] if end == 0 else logical[i] + steps
            into = (out_obs if end == 0 else out_next) + place * stack * width
            if stack == 1:
                _copy_row(into, column + (base + newest) * width, width)
            else:
                _copy_stack(column, boundary[s], base, ring, newest, before, stack, width, into)


_STRETCHES = numba.void(*(*_KEYS, _INTS, _INTS, _INTS), _TABLE, _TABLE)


@numba.njit(_STRETCHES, nogil=True, cache=True)
def copy_stretches(shard, lane, logical, target, rows, boundary, columns, plan):  # type: ignore[no-untyped-def]
    """Neighbouring rows of several columns, from each key on.

    Args:
        columns: [column, shard] addresses.
        plan: [column, 6] how many rows, bytes of a row, frames of a row; then of the output: bytes from one row to the
            next, from one draw to the next, and its address. `boundary` is read only where frames are stacked.
    """
    count = logical.shape[0]
    position = np.empty(count, np.int64)
    for i in range(count):
        position[i] = logical[i] % rows[np.uintp(shard[i])]
    for i in range(-DRAWS_AHEAD, count):
        soon = i + DRAWS_AHEAD
        if soon < count:
            s = np.uintp(shard[soon])
            row = lane[soon] * rows[s] + position[soon]
            for c in range(plan.shape[0]):
                start = columns[c, s] + row * plan[c, 1]
                for ahead in range(0, min(plan[c, 0] * plan[c, 1], PAGE), LINE):
                    prefetch(start + ahead)
        if i < 0:
            continue
        s = np.uintp(shard[i])
        ring = rows[s]
        base = lane[i] * ring
        for c in range(plan.shape[0]):
            steps, width, stack, per_step, newest = plan[c, 0], plan[c, 1], plan[c, 2], plan[c, 3], position[i]
            column, into = columns[c, s], plan[c, 5] + target[i] * plan[c, 4]
            if stack == 1 and (per_step == width or steps == 1):  # neighbours here and there: in one piece
                unbroken = min(steps, ring - newest)
                copy_bytes(into, column + (base + newest) * width, unbroken * width)
                if unbroken < steps:
                    copy_bytes(into + unbroken * width, column + base * width, (steps - unbroken) * width)
                continue
            for step in range(steps):
                if stack == 1:
                    _copy_row(into, column + (base + newest) * width, width)
                else:
                    _copy_stack(column, boundary[s], base, ring, newest, logical[i] + step, stack, width, into)
                into += per_step
                newest = newest + 1 if newest + 1 < ring else 0


@numba.njit(numba.int64(*_KEYS, _INT, _INT, _INT, _INTS, _INTS), nogil=True, cache=True)
def sum_uint32(shard, lane, logical, later, count, stride, rows, column):  # type: ignore[no-untyped-def]
    """Sum of a column, `later` rows after every `stride`-th of the first `count` keys; shards without it count as 0."""
    total = np.int64(0)
    for i in range(0, count, stride):
        s = np.uintp(shard[i])
        prefetch(column[s] + 4 * (lane[i] * rows[s] + (logical[i] + later) % rows[s]))
    for i in range(0, count, stride):
        s = np.uintp(shard[i])
        if column[s] != 0:
            total += np.int64(load_uint32(column[s] + 4 * (lane[i] * rows[s] + (logical[i] + later) % rows[s])))
    return total


@numba.njit(numba.boolean(_INTS, _INT), nogil=True, cache=True)
def any_below(numbers, bound):  # type: ignore[no-untyped-def]
    """Whether any of them is. numpy's `min` takes three times as long for a batch."""
    for i in range(numbers.shape[0]):
        if numbers[i] < bound:
            return True
    return False


class Copier:
    """Runs copies, on several threads when there is enough to copy."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads - 1, "shoal-gather") if self.threads > 1 else None

    def transitions(self, keys: Keys, target: Any, others: Sequence[Any], nbytes: int) -> None:
        """`n_step_rows`."""
        self.share(n_step_rows, (*keys, target), others, nbytes)

    def stretches(self, keys: Keys, target: Any, others: Sequence[Any], nbytes: int) -> None:
        """`copy_stretches`."""
        self.share(copy_stretches, (*keys, target), others, nbytes)

    def share(self, copy: Callable[..., Any], draws: Sequence[Any], others: Sequence[Any], nbytes: int) -> None:
        """Runs `copy(*draws, *others)`: on several threads if `nbytes` in all are worth it, each with a part of the
        arrays `draws`.
        """
        if self._pool is None or nbytes < PARALLEL_BYTES:
            copy(*draws, *others)
            return
        pieces, count = self.threads * PIECES, len(draws[0])
        edges = [count * piece // pieces for piece in range(pieces + 1)]
        waiting = deque(map(slice, edges[:-1], edges[1:]))

        def work() -> None:
            while True:
                try:
                    part = waiting.popleft()
                except IndexError:
                    return
                copy(*(one[part] for one in draws), *others)

        helpers = [self._pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():  # one that has not started is not needed any more
                helper.result()
