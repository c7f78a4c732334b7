"""What environments say of a finished episode, beside its return and length: numbers by name.

One environment says it in the info of an episode's last step: `info["episode_metrics"] = {name: number}`, and
`info["is_success"]`, as Stable-Baselines3 reads it, for whether the episode reached its goal.

A vector environment of N lanes says it as Gymnasium merges such infos:

    info["episode_metrics"] = {name: array [N]}   NaN where a lane says nothing under this name
    info["_episode_metrics"] = bool [N]           lanes whose episode ended in this step; may be left out
    info["is_success"], info["_is_success"]       the same for this one number

An environment with levels also reports the level of the episode, as `level.NAME` for each number of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

METRICS, SUCCESS, LEVEL = "episode_metrics", "is_success", "level."
Metrics = dict[str, float]


def told_by_one(info: Mapping[str, Any], level: Mapping[str, float]) -> Metrics:
    """What the last info of an ordinary environment's episode says, and the level that it was played at."""
    found = {name: float(value) for name, value in info.get(METRICS, {}).items()}
    if SUCCESS in info:
        found[SUCCESS] = float(info[SUCCESS])
    return found | {LEVEL + name: value for name, value in level.items()}


def merge(lanes: int, told: Mapping[int, Metrics]) -> dict[str, Any]:
    """The info of a vector environment, from what lanes whose episode ended say."""
    if not any(told.values()):
        return {}
    names = dict.fromkeys(name for metrics in told.values() for name in metrics)
    values = {name: np.full(lanes, math.nan) for name in names}
    ended = np.zeros(lanes, np.bool_)
    for lane, metrics in told.items():
        ended[lane] = True
        for name, value in metrics.items():
            values[name][lane] = value
    return {METRICS: values, f"_{METRICS}": ended}


def told_by_lanes(info: Mapping[str, Any], lanes: Sequence[int]) -> list[Metrics]:
    """What a vector environment's info says of the episodes that ended in these lanes."""
    found: list[Metrics] = [{} for _ in lanes]
    named = {name: (values, info.get(f"_{METRICS}")) for name, values in info.get(METRICS, {}).items()}
    if SUCCESS in info:
        named[SUCCESS] = (info[SUCCESS], info.get(f"_{SUCCESS}"))
    for name, (values, said) in named.items():
        if name.startswith("_"):  # Gymnasium's own masks within a merged dict
            continue
        for metrics, lane in zip(found, lanes, strict=True):
            value = float(values[lane])
            if not math.isnan(value) and (said is None or said[lane]):
                metrics[name] = value
    return found


def level_of(metrics: Mapping[str, float]) -> Metrics:
    """The level that an episode was played at; empty if it does not say."""
    return {name.removeprefix(LEVEL): value for name, value in metrics.items() if name.startswith(LEVEL)}


def mean_metrics(some: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each metric, averaged over those that report it."""
    found: dict[str, list[float]] = {}
    for metrics in some:
        for name, value in metrics.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}
