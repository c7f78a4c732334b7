"""`summary.json`: the result of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from pydantic import TypeAdapter

from shoal.errors import ConfigError
from shoal.files import read_json

Status = Literal["solved", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Summary:
    """The result of a run. A number that is unknown is NaN here and null in `summary.json`."""

    status: Status
    env_steps: int
    episodes: int
    updates: int
    wall_seconds: float
    train_return_mean: float
    eval_return_mean: float
    eval_return_std: float
    steps_per_second: float
    updates_per_second: float
    samples_per_insert: float
    staleness_mean: float
    learner_wait_fraction: float
    actor_wait_fraction: float
    bottleneck: str
    restarts: int
    replay_bytes: int
    error: str | None = None
    ray_calls: int | None = None
    startup_seconds: float | None = None
    best_checkpoint: str | None = None
    health: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in (known := get_args(Status)):
            raise ValueError(f"status must be one of {', '.join(known)}, got {self.status!r}")

    @classmethod
    def not_begun(cls, error: str) -> Summary:
        """The summary of a run that failed before its first step."""
        return cls("failed", 0, 0, 0, 0.0, *(math.nan,) * 9, "the run did not begin", 0, 0, error)


def read_summary(path: Path) -> Summary | None:
    """Reads `summary.json`; None when there is no such file.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
        numbers = [field.name for field in fields(Summary) if field.type == "float"]
        content |= {name: math.nan for name in numbers if content.get(name) is None}
        return TypeAdapter(Summary).validate_python(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"{path} is damaged ({why}). Remove it: `shoal resume` goes on without it and writes it again."
        ) from error
