"""The `replay` section of a scenario, and the selector it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from shoal.replay.selectors import Mixture, Selector


class SelectorSettings(BaseModel):
    """One way to choose rows, and its share of every batch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["uniform", "newest", "fifo", "prioritized"] = Field("uniform", description="Which rows are drawn.")
    ratio: float = Field(1.0, gt=0, le=1, description="Share of every batch; the ratios of all parts sum to 1.")
    alpha: float = Field(0.6, ge=0, le=1, description="prioritized: exponent of the priorities; 0 is uniform.")
    epsilon: float = Field(1e-6, gt=0, description="prioritized: added to every priority, so that no row starves.")
    fraction: float = Field(0.2, gt=0, le=1, description="newest: draw from this newest fraction of every shard.")

    def make(self) -> Selector:
        """The selector."""
        from shoal.replay.selectors import Fifo, Prioritized, Uniform  # here: see the package

        if self.type == "prioritized":
            return Prioritized(self.alpha, self.epsilon)
        if self.type == "fifo":
            return Fifo()
        return Uniform(self.fraction if self.type == "newest" else 1.0)


class ReplaySettings(BaseModel):
    """What is kept, what is drawn, and how often."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    capacity: int = Field(100_000, ge=256, description="Steps kept, over all actors.")
    min_size: int = Field(1_000, ge=1, description="Steps collected before the first update.")
    samples_per_insert: float | None = Field(
        8.0, gt=0, description="How often a step is drawn on average; null lets actors and learner run free."
    )
    tolerance: float | None = Field(None, gt=0, description="Allowed lead of either side, in draws; null picks one.")
    selectors: tuple[SelectorSettings, ...] = Field(
        (SelectorSettings(type="prioritized"),), min_length=1, description="Ways to choose rows, with their ratios."
    )
    path: Path | None = Field(None, description="Folder for the shards; null: shared memory, else disk.")
    keep: bool = Field(False, description="Keep the replay of a run that ended well; runs that can be resumed do.")
    threads: int = Field(1, ge=1, le=64, description="Threads that copy large batches.")

    def make_selector(self) -> Mixture:
        """The selectors, as one."""
        from shoal.replay.selectors import Mixture, Part

        return Mixture([Part(part.make(), part.ratio) for part in self.selectors])
