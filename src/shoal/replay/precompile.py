"""Compiles the numba kernels into their cache, so that the first training run does not wait for it: `python -m
shoal.replay.precompile`.
"""

from shoal.replay import gather, starts, sum_tree

KERNELS = (
    sum_tree._descend,
    sum_tree._set_many,
    sum_tree._set_range,
    starts._startable,
    gather._copy_rows,
    gather.n_step_returns,
    gather.stack_origins,
)


def main() -> int:
    """Importing compiled them (their signatures are explicit); says how many there are."""
    return sum(len(kernel.signatures) for kernel in KERNELS)


if __name__ == "__main__":
    main()
