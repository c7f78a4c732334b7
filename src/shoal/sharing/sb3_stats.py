"""What `DistributedReplayBuffer.get_stats` says: what was sampled from whom."""

from __future__ import annotations

from typing import Any

from shoal.sharing.pool import Pool


def sampling_stats(pool: Pool | None, local_size: int, local_samples: int, pool_samples: int) -> dict[str, Any]:
    """Counts of samples since the start, fractions of all samples, and ages in rows.

    Args:
        pool: the group; None for a run without one.
        local_size: rows that the run holds itself.
        local_samples: samples from the own part of batches.
        pool_samples: samples from the pool part of batches.
    """
    total = max(1, local_samples + pool_samples)
    read = pool.counted() if pool else {}
    sizes = pool.sizes() if pool else {}
    foreign = sum(one.samples for one in read.values())
    return {
        "local_size": local_size,
        "local_samples": local_samples,
        "distributed_samples": pool_samples,
        "distributed_ratio": pool_samples / total,
        "num_shared_buffers": len(pool.peers) if pool else 0,
        "foreign_fraction": foreign / total,
        "foreign_age": sum(one.age for one in read.values()) / max(1, foreign),
        "peers": {
            run: {
                "fraction": one.samples / total,
                "samples": one.samples,
                "rows": sizes.get(run, 0),
                "age": one.age / max(1, one.samples),
            }
            for run, one in read.items()
        },
        "refused": dict(pool.refused) if pool else {},
    }
