"""What a run has read from the others of its group: for `get_stats()` and for its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.sharing.pool import Pool


def sampling_stats(pool: Pool | None, samples: int) -> dict[str, Any]:
    """Fractions of all samples so far, and mean ages in rows, by run and in all.

    Args:
        pool: the group; None for a run without one.
        samples: all samples that the run has drawn.
    """
    total = max(1, samples)
    read = pool.counted() if pool else {}
    sizes = pool.sizes() if pool else {}
    foreign = sum(one.samples for one in read.values())
    peers = {}
    for run, one in read.items():
        age = one.age / max(1, one.samples)
        peers[run] = {"fraction": one.samples / total, "samples": one.samples, "rows": sizes.get(run, 0), "age": age}
    return {
        "num_shared_buffers": len(pool.peers) if pool else 0,
        "foreign_fraction": foreign / total,
        "foreign_age": sum(one.age for one in read.values()) / max(1, foreign),
        "peers": peers,
        "refused": dict(pool.refused) if pool else {},
    }


def sampling_metrics(stats: Mapping[str, Any]) -> dict[str, float]:
    """Statistics under the names they are logged by."""
    metrics = {"share/foreign_fraction": stats["foreign_fraction"], "share/peers": float(stats["num_shared_buffers"])}
    metrics["share/age"] = stats["foreign_age"]
    return metrics | {f"share/{run}/fraction": one["fraction"] for run, one in stats["peers"].items()}
