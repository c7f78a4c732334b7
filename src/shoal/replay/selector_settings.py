"""The entries of `replay.selectors`: one model per type of selector, told apart by `type`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from shoal.errors import ConfigError
from shoal.replay.original_parameters import is_original, translate

Window = Annotated[int | None, Field(ge=1, description="Newest sequences to draw from; null: all.")]


class _Entry(BaseModel):
    """What every selector has."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    is_queue: ClassVar[bool] = False
    """Whether it hands out new experience, each sequence when it comes."""
    compares_features: ClassVar[bool] = False
    """Whether it needs the features that a policy records and a network computes."""

    type: str = Field(description="Which rows are drawn.")
    ratio: float = Field(1.0, gt=0, le=1, description="Share of every batch; the ratios of all parts sum to 1.")


class UniformSettings(_Entry):
    """All rows are equally likely."""

    type: Literal["uniform"] = "uniform"
    capacity: Window = None


class NewestSettings(_Entry):
    """The newest rows are equally likely."""

    type: Literal["newest"] = "newest"
    fraction: float = Field(0.2, gt=0, le=1, description="Draw from this newest fraction of every shard.")


class _Queue(_Entry):
    is_queue = True

    capacity: int | None = Field(None, ge=1, description="Unread sequences held; null: the learner's choice.")
    on_full: Literal["wait", "drop"] = Field(
        "wait", description="When the queue is full, actors wait, or its oldest sequences are dropped."
    )


class FifoSettings(_Queue):
    """Every sequence once, in order."""

    type: Literal["fifo"] = "fifo"


class CircularSettings(_Queue):
    """Every sequence several times, in batches that take turns."""

    type: Literal["circular"] = "circular"
    slots: int = Field(4, ge=1, le=1_024, description="Batches held for reuse.")
    passes: int = Field(2, ge=1, le=1_024, description="Times every batch is used.")


class RolloutSettings(_Entry):
    """The next sequence of every lane, all at once: actors and learner take turns."""

    is_queue = True

    type: Literal["rollout"] = "rollout"
    lag: Literal[0, 1] = Field(
        0, description="0: actors wait while the learner learns; 1: they collect the next rollout meanwhile."
    )
    share: float = Field(
        1.0, gt=0, le=1, description="Share of the actors that must be done; the others' rollouts join the next one."
    )


class PrioritizedSettings(_Entry):
    """Rows in proportion to their priority."""

    type: Literal["prioritized"] = "prioritized"
    alpha: float = Field(0.6, ge=0, le=1, description="Exponent of the priorities; 0 is uniform.")
    epsilon: float = Field(1e-6, gt=0, description="Added to every priority, so that no row starves.")


class _Scored(_Entry):
    """Compares features of candidates."""

    compares_features = True
    ALIASES: ClassVar[dict[str, str]] = {"lambda": "candidates"}
    """The papers' name, which is a keyword in Python."""

    capacity: Window = None
    distance: Literal["l2", "cosine", "kl"] = Field(
        "l2", description="How features are compared; the smallest is the most alike."
    )
    candidates: float = Field(
        6.0, ge=1, le=100, description="Candidates per draw at first, also called lambda; 1 is off."
    )
    anneal: float = Field(2.0, gt=0, description="Candidates fall to 1 over this many times anneal_draws batches.")
    anneal_draws: int = Field(10_000, ge=1, description="See anneal.")
    compared_steps: int | None = Field(3, ge=1, description="States of a candidate that are compared; null: all.")


class EliteSettings(_Scored):
    """Sequences whose recorded features are most like the current network's."""

    type: Literal["elite"] = "elite"
    strategy: Literal[1, 2, 3, 4] = Field(
        3, description="1 closest, 2 of all distances, 3 least sampled then closest, 4 of all, least sampled."
    )
    insertion: bool = Field(False, description="Once capacity is reached, the furthest of some leaves, not the oldest.")
    insertion_sample: int = Field(20, ge=1, le=10_000, description="How many insertion compares.")

    @model_validator(mode="after")
    def _insertion_needs_capacity(self) -> EliteSettings:
        if self.insertion and self.capacity is None:
            raise ConfigError("replay.selectors: insertion replaces sequences when capacity is reached: set capacity.")
        return self


class AttentiveSettings(_Scored):
    """Sequences whose states are most like the current ones."""

    type: Literal["attentive"] = "attentive"


QueueSettings = FifoSettings | CircularSettings
_Fresh = QueueSettings | RolloutSettings
AnySelector = UniformSettings | NewestSettings | _Fresh | PrioritizedSettings | EliteSettings | AttentiveSettings
_TYPES: dict[str, type[_Entry]] = {kind.model_fields["type"].default: kind for kind in get_args(AnySelector)}


def _own_settings(entries: Any) -> Any:
    if not isinstance(entries, list | tuple):
        return entries
    return [_own_entry(entry, f"replay.selectors.{index}") for index, entry in enumerate(entries)]


def _own_entry(entry: Any, place: str) -> Any:
    """An entry as its model takes it.

    Understands the entries of elite_buffer_vtrace, other names for a setting, and a missing type. A setting of another
    type would have no effect: it is dropped if it has that type's default, because it may come from a complete list of
    settings, and refused otherwise.
    """
    if not isinstance(entry, Mapping):
        return entry
    data = {"type": "uniform", **(translate(entry) if is_original(entry) else entry)}
    model = _TYPES.get(str(data["type"]))
    if model is None:
        return data
    for alias, name in _Scored.ALIASES.items():
        if alias in data and name in data:
            raise ConfigError(f"{place}: {alias} and {name} are the same setting: give one of them.")
        if alias in data:
            data[name] = data.pop(alias)
    for name in data.keys() - model.model_fields.keys():
        owners = {kind: other for kind, other in _TYPES.items() if name in other.model_fields}
        if owners and data[name] != next(iter(owners.values())).model_fields[name].default:
            value = data[name] if isinstance(data[name], str) else json.dumps(data[name], default=str)
            found = f"{place}.{name} = {value} has no effect on {data['type']}"
            raise ConfigError(f"{found}; it belongs to {' and '.join(owners)}.")
        if owners:
            del data[name]
    return data


_OneSelector = Annotated[AnySelector, Field(discriminator="type")]
SelectorList = Annotated[tuple[_OneSelector, ...], BeforeValidator(_own_settings)]
"""Ways to choose rows, each with its share of every batch."""
