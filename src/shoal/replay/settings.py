"""The `replay` section of a scenario, and the selectors it asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import ConfigError
from shoal.replay.compression import Compress
from shoal.replay.selector_settings import (
    AnySelector,
    PrioritizedSettings,
    QueueSettings,
    RolloutSettings,
    SelectorList,
)
from shoal.replay.shares import check_ratios, shares
from shoal.types import Array

if TYPE_CHECKING:
    from shoal.replay.selectors import Mixture, Selector

Features = Callable[[Array], Array]
"""Observations [M, *obs_shape] to the current network's features of them, [M, F] float32."""


class ReplaySettings(BaseModel):
    """What is kept, what is drawn, and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    SHORTHAND: ClassVar[str] = "selectors"
    """What a list given for the whole section means."""

    capacity: int = Field(100_000, ge=256, description="Steps kept, over all actors.")
    min_size: int = Field(1_000, ge=1, description="Steps collected before the first update.")
    samples_per_insert: float | None = Field(
        8.0, gt=0, description="How often a step is drawn on average; null lets actors and learner run free."
    )
    tolerance: float | None = Field(None, gt=0, description="Allowed lead of either side, in draws; null picks one.")
    selectors: SelectorList = Field(
        (PrioritizedSettings(),), min_length=1, description="Ways to choose rows, with their ratios."
    )
    path: Path | None = Field(None, description="Folder for the shards; null: shared memory, else disk.")
    keep: bool = Field(False, description="Keep the replay of a run that ended well; runs that can be resumed do.")
    threads: int = Field(1, ge=1, le=64, description="Threads that copy large batches.")
    compress: Compress = Field(
        "auto", description="How image rows travel between nodes: auto (what both ends have), none, lz4 or zstd."
    )

    @property
    def queue(self) -> QueueSettings | None:
        """The queue that actors wait for when it is full, if there is one.

        `capacity: null` is replaced where the batch is known: by at least the draws that one batch takes from it, the
        same for the learner (`make_selector`) and for the actors (`back_pressure.queue_rows`).
        """
        queues = (one for one in self.selectors if isinstance(one, QueueSettings))
        return next((one for one in queues if one.on_full == "wait"), None)

    @property
    def rollout(self) -> RolloutSettings | None:
        """The barrier between actors and learner, if there is one."""
        return next((one for one in self.selectors if isinstance(one, RolloutSettings)), None)

    @property
    def compares_features(self) -> bool:
        """Whether any selector does."""
        return any(one.compares_features for one in self.selectors)

    @property
    def records_features(self) -> bool:
        """Whether any selector compares with the features that a policy recorded."""
        return any(one.type == "elite" for one in self.selectors)

    def shares(self, batch_size: int) -> list[int]:
        """How many draws of a batch each selector gets; refuses a batch that does not divide."""
        ratios = [part.ratio for part in self.selectors]
        check_ratios(ratios)
        if sum(part.is_queue for part in self.selectors) > 1:
            raise ConfigError(
                "A mixture can have one queue (fifo, circular), because a shard keeps one reader's place: make the "
                "others uniform, newest, elite or attentive."
            )
        return shares(ratios, batch_size)

    def make_selector(
        self,
        features: Features | None = None,
        queue_capacity: int | None = None,
        drawn: int = 0,
        part: Callable[[int], int] = lambda capacity: capacity,
    ) -> Mixture:
        """The selectors, as one.

        Args:
            features: the current network's features; elite and attentive need them.
            queue_capacity: what a queue's `capacity: null` stands for.
            drawn: batches that an earlier execution drew; annealing continues from there.
            part: from a capacity to the part of it in the shards that are read.
        """
        from shoal.replay.selectors import Mixture, Part  # here: see the package

        parts = []
        for one in self.selectors:
            if (capacity := getattr(one, "capacity", None)) is not None:
                one = one.model_copy(update={"capacity": max(1, part(capacity))})
            parts.append(Part(_make(one, features, queue_capacity and max(1, part(queue_capacity)), drawn), one.ratio))
        return Mixture(parts)


def _make(one: AnySelector, features: Features | None, queue_capacity: int | None, drawn: int) -> Selector:
    from shoal.replay.selectors import Attentive, Circular, Elite, Fifo, Prioritized, Rollout, Uniform

    if one.type == "uniform":
        return Uniform(capacity=one.capacity)
    if one.type == "newest":
        return Uniform(one.fraction)
    if one.type == "prioritized":
        return Prioritized(one.alpha, one.epsilon)
    if one.type == "rollout":
        return Rollout(one.lag)
    if isinstance(one, QueueSettings):
        fifo = Fifo(one.capacity or queue_capacity, one.on_full)
        return Circular(fifo, one.slots, one.passes) if one.type == "circular" else fifo
    if features is None:
        raise ConfigError(f"{one.type} needs an algorithm that has features: impala or impact.")
    kind = Elite if one.type == "elite" else Attentive
    return kind(features, drawn=drawn, **one.model_dump(exclude={"type", "ratio"}))
