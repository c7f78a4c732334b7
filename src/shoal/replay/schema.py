"""Schema: the columns of one step.

Every shard has the same first columns: the stream of steps (`obs, action, reward, terminated, truncated, boundary`) and
the version of the weights that acted. An algorithm's policy adds what it records (`priority`, `log_prob`, `logits`, a
recurrent state …).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.errors import CorruptShard, WrongSchema
from shoal.types import EnvSpec

STREAM_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "boundary", "weights_version")


@dataclass(frozen=True)
class Column:
    """One column: a name, a numpy dtype name and the shape of one lane's entry."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @cached_property
    def nbytes(self) -> int:
        """Bytes of one entry."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" if self.shape else self.dtype


@dataclass(frozen=True)
class Schema:
    """The columns of one step, and how many stored frames make one observation."""

    columns: tuple[Column, ...]
    frame_stack: int = 1

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise WrongSchema(f"Column names repeat: {names}. Give every recorded column its own name.")
        if self.frame_stack < 1:
            raise WrongSchema(f"frame_stack is {self.frame_stack}; use 1 when nothing is stacked.")

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise WrongSchema(f"No column {name!r}; this schema has {', '.join(self.names)}.")

    def __contains__(self, name: str) -> bool:
        return any(column.name == name for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of the columns that a policy adds."""
        return tuple(name for name in self.names if name not in STREAM_COLUMNS)

    @property
    def bytes_per_step(self) -> int:
        """Bytes one step of one lane takes."""
        return sum(column.nbytes for column in self.columns)

    def difference(self, other: Schema, names: Iterable[str]) -> str:
        """Why rows of `other` cannot be read as rows of this schema; empty when the named columns are equal."""
        for name in names:
            if name not in other:
                return f"{name} is missing"
            if self[name] != other[name]:
                return f"{name} is {other[name]} there and {self[name]} here"
        if self.frame_stack != other.frame_stack:
            return f"{other.frame_stack} frames are stacked there and {self.frame_stack} here"
        return ""

    def to_json(self) -> dict[str, Any]:
        """A plain description, for `schema.json`."""
        columns = [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape)} for c in self.columns]
        return {"columns": columns, "frame_stack": self.frame_stack}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Schema:
        """The inverse of `to_json`."""
        try:
            columns = tuple(
                Column(str(c["name"]), np.dtype(str(c["dtype"])).name, tuple(int(n) for n in c["shape"]))
                for c in data["columns"]
            )
            return Schema(columns, int(data["frame_stack"]))
        except (KeyError, TypeError, ValueError, WrongSchema) as error:
            raise CorruptShard(f"Unreadable schema: {error!r}.") from error


def step_schema(spec: EnvSpec, extras: tuple[Column, ...] = ()) -> Schema:
    """The schema of an environment's stream plus an algorithm's recorded columns."""
    action_dtype = "float32" if spec.continuous else "int64"
    stream = (
        Column("obs", spec.obs_dtype, spec.frame_shape),
        Column("action", action_dtype, spec.action_shape),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
        Column("boundary", "uint8"),
        Column("weights_version", "uint32"),
    )
    return Schema(stream + extras, spec.frame_stack)
