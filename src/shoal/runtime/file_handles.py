"""Enough file handles for a run: a process holds one for every file that it maps."""

from __future__ import annotations

import resource

from shoal.errors import MachineError

COMFORTABLE = 4096
"""As many are asked for where the user's hard limit allows it; macOS begins with 256."""


def require_file_handles(actors: int, columns: int) -> None:
    """Raises this process's limit, which its children inherit, and refuses one that is too low.

    Args:
        actors: shards of the run.
        columns: files of a shard, besides its header.

    Raises:
        MachineError: the hard limit is below what a run of this size holds.
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
    """About what one process of a run holds at most: inline, where all roles share one.

    A shard's columns are mapped by its writer and by the learner; its header by these, by the ledger of every role and
    by the index of what was drawn. The rest is Python's, torch's and Ray's.
    """
    return 32 + actors * (2 * columns + 8 + actors)
