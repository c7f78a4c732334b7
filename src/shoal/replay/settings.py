"""The `replay` section of a scenario, and the selector it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from shoal.errors import ConfigError
from shoal.replay.original_parameters import is_original, translate
from shoal.replay.shares import check_ratios, shares
from shoal.types import Array

if TYPE_CHECKING:
    from shoal.replay.selectors import Mixture, Selector

Features = Callable[[Array], Array]
"""Observations [M, *obs_shape] to the current network's features of them, [M, F] float32."""

_COMMON = ("type", "ratio")
_SCORED = ("capacity", "distance", "candidates", "anneal", "anneal_draws", "compared_steps")
BELONGS: dict[str, tuple[str, ...]] = {
    "uniform": ("capacity",),
    "newest": ("fraction",),
    "fifo": ("capacity", "on_full"),
    "circular": ("capacity", "on_full", "slots", "passes"),
    "prioritized": ("alpha", "epsilon"),
    "elite": (*_SCORED, "strategy", "insertion", "insertion_sample"),
    "attentive": _SCORED,
}
"""The settings of each type of selector, beside its type and ratio."""


class SelectorSettings(BaseModel):
    """One way to choose rows, and its share of every batch."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    ALIASES: ClassVar[dict[str, str]] = {"lambda": "candidates"}
    """The papers' name, which is no name in Python."""

    type: Literal["uniform", "newest", "fifo", "prioritized", "elite", "attentive", "circular"] = Field(
        "uniform", description="Which rows are drawn."
    )
    ratio: float = Field(1.0, gt=0, le=1, description="Share of every batch; the ratios of all parts sum to 1.")
    alpha: float = Field(0.6, ge=0, le=1, description="prioritized: exponent of the priorities; 0 is uniform.")
    epsilon: float = Field(1e-6, gt=0, description="prioritized: added to every priority, so that no row starves.")
    fraction: float = Field(0.2, gt=0, le=1, description="newest: draw from this newest fraction of every shard.")
    capacity: int | None = Field(
        None,
        ge=1,
        description="fifo, circular: unread sequences held, null: the learner's choice. uniform, elite, attentive: "
        "newest sequences to draw from, null: all.",
    )
    on_full: Literal["wait", "drop"] = Field(
        "wait", description="fifo, circular: when the queue is full actors wait, or its oldest sequences are dropped."
    )
    slots: int = Field(4, ge=1, le=1_024, description="circular: batches held for reuse.")
    passes: int = Field(2, ge=1, le=1_024, description="circular: times every batch is used.")
    distance: Literal["l2", "cosine", "kl"] = Field(
        "l2", description="elite, attentive: how features are compared; the smallest is the most alike."
    )
    candidates: float = Field(
        6.0, ge=1, le=100, description="elite, attentive: candidates per draw at first, also called lambda; 1 is off."
    )
    anneal: float = Field(
        2.0, gt=0, description="elite, attentive: candidates fall to 1 over this many times anneal_draws batches."
    )
    anneal_draws: int = Field(10_000, ge=1, description="elite, attentive: see anneal.")
    compared_steps: int | None = Field(
        3, ge=1, description="elite, attentive: states of a candidate that are compared, null: all."
    )
    strategy: Literal[1, 2, 3, 4] = Field(
        3,
        description="elite: 1 closest, 2 of all distances, 3 least sampled then closest, 4 of all, least sampled.",
    )
    insertion: bool = Field(
        False, description="elite: once capacity is reached, the furthest of some leaves, not the oldest."
    )
    insertion_sample: int = Field(20, ge=1, le=10_000, description="elite: how many insertion compares.")

    @model_validator(mode="before")
    @classmethod
    def _other_words(cls, data: Any) -> Any:
        """Takes `lambda` for `candidates`, and the entries of elite_buffer_vtrace."""
        if not isinstance(data, Mapping):
            return data
        if is_original(data):
            return translate(data)
        if "lambda" not in data:
            return data
        if "candidates" in data:
            raise ConfigError("lambda and candidates are the same setting: give one of them.")
        return {("candidates" if key == "lambda" else key): value for key, value in data.items()}

    @model_validator(mode="after")
    def _fits_its_type(self) -> SelectorSettings:
        """Refuses what would have no effect. A default is let through: it may come from a complete list of settings."""
        for name, info in type(self).model_fields.items():
            if name not in (*_COMMON, *BELONGS[self.type]) and getattr(self, name) != info.default:
                owners = " and ".join(kind for kind, names in BELONGS.items() if name in names)
                found = f"{name} = {getattr(self, name)} has no effect on {self.type}"
                raise ConfigError(f"replay.selectors: {found}; it belongs to {owners}.")
        if self.insertion and self.capacity is None:
            raise ConfigError("replay.selectors: insertion replaces sequences when capacity is reached: set capacity.")
        return self

    @model_serializer(mode="wrap")
    def _what_counts(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what belongs to other types, which is at its default."""
        wanted = (*_COMMON, *BELONGS[self.type])
        return {name: value for name, value in serialize(self).items() if name in wanted}

    @property
    def is_queue(self) -> bool:
        """Whether it hands out new experience, each sequence when it comes."""
        return self.type in ("fifo", "circular")

    @property
    def compares_features(self) -> bool:
        """Whether it needs the features that a policy records and a network gives."""
        return self.type in ("elite", "attentive")

    def make(self, features: Features | None = None, queue_capacity: int | None = None, drawn: int = 0) -> Selector:
        """The selector.

        Args:
            features: the current network's features; elite and attentive need them.
            queue_capacity: what a queue's `capacity: null` stands for.
            drawn: batches drawn by the run before, which the annealing goes on from.
        """
        # Here: see the package.
        from shoal.replay.selectors import Attentive, Circular, Elite, Fifo, Prioritized, Uniform

        if self.type == "prioritized":
            return Prioritized(self.alpha, self.epsilon)
        if self.is_queue:
            fifo = Fifo(self.capacity or queue_capacity, self.on_full)
            return Circular(fifo, self.slots, self.passes) if self.type == "circular" else fifo
        if not self.compares_features:
            return Uniform(self.fraction if self.type == "newest" else 1.0, self.capacity)
        if features is None:
            raise ConfigError(f"{self.type} needs an algorithm that has features: impala or impact.")
        scored: dict[str, Any] = {name: getattr(self, name) for name in _SCORED} | {"drawn": drawn}
        if self.type == "attentive":
            return Attentive(features, **scored)
        scored |= {"strategy": self.strategy, "insertion": self.insertion, "insertion_sample": self.insertion_sample}
        return Elite(features, **scored)


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
    selectors: tuple[SelectorSettings, ...] = Field(
        (SelectorSettings(type="prioritized"),), min_length=1, description="Ways to choose rows, with their ratios."
    )
    path: Path | None = Field(None, description="Folder for the shards; null: shared memory, else disk.")
    keep: bool = Field(False, description="Keep the replay of a run that ended well; runs that can be resumed do.")
    threads: int = Field(1, ge=1, le=64, description="Threads that copy large batches.")

    @property
    def queue(self) -> SelectorSettings | None:
        """The queue that actors wait for when it is full, if there is one.

        Its `capacity: null` is for whoever knows the batch to fill in: at least the draws that one batch takes of it,
        the same for the learner (`make_selector`) and for the actors (`back_pressure.queue_rows`).
        """
        return next((one for one in self.selectors if one.is_queue and one.on_full == "wait"), None)

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
                "A mixture can have one queue (fifo, circular), for a shard keeps one reader's place: make the others "
                "uniform, newest, elite or attentive."
            )
        return shares(ratios, batch_size)

    def make_selector(
        self, features: Features | None = None, queue_capacity: int | None = None, drawn: int = 0
    ) -> Mixture:
        """The selectors, as one. The arguments are those of `SelectorSettings.make`."""
        from shoal.replay.selectors import Mixture, Part

        return Mixture([Part(part.make(features, queue_capacity, drawn), part.ratio) for part in self.selectors])
