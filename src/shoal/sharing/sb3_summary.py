"""Sb3Summary: what came out of a Stable-Baselines3 run, as its `summary.json` holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Sb3Summary:
    """What came out of a run; a number that is not known is NaN."""

    status: Literal["finished", "interrupted", "failed"]
    env_steps: int = 0
    episodes: int = 0
    wall_seconds: float = math.nan
    train_return_mean: float = math.nan
    eval_return_mean: float = math.nan
    eval_return_std: float = math.nan
    steps_per_second: float = math.nan
    """Evaluations not counted."""
    foreign_fraction: float = math.nan
    error: str | None = None
