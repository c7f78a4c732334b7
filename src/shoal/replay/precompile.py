"""Compiles the numba kernels into their cache, so that the first training run does not wait for it: `python -m
shoal.replay.precompile`.
"""

from shoal.replay import draws, gather, starts, sum_tree
from shoal.replay.selectors import prioritized

KERNELS = (
    sum_tree._descend,
    sum_tree._rebuild_above,
    sum_tree._set_many,
    sum_tree._set_range,
    sum_tree._draw,
    sum_tree._update,
    prioritized._magnitudes,
    starts._startable,
    draws._draw,
    gather.n_step_rows,
    gather.copy_stretches,
    gather.sum_uint32,
)


def main() -> int:
    """Importing compiled them (their signatures are explicit); says how many there are."""
    return sum(len(kernel.signatures) for kernel in KERNELS)


if __name__ == "__main__":
    main()
