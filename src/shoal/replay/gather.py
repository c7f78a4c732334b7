"""Copying scattered rows into a ready batch, at the speed of memory.

Rows are copied as bytes whatever their dtype, straight from the shard's mapped column into the batch: no index array of
the result's size, no fresh output, no page fault. Kernels release the GIL, so large batches are split over threads.
Small rows are not worth a pass per column: `n_step_rows` gathers all of a transition in one.

No kernel here calls a helper with an array: numba would count references to it, and those atomic operations keep the
cache misses of neighbouring rows from overlapping (5x slower on small rows, inline="always" included).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay.memory import copy_bytes, prefetch
from shoal.types import Array

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

PARALLEL_BYTES = 1 << 20
"""Below this a batch is copied faster by one thread than another can be woken."""
PIECES = 4
"""Per thread: several, so that a thread that is held up leaves its share to the others."""
SMALL_ROW = 512
"""Rows of up to so many bytes are gathered together with the rest of their transition."""
LINE, PAGE, AHEAD = 64, 4096, 1024
"""Bytes of a cache line, of a page of shared memory, and of the next row to fetch early."""


def _read(dtype: Any) -> Any:
    """A two-dimensional array that may be read-only, as a reader's mapped columns are."""
    return numba.types.Array(dtype, 2, "C", readonly=True)


_INTS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_LANES = numba.types.Array(numba.int32, 1, "C", readonly=True)
_OUT_INTS = numba.int64[::1]
_OUT_FLOATS = numba.float32[::1]
_BYTES, _OUT_BYTES = _read(numba.uint8), numba.uint8[:, ::1]


@numba.njit(numba.void(_BYTES, _INTS, _INTS, _OUT_BYTES), nogil=True, cache=True)
def _copy_rows(source, origins, targets, out):  # type: ignore[no-untyped-def]
    count, width = origins.shape[0], source.shape[1]
    if width <= LINE:
        for i in range(count):
            prefetch(source.ctypes.data + origins[i] * width)
    for i in range(count):
        if width > LINE:
            # The processor goes on by itself within a row, but cannot know where the next one lies.
            soon = source.ctypes.data + origins[min(i + 1, count - 1)] * width
            for ahead in range(0, min(width, AHEAD), LINE):
                prefetch(soon + ahead)
        if origins[i] < 0:
            out[targets[i], :] = 0
        else:
            copy_bytes(out.ctypes.data + targets[i] * width, source.ctypes.data + origins[i] * width, width)


@numba.njit(numba.void(_BYTES, *(_INTS,) * 3, numba.int64, _OUT_BYTES, _OUT_BYTES), nogil=True, cache=True)
def copy_pairs(source, origins, next_origins, targets, stack, out, out_next):  # type: ignore[no-untyped-def]
    """`_copy_rows` twice, stack by stack: where two share frames, the second copy of one finds it in the cache."""
    count, width = origins.shape[0], source.shape[1]
    following = origins[0]
    for i in range(2 * count):
        origin = following
        # The row after this one: the same stack goes on, or its successor's begins, or the next draw's.
        soon, frame = divmod(min(i + 1, 2 * count - 1), 2 * stack)
        place = soon * stack + frame % stack
        following = origins[place] if frame < stack else next_origins[place]
        start = source.ctypes.data + following * width
        for ahead in range(0, min(width, AHEAD), LINE):
            prefetch(start + ahead)
        for page in range((start // PAGE + 1) * PAGE, start + width, PAGE):
            # Nor does it fetch ahead into another page.
            for ahead in range(0, AHEAD // 2, LINE):
                prefetch(page + ahead)
        draw, frame = divmod(i, 2 * stack)
        target = targets[draw * stack + frame % stack]
        if origin >= 0:
            batch = out.ctypes.data if frame < stack else out_next.ctypes.data
            copy_bytes(batch + target * width, source.ctypes.data + origin * width, width)
        elif frame < stack:
            out[target, :] = 0
        else:
            out_next[target, :] = 0


_STREAM = (_read(numba.float32), _read(numba.boolean), _read(numba.boolean))
_RETURNS = numba.void(*_STREAM, _LANES, _INTS, _INTS, numba.int64, numba.float64, _OUT_FLOATS, _OUT_FLOATS, _OUT_INTS)


@numba.njit(_RETURNS, nogil=True, cache=True)
def n_step_returns(  # type: ignore[no-untyped-def]
    reward, terminated, truncated, lane, logical, target, n, gamma, out_reward, out_discount, out_next
):
    """Discounted reward of up to n steps, the discount of what follows (0 after termination) and the row it is
    bootstrapped from.
    """
    rows, lanes = reward.shape
    for i in range(logical.shape[0]):
        origin = logical[i] % rows * lanes + lane[i]
        prefetch(reward.ctypes.data + 4 * origin)
        prefetch(terminated.ctypes.data + origin)
        prefetch(truncated.ctypes.data + origin)
    for i in range(logical.shape[0]):
        total, discount = 0.0, 1.0
        column, following = lane[i], logical[i]
        for _ in range(n):
            row = following % rows
            total += discount * reward[row, column]
            discount *= gamma
            following += 1
            if terminated[row, column]:
                discount = 0.0
                break
            if truncated[row, column]:
                break
        out_reward[target[i]] = total
        out_discount[target[i]] = discount
        out_next[i] = following


_N_STEP_ROWS = numba.void(
    *(*_STREAM, _BYTES, _BYTES, _LANES, _INTS, _INTS, numba.int64, numba.float64),
    *(_OUT_FLOATS, _OUT_FLOATS, _OUT_BYTES, _OUT_BYTES, _OUT_BYTES),
)


@numba.njit(_N_STEP_ROWS, nogil=True, cache=True)
def n_step_rows(  # type: ignore[no-untyped-def]
    reward,
    terminated,
    truncated,
    action,
    obs,
    lane,
    logical,
    target,
    n,
    gamma,
    out_reward,
    out_discount,
    out_action,
    out_obs,
    out_next,
):
    """`n_step_returns` and the copies of small rows in one pass."""
    rows, lanes = reward.shape
    action_width, obs_width = action.shape[1], obs.shape[1]
    actions, out_actions = action.ctypes.data, out_action.ctypes.data
    observations, out_observations, out_following = obs.ctypes.data, out_obs.ctypes.data, out_next.ctypes.data
    start = np.empty(logical.shape[0], np.int64)  # kept: divisions are slow
    for i in range(logical.shape[0]):
        start[i] = logical[i] % rows
        origin = start[i] * lanes + lane[i]
        prefetch(reward.ctypes.data + 4 * origin)
        prefetch(reward.ctypes.data + 4 * (origin + (n - 1) * lanes))
        prefetch(terminated.ctypes.data + origin)
        prefetch(truncated.ctypes.data + origin)
        prefetch(actions + action_width * origin)
        prefetch(observations + obs_width * origin)
        prefetch(observations + obs_width * (origin + n * lanes))
    for i in range(logical.shape[0]):
        row, column, place = start[i], lane[i], target[i]
        origin = row * lanes + column
        copy_bytes(out_actions + place * action_width, actions + origin * action_width, action_width)
        copy_bytes(out_observations + place * obs_width, observations + origin * obs_width, obs_width)
        total, discount = 0.0, 1.0
        for _ in range(n):
            total += discount * reward[row, column]
            discount *= gamma
            ended, broken_off = terminated[row, column], truncated[row, column]
            row = row + 1 if row + 1 < rows else 0
            if ended:
                discount = 0.0
                break
            if broken_off:
                break
        following = row * lanes + column
        copy_bytes(out_following + place * obs_width, observations + following * obs_width, obs_width)
        out_reward[place] = total
        out_discount[place] = discount


_STACK = numba.void(_read(numba.uint8), _LANES, _INTS, _INTS, numba.int64, _OUT_INTS, _OUT_INTS)


@numba.njit(_STACK, nogil=True, cache=True)
def stack_origins(boundary, lane, logical, target, stack, out_origin, out_target):  # type: ignore[no-untyped-def]
    """For each row the places of its `stack` newest frames, oldest first; -1 (zeros) before the episode began."""
    rows, lanes = boundary.shape
    for i in range(logical.shape[0]):
        prefetch(boundary.ctypes.data + (logical[i] - stack + 1) % rows * lanes + lane[i])
    for i in range(logical.shape[0]):
        episode = True
        row = logical[i] % rows
        for back in range(stack):
            # A row after a FINAL or CUT one begins a new episode, and so does the very first row.
            if back > 0 and (logical[i] - back < 0 or boundary[row, lane[i]] != 0):
                episode = False
            slot = i * stack + stack - 1 - back
            out_origin[slot] = row * lanes + lane[i] if episode else -1
            out_target[slot] = target[i] * stack + stack - 1 - back
            row = row - 1 if row > 0 else rows - 1


@numba.njit(numba.int64(_read(numba.uint32), _LANES, _INTS), nogil=True, cache=True)
def sum_at(column, lane, logical):  # type: ignore[no-untyped-def]
    """Sum of a column over rows."""
    rows, lanes = column.shape
    total = np.int64(0)
    for i in range(logical.shape[0]):
        prefetch(column.ctypes.data + 4 * (logical[i] % rows * lanes + lane[i]))
    for i in range(logical.shape[0]):
        total += np.int64(column[logical[i] % rows, lane[i]])
    return total


def as_rows(column: Array, leading: int) -> Array:
    """A contiguous array as [rows, bytes]: the first `leading` axes joined."""
    return column.reshape(int(np.prod(column.shape[:leading], dtype=np.int64)), -1).view(np.uint8)


def _rows_alike(*arrays: Array) -> list[Array]:
    """Refuses rows of different sizes: kernels check no bounds."""
    rows = [array.view(np.uint8) for array in arrays]
    if len({array.shape[1] for array in rows}) > 1:
        raise ReplayError(f"Rows of {[array.shape[1] for array in rows]} bytes cannot be copied into each other.")
    return rows


class Copier:
    """Runs copies, on several threads when there is enough to copy."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads - 1, "shoal-gather") if self.threads > 1 else None

    def rows(self, source: Array, origins: Int64s, targets: Int64s, out: Array) -> None:
        """out[targets] = source[origins], zeros where an origin is negative; both as made by `as_rows`."""
        source, out = _rows_alike(source, out)

        def piece(part: slice) -> None:
            _copy_rows(source, origins[part], targets[part], out)

        self.share(piece, len(origins), len(origins) * source.shape[1])

    def share(self, copy: Callable[[slice], Any], count: int, nbytes: int) -> None:
        """Runs `copy` over slices of `count` rows, `nbytes` in all, on as many threads as that is worth."""
        if self._pool is None or nbytes < PARALLEL_BYTES:
            copy(slice(0, count))
            return
        pieces = self.threads * PIECES
        edges = [count * piece // pieces for piece in range(pieces + 1)]
        waiting = deque(map(slice, edges[:-1], edges[1:]))

        def work() -> None:
            while True:
                try:
                    part = waiting.popleft()
                except IndexError:
                    return
                copy(part)

        others = [self._pool.submit(work) for _ in range(self.threads - 1)]
        work()
        for other in others:
            if not other.cancel():  # one that has not even begun is not needed any more
                other.result()
