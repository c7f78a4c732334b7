"""Compiles the numba kernels into their cache, so that the first training run does not wait for it: `python -m
shoal.replay.precompile`. Their signatures are explicit, so importing them compiles them.
"""

from importlib import import_module

KERNELS = ("gather", "selectors.prioritized", "startable", "sum_tree")

if __name__ == "__main__":
    for module in KERNELS:
        import_module(f"shoal.replay.{module}")
