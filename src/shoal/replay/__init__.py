"""The replay plane: experience as a stream on shared memory.

    writer ──append──▶ Shard ──map──▶ Replay (Selector ▸ View) ──Sample──▶ learner ──priorities──▶ Replay

A writer owns its shard and never waits for a reader, except for a queue. A reader maps any number of shards, keeps its
own index of the rows that may be drawn, and copies rows into prepared batches.

Drawing needs numba, which takes a second to import. So those modules are imported on first use, and actors, which only
write, start without numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.replay.back_pressure import BackPressure, queue_rows
from shoal.replay.ledger import Ledger, LedgerWord
from shoal.replay.rate_limiter import RateLimiter
from shoal.replay.schema import Column, Schema, step_schema
from shoal.replay.shard import ShardReader, ShardWriter
from shoal.replay.shard_files import Header, ShardInfo, create_shard, read_info
from shoal.replay.stream import Stream
from shoal.replay.views import NStepView, RowPriorities, SequenceView, Span, View
from shoal.types import Keys

if TYPE_CHECKING:
    from shoal.replay.prefetch import Prefetcher
    from shoal.replay.replay import Replay
    from shoal.replay.selectors import Attentive, Circular, Elite, Fifo, Mixture, Part, Prioritized, Selector, Uniform

_SELECTORS = ("Attentive", "Circular", "Elite", "Fifo", "Mixture", "Part", "Prioritized", "Selector", "Uniform")
_LATER = {"Prefetcher": "prefetch", "Replay": "replay"} | dict.fromkeys(_SELECTORS, "selectors")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shoal.replay.{_LATER[name]}"), name)


__all__ = [
    "Attentive",
    "BackPressure",
    "Circular",
    "Column",
    "Elite",
    "Fifo",
    "Header",
    "Keys",
    "Ledger",
    "LedgerWord",
    "Mixture",
    "NStepView",
    "Part",
    "Prefetcher",
    "Prioritized",
    "RateLimiter",
    "Replay",
    "RowPriorities",
    "Schema",
    "Selector",
    "SequenceView",
    "ShardInfo",
    "ShardReader",
    "ShardWriter",
    "Span",
    "Stream",
    "Uniform",
    "View",
    "create_shard",
    "queue_rows",
    "read_info",
    "step_schema",
]
