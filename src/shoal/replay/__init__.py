"""The replay plane: experience as a stream on shared memory.

    writer ──append──▶ Shard ──map──▶ Replay (Selector ▸ View) ──Sample──▶ learner ──priorities──▶ Replay

A writer owns its shard and never waits for a reader; a reader maps any number of shards, keeps its own index of what
may be drawn, and copies rows into prepared batches.
"""

from shoal.replay.ledger import Entry, Ledger
from shoal.replay.prefetch import Prefetcher
from shoal.replay.rate_limiter import RateLimiter
from shoal.replay.replay import Replay
from shoal.replay.schema import Column, Schema, step_schema
from shoal.replay.selectors import Fifo, Mixture, Part, Prioritized, Selector, Uniform
from shoal.replay.shard import Header, ShardInfo, ShardReader, ShardWriter, create_shard, read_info
from shoal.replay.starts import Span
from shoal.replay.views import NStepView, SequenceView, View
from shoal.types import Keys

__all__ = [
    "Column",
    "Entry",
    "Fifo",
    "Header",
    "Keys",
    "Ledger",
    "Mixture",
    "NStepView",
    "Part",
    "Prefetcher",
    "Prioritized",
    "RateLimiter",
    "Replay",
    "Schema",
    "Selector",
    "SequenceView",
    "ShardInfo",
    "ShardReader",
    "ShardWriter",
    "Span",
    "Uniform",
    "View",
    "create_shard",
    "read_info",
    "step_schema",
]
