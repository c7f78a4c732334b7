"""Enough file handles for a run: a process holds one for each file that it maps."""

from __future__ import annotations

import resource

from shoal.errors import MachineError

COMFORTABLE = 4096
"""The limit to ask for, if the user's hard limit allows it; macOS starts with 256."""


def require_file_handles(actors: int, columns: int) -> None:
    """Raises this process's limit, which its children inherit.

    Args:
        actors: shards of the run.
        columns: files of a shard, besides its header.

    Raises:
        MachineError: the hard limit is too low for a run of this size.
    """
    needed = handles(actors, columns)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= max(needed, COMFORTABLE):
        return
    wanted = max(needed, COMFORTABLE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        raise MachineError(
            f"This process may open {allowed} files (`ulimit -n`), and a run with {actors} "
            f"actor{'s' * (actors > 1)} needs about {needed}. Allow more with `ulimit -n {COMFORTABLE}`, or use fewer "
            "actors."
        )


def handles(actors: int, columns: int) -> int:
    """About how many handles a process of a run holds at most: inline, where all roles share one process.

    The writer and the learner map a shard's columns. They, every role's ledger and the index of what was drawn map its
    header. Python, torch and Ray need the rest.
    """
    return 32 + actors * (2 * columns + 8 + actors)
