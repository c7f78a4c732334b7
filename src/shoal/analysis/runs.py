"""Run folders as a comparison sees them, and the groups they form.

A group is a folder. Every folder inside it, at any depth, with a `metrics.jsonl` is one of its runs. The folder above a
run is its launch: runs that were started together, and may have shared data.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from shoal.analysis.curves import Readings, make_readings
from shoal.errors import ConfigError, UnknownName
from shoal.files import read_object
from shoal.metrics_file import METRICS_FILE, read_lines

METRICS = {"eval": "eval/mean_reward", "rollout": "rollout/ep_rew_mean"}
"""What `--metric` calls them, and what metrics.jsonl does."""
Unit = Literal["launches", "runs", "nothing"]
"""What is drawn for a bootstrap."""
_FOREIGN = "share/foreign_fraction"
_PEER = re.compile(r"share/(.+)/fraction")


@dataclass(frozen=True)
class ComparedRun:
    """One run folder.

    Attributes:
        path, launch: its folder, and the one above it.
        seed, status, env: from run.json, summary.json and config.yaml; None if unknown.
        readings: by the metric's name in metrics.jsonl; empty ones are left out.
        foreign_fraction: share of other runs' data in all it learned from; NaN if unknown.
        peers: the same by peer.
        last_step, wall_seconds: the largest in its metrics.
        damaged: how many lines of its metrics could not be read.
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
    def unit(self) -> Unit:
        return "launches" if len(self.launches) > 1 else "runs" if len(self.runs) > 1 else "nothing"

    @property
    def units(self) -> int:
        """How many units there are to draw from."""
        return len(self.launches) if self.unit == "launches" else len(self.runs)

    @property
    def shared(self) -> bool:
        """Whether any of its runs learned from another one's data."""
        return any(run.foreign_fraction > 0 for run in self.runs)

    def describe(self) -> str:
        """`5 launches of 4 runs`."""
        sizes, runs = set(self.launches.values()), counted(len(self.runs), "run")
        if len(self.runs) == 1:
            return runs
        launches = counted(len(self.launches), "launch", "launches")
        return f"{launches} of {counted(sizes.pop(), 'run')}" if len(sizes) == 1 else f"{runs} in {launches}"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def read_groups(paths: Sequence[Path]) -> list[RunGroup]:
    """Reads groups and gives each a unique name: the shortest end of its path that no other group has."""
    groups: dict[Path, RunGroup] = {}
    for path in paths:
        group = read_group(path)
        if group.path in groups:
            raise ConfigError(f"{path} was given twice. Name another group to compare it with.")
        groups[group.path] = group
    return [replace(group, name=_unique_name(group.path, groups)) for group in groups.values()]


def _unique_name(path: Path, paths: Collection[Path]) -> str:
    parts = 1
    while sum(other.parts[-parts:] == path.parts[-parts:] for other in paths) > 1:
        parts += 1
    name = "/".join(path.parts[-parts:])
    return name.encode("utf-8", "replace").decode()  # figures take no bytes that this locale cannot decode


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
            f"{path} holds no run: neither it nor a folder inside it, at any depth, has a {METRICS_FILE} (links are "
            "not followed). Name a folder with runs in it, or the folder of a run."
        )
    return RunGroup(root.name, root, runs)


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, inside, files in os.walk(root):
        inside.sort()
        if METRICS_FILE in files:
            inside.clear()  # nothing inside a run is another run
            yield Path(folder)


def _read_run(path: Path) -> ComparedRun:
    try:
        lines = read_lines(path / METRICS_FILE, unfinished=True)
    except OSError as error:
        raise ConfigError(f"Cannot read {path / METRICS_FILE}: {error.strerror}.") from error
    rows = [line.values for line in lines if line.values is not None]
    readings = {name: found for name in METRICS.values() if len((found := _readings(rows, name)).step)}
    peers = {match[1] for row in rows for name in row if (match := _PEER.fullmatch(name))}
    info, summary = read_object(path / "run.json"), read_object(path / "summary.json")
    seed, status = info.get("seed"), summary.get("status")
    return ComparedRun(
        path=path,
        launch=path.parent,
        seed=seed if isinstance(seed, int) else None,
        status=status if isinstance(status, str) else None,
        env=_env_id(read_object(path / "config.yaml")) or _env_id(info),
        readings=readings,
        foreign_fraction=_last(rows, _FOREIGN),
        peers={peer: _last(rows, f"share/{peer}/fraction") for peer in sorted(peers)},
        last_step=max((float(row["step"]) for row in rows), default=math.nan),
        wall_seconds=max((float(row["wall"]) for row in rows), default=math.nan),
        damaged=len(lines) - len(rows),
    )


def _readings(rows: list[dict[str, Any]], name: str) -> Readings:
    there = [row for row in rows if row.get(name) is not None]
    return make_readings(*([row[column] for row in there] for column in ("step", "wall", name)))


def _last(rows: list[dict[str, Any]], name: str) -> float:
    """The last reading of a number that counts all samples since the start."""
    return next((float(row[name]) for row in reversed(rows) if row.get(name) is not None), math.nan)


def _env_id(document: Mapping[str, Any]) -> str | None:
    env = document.get("env", document.get("env_id"))
    if isinstance(env, dict):
        env = env.get("id")
    return env if isinstance(env, str) else None
