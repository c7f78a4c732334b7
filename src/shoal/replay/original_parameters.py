"""Translates the `--replay_parameters` of elite_buffer_vtrace.

Its entries are objects such as `{"type": "custom", "capacity": 1000, "sample_ratio": 0.5, "dist_function": "ln_norm",
"sample_strategy": "elite_sampling", "lambda_batch_multiplier": 6}`. They mean the same here, with two exceptions: the
closest candidates are the most alike (its `cos_dist` preferred the least alike), and some states of every candidate are
compared instead of all; `compared_steps` says how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.errors import ConfigError, UnknownName

TYPES = ("queue", "standard", "custom")
_PLAIN = ("type", "capacity", "sample_ratio")
_SCORED = ("dist_function", "p", "sample_strategy", "lambda_batch_multiplier", "alfa_annealing_factor")
_CUSTOM = (*_PLAIN, *_SCORED, "insert_strategy", "elite_sampling_strategy", "elite_batch_size")
_DISTANCES = {"ln_norm": "l2", "cos_dist": "cosine", "kl_div": "kl"}
_SAMPLING = {"elite_sampling": "elite", "attentive_sampling": "attentive"}
_STRATEGIES = {f"strategy{number}": number for number in (1, 2, 3, 4)}


def is_original(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is one of elite_buffer_vtrace's."""
    return "sample_ratio" in entry or entry.get("type") in TYPES


def translate(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same selector as an entry of `replay.selectors`.

    Raises:
        UnknownName: a key or name that it does not have.
        ConfigError: a combination that is not supported.
    """
    kind = _known("type", entry.get("type", "standard"), TYPES)
    for key in entry:
        _known("replay parameter", key, _CUSTOM if kind == "custom" else _PLAIN)
    translated = {"ratio": entry.get("sample_ratio", 1.0)}
    if "capacity" in entry:
        translated["capacity"] = entry["capacity"]
    if kind == "queue":
        return {"type": "fifo", "on_full": "wait", **translated}
    if kind == "standard":
        return {"type": "uniform", **translated}
    custom = _custom(entry)  # checks all names, even if they are not used
    if not {"sample_strategy", "insert_strategy"} & set(entry):
        return {"type": "uniform", **translated}
    return custom | translated


def _custom(entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry.get("p", 2) != 2:
        raise ConfigError(f"p = {entry['p']} cannot be used: ln_norm is the Euclidean distance here, p = 2.")
    distance = _known("dist_function", entry.get("dist_function", "ln_norm"), _DISTANCES)
    translated: dict[str, Any] = {"type": "elite", "distance": _DISTANCES[distance], "candidates": 1.0, "anneal": 1.0}
    if "sample_strategy" in entry:
        translated["type"] = _SAMPLING[_known("sample_strategy", entry["sample_strategy"], _SAMPLING)]
        translated["candidates"] = entry.get("lambda_batch_multiplier", 1.0)
        translated["anneal"] = entry.get("alfa_annealing_factor", 1.0)
    elite = [key for key in ("insert_strategy", "elite_sampling_strategy", "elite_batch_size") if key in entry]
    if translated["type"] == "attentive" and elite:
        raise ConfigError(f"{', '.join(elite)} cannot be used with attentive_sampling: use elite_sampling.")
    if "insert_strategy" in entry:
        _known("insert_strategy", entry["insert_strategy"], ("elite_insertion",))
        translated |= {"insertion": True, "insertion_sample": entry.get("elite_batch_size", 20)}
    if "elite_sampling_strategy" in entry:
        strategy = _known("elite_sampling_strategy", entry["elite_sampling_strategy"], _STRATEGIES)
        translated["strategy"] = _STRATEGIES[strategy]
    return translated


def _known(kind: str, name: Any, known: Any) -> str:
    if name not in known:
        raise UnknownName(kind, str(name), known)
    return str(name)
