"""The parts, for people with a loop of their own: plain functions, plain `nn.Module`s, no base class.

Handles are paths; every process opens what it needs. docs/how-to/own-loop.md builds three algorithms from these.
"""

from __future__ import annotations

from shoal.envs import EnvSettings as _EnvSettings
from shoal.envs import describe_env as _describe_env
from shoal.loops.gradient_board import GradientBoard as GradientBoard
from shoal.loops.team import Learners as Learners
from shoal.loops.team import MemberLost as MemberLost
from shoal.loops.weights import BoardModule as BoardModule
from shoal.loops.weights import WeightBoard as WeightBoard
from shoal.replay import Attentive as Attentive
from shoal.replay import BackPressure as BackPressure
from shoal.replay import Circular as Circular
from shoal.replay import Column as Column
from shoal.replay import Elite as Elite
from shoal.replay import Fifo as Fifo
from shoal.replay import Ledger as Ledger
from shoal.replay import Mixture as Mixture
from shoal.replay import NStepView as NStepView
from shoal.replay import Part as Part
from shoal.replay import Prefetcher as Prefetcher
from shoal.replay import Prioritized as Prioritized
from shoal.replay import RateLimiter as RateLimiter
from shoal.replay import Replay as Replay
from shoal.replay import Schema as Schema
from shoal.replay import SequenceView as SequenceView
from shoal.replay import ShardInfo as ShardInfo
from shoal.replay import ShardReader as ShardReader
from shoal.replay import ShardWriter as ShardWriter
from shoal.replay import Stream as Stream
from shoal.replay import Uniform as Uniform
from shoal.replay import create_shard as create_shard
from shoal.replay import queue_rows as queue_rows
from shoal.replay import step_schema as step_schema
from shoal.replay.pace import QueuePace as QueuePace
from shoal.replay.pace import RatePace as RatePace
from shoal.replay.source import PacedReplay as PacedReplay
from shoal.runtime.launch import launch as launch
from shoal.types import CUT as CUT
from shoal.types import FINAL as FINAL
from shoal.types import STEP as STEP
from shoal.types import EnvSpec as _EnvSpec


def describe(env: str) -> _EnvSpec:
    """Observations and actions of an environment, for `step_schema`; makes it once."""
    return _describe_env(_EnvSettings(id=env))
