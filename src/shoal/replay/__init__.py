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

from shoal.replay.back_pressure import BackPressure as BackPressure
from shoal.replay.back_pressure import queue_rows as queue_rows
from shoal.replay.ledger import Ledger as Ledger
from shoal.replay.ledger import LedgerWord as LedgerWord
from shoal.replay.rate_limiter import RateLimiter as RateLimiter
from shoal.replay.schema import Column as Column
from shoal.replay.schema import Schema as Schema
from shoal.replay.schema import step_schema as step_schema
from shoal.replay.shard import ShardReader as ShardReader
from shoal.replay.shard import ShardWriter as ShardWriter
from shoal.replay.shard_files import Header as Header
from shoal.replay.shard_files import ShardInfo as ShardInfo
from shoal.replay.shard_files import create_shard as create_shard
from shoal.replay.shard_files import read_info as read_info
from shoal.replay.stream import Stream as Stream
from shoal.replay.views import NStepView as NStepView
from shoal.replay.views import RowPriorities as RowPriorities
from shoal.replay.views import SequenceView as SequenceView
from shoal.replay.views import Span as Span
from shoal.replay.views import View as View
from shoal.types import Keys as Keys

if TYPE_CHECKING:
    from shoal.replay.prefetch import Prefetcher as Prefetcher
    from shoal.replay.replay import Replay as Replay
    from shoal.replay.selectors import Attentive as Attentive
    from shoal.replay.selectors import Circular as Circular
    from shoal.replay.selectors import Elite as Elite
    from shoal.replay.selectors import Fifo as Fifo
    from shoal.replay.selectors import Mixture as Mixture
    from shoal.replay.selectors import Part as Part
    from shoal.replay.selectors import Prioritized as Prioritized
    from shoal.replay.selectors import Selector as Selector
    from shoal.replay.selectors import Uniform as Uniform

_SELECTORS = ("Attentive", "Circular", "Elite", "Fifo", "Mixture", "Part", "Prioritized", "Selector", "Uniform")
_LATER = {"Prefetcher": "prefetch", "Replay": "replay"} | dict.fromkeys(_SELECTORS, "selectors")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shoal.replay.{_LATER[name]}"), name)
