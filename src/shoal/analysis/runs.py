"""Run folders as a comparison sees them, and the groups they form.

A group is a folder. Whatever folder inside it, at any depth, has a `metrics.jsonl` is one of its runs; the folder
directly above a run is its launch: runs that were started together, and may have shared data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.analysis.curves import Readings, make_readings
from shoal.errors import ConfigError, UnknownName, UnsafePath
from shoal.files import open_file, read_file, read_object

METRICS = {"eval": "eval/mean_reward", "rollout": "rollout/ep_rew_mean"}
"""What `--metric` calls them, and what metrics.jsonl does."""
_FILE = "metrics.jsonl"
_LARGEST_CONFIG = 2**24  # bytes
_FOREIGN = "share/foreign_fraction"
_PEER = re.compile(r"share/(.+)/fraction")


@dataclass(frozen=True)
class ComparedRun:
    """What one run folder says.

    Attributes:
        path, launch: its folder, and the one above it.
        seed, status, env: from run.json, summary.json and config.yaml; None where they do not say.
        readings: by the metric's name in metrics.jsonl; empty ones are left out.
        foreign_fraction: share of other runs' data in all it learned from; NaN if it did not say.
        peers: the same by peer.
        last_step, wall_seconds: the largest in its metrics.
        damaged: lines of its metrics that could not be read.
    """

    path: Path
    launch: Path
    seed: int | None
    status: str | None
    env: str | None
    readings: Mapping[str, Readings]
    foreign_fraction: float
    peers: Mapping[str, float]
    last_step: float
    wall_seconds: float
    damaged: int


@dataclass(frozen=True)
class RunGroup:
    """A folder of runs."""

    name: str
    path: Path
    runs: tuple[ComparedRun, ...]

    @property
    def launches(self) -> Counter[Path]:
        """How many runs each launch has."""
        return Counter(run.launch for run in self.runs)

    @property
    def shared(self) -> bool:
        """Whether any of its runs learned from another one's data."""
        return any(run.foreign_fraction > 0 for run in self.runs)

    def describe(self) -> str:
        """`5 launches of 4 runs`."""
        sizes = sorted(set(self.launches.values()))
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        if len(self.launches) < 2:
            return runs if len(self.runs) == 1 else f"1 launch of {runs}"
        if len(sizes) == 1:
            return f"{len(self.launches)} launches of {sizes[0]} run{'s' if sizes[0] > 1 else ''}"
        return f"{runs} in {len(self.launches)} launches"


def read_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Reads groups and gives each a name of its own: the end of its path, as much of it as is needed."""
    groups: dict[Path, RunGroup] = {}
    for path in paths:
        group = read_group(path)
        if group.path in groups:
            raise ConfigError(f"{path} was given twice. Name another group to compare it with.")
        groups[group.path] = group
    named = []
    for group in groups.values():
        others = [other for other in groups if other != group.path]
        parts = 1
        while any(other.parts[-parts:] == group.path.parts[-parts:] for other in others):
            parts += 1
        name = "/".join(group.path.parts[-parts:])
        name = name.encode("utf-8", "replace").decode()  # a figure takes no letters that are only bytes to this locale
        named.append(RunGroup(name, group.path, group.runs))
    return named


def read_group(path: Path) -> RunGroup:
    """Reads all runs of a folder. It may be a link; links inside it, such as `latest`, are not followed."""
    if not path.exists():
        beside = path.parent if path.parent.is_dir() else Path()
        known = [str(one) for one in beside.iterdir() if one.is_dir() and not one.name.startswith(".")]
        raise UnknownName("folder", str(path), known, "A group is a folder with runs in it.")
    if not path.is_dir():
        raise ConfigError(f"{path} is a file. Name the folder of a run, or one with runs in it.")
    root = path.resolve()
    runs = tuple(_read_run(one) for one in _run_folders(root))
    if not runs:
        raise ConfigError(
            f"{path} holds no run: neither it nor a folder inside it, at any depth, has a {_FILE} (links are not "
            "followed). Name a folder with runs in it, or the folder of a run."
        )
    return RunGroup(root.name, root, runs)


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(root):
        inside.sort()
        if _FILE in files:
            inside.clear()  # nothing inside a run is another run
            yield Path(folder)


def _read_run(path: Path) -> ComparedRun:
    rows, damaged = read_rows(path / _FILE)
    readings = {name: found for name in METRICS.values() if len((found := _readings(rows, name)).step)}
    peers = {match[1] for row in rows for name in row if (match := _PEER.fullmatch(name))}
    info, summary = _document(path / "run.json"), _document(path / "summary.json")
    seed, status = info.get("seed"), summary.get("status")
    return ComparedRun(
        path=path,
        launch=path.parent,
        seed=seed if isinstance(seed, int) else None,
        status=status if isinstance(status, str) else None,
        env=_env_id(_document(path / "config.yaml")) or _env_id(info),
        readings=readings,
        foreign_fraction=_last(rows, _FOREIGN),
        peers={peer: _last(rows, f"share/{peer}/fraction") for peer in sorted(peers)},
        last_step=max((float(row["step"]) for row in rows), default=math.nan),
        wall_seconds=max((float(row["wall"]) for row in rows), default=math.nan),
        damaged=damaged,
    )


def read_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All lines that are whole and have a step and a time, and how many were not: a killed run leaves a torn one."""
    rows, damaged = [], 0
    try:
        with open_file(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    for line in lines:
        if not line.strip():
            continue
        row = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
        if isinstance(row, dict) and _is_number(row.get("step")) and _is_number(row.get("wall")):
            rows.append(row)
        else:
            damaged += 1
    return rows, damaged


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _readings(rows: list[dict[str, Any]], name: str) -> Readings:
    there = [row for row in rows if _is_number(row.get(name))]
    return make_readings(*([row[column] for row in there] for column in ("step", "wall", name)))


def _last(rows: list[dict[str, Any]], name: str) -> float:
    """The last reading: these count all samples since the start."""
    return next((float(row[name]) for row in reversed(rows) if _is_number(row.get(name))), math.nan)


def _document(path: Path) -> dict[str, Any]:
    """A JSON or YAML file; empty when it is not there or damaged: what it says is good to know, not needed."""
    import yaml

    content = None
    if path.suffix != ".yaml":
        return read_object(path)
    with contextlib.suppress(OSError, ValueError, RecursionError, UnsafePath, yaml.YAMLError):
        content = yaml.safe_load(read_file(path, _LARGEST_CONFIG).decode())
    return content if isinstance(content, dict) else {}


def _env_id(document: Mapping[str, Any]) -> str | None:
    env = document.get("env", document.get("env_id"))
    if isinstance(env, dict):
        env = env.get("id")
    return env if isinstance(env, str) else None
