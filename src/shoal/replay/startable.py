"""Which rows may start a sample: the rule, and the two kernels that apply it.

All three share this file because numba's cache notices a changed kernel by its own file only.
"""

from __future__ import annotations

import numba
import numpy as np

from shoal.replay.memory import load_byte
from shoal.types import CUT, STEP

_INT = numba.int64
_INTS = numba.types.Array(_INT, 1, "C", readonly=True)
_FLOATS = numba.types.Array(numba.float64, 1, "C", readonly=True)


@numba.njit(numba.boolean(*(_INT,) * 6, numba.boolean), nogil=True, cache=True)
def _may_start(boundary, terminated, truncated, rows, logical, after, crosses_episodes):  # type: ignore[no-untyped-def]
    """Whether a view may start at a row and read `after` rows beyond it.

    The first three are addresses of one lane's columns, `rows` is the length of its ring. No view reads a CUT. A view
    of transitions starts at a STEP and reads nothing beyond the episode's end; its last row is the final observation,
    which only a truncated episode needs.
    """
    here = logical % rows
    first = load_byte(boundary + here)
    if first == CUT or (first != STEP and not crosses_episodes):
        return False
    for _ in range(after):
        following = here + 1 if here + 1 < rows else 0
        if not crosses_episodes and load_byte(terminated + here) != 0:
            return True
        if load_byte(boundary + following) == CUT:
            return False
        if not crosses_episodes and load_byte(truncated + here) != 0:
            return True
        here = following
    return True


_FLAG = numba.void(*(_INT,) * 7, numba.boolean, numba.types.Array(numba.uint8, 2, "C"))


@numba.njit(_FLAG, nogil=True, cache=True)
def flag_starts(boundary, terminated, truncated, rows, start, stop, after, crosses_episodes, out):  # type: ignore[no-untyped-def]
    """Sets out[row - start, lane] to whether a view may start there, for the rows [start, stop) of all lanes."""
    for logical in range(start, stop):
        for lane in range(out.shape[1]):
            base = lane * rows
            out[logical - start, lane] = _may_start(
                boundary + base, terminated + base, truncated + base, rows, logical, after, crosses_episodes
            )


_DRAW = numba.int64(
    *(numba.int64[::1], *(_INTS,) * 8, _INT, _FLOATS),
    *(numba.int32[::1], numba.int32[::1], numba.int64[::1], numba.int64[::1]),
)


@numba.njit(_DRAW, nogil=True, cache=True)
def draw_starts(  # type: ignore[no-untyped-def]
    counts, first, stop, lanes, rows, boundary, terminated, truncated, next_obs, n, points, shards, out_lanes, out, ages
):
    """Draws counts[s] starts of n-step transitions from the rows [first[s], stop[s]) of every shard.

    The starts are written to `shards`, `out_lanes` and `out` (logical rows). What is left to draw is counted down in
    `counts`; `ages` adds up how far the draws lie behind the newest row. Returns how many were drawn: each takes one of
    the uniform numbers `points`, or several.
    """
    used, drawn = 0, 0
    for s in range(counts.shape[0]):
        span = (stop[s] - first[s]) * lanes[s]
        # A row that holds its successor itself needs one row less.
        after = n - (1 if next_obs[s] != 0 else 0)
        while counts[s] > 0 and used < points.shape[0]:
            pick = np.int64(points[used] * span)
            used += 1
            lane, logical = pick % lanes[s], first[s] + pick // lanes[s]
            base = lane * rows[s]
            ends = (boundary[s] + base, terminated[s] + base, truncated[s] + base)
            if _may_start(*ends, rows[s], logical, after, False):
                shards[drawn], out_lanes[drawn], out[drawn] = s, lane, logical
                ages[s] += stop[s] - 1 - logical
                counts[s] -= 1
                drawn += 1
    return drawn
