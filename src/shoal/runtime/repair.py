"""Repairs a damaged run folder. A document that cannot be read is set aside, with a note, and the run goes on without
it: a run needs only its settings, and a checkpoint or its replay.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from shoal.errors import CheckpointError, ConfigError, UnsafePath
from shoal.files import atomic_write, read_object
from shoal.loops.counts import Counts, checkpoint_counts
from shoal.loops.preparation import set_aside
from shoal.metrics_file import read_lines, read_whole_lines
from shoal.replay.counters import LARGEST_COUNT
from shoal.replay.storage import replay_folders
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.summary import read_summary

_COUNTED = ("step", "rollout/episodes", "train/updates")
"""Counts in a line of metrics."""


def repair(folder: RunFolder) -> list[str]:
    """Sets aside what is damaged; returns a note on each. For the owner of the folder, before anything is written."""
    return [*_repair_documents(folder), *_repair_metrics(folder), *_repair_pointer(folder)]


def _repair_documents(folder: RunFolder) -> Iterator[str]:
    try:
        read_summary(folder.summary_json)
    except ConfigError:
        yield f"summary.json is damaged; it is set aside as {set_aside(folder.summary_json)}"
    for path in (folder.path / name for name in ("resumed.json", "processes.json")):
        if os.path.lexists(path) and not read_object(path):
            yield f"{path.name} is damaged; it is set aside as {set_aside(path)}"


def _repair_metrics(folder: RunFolder) -> Iterator[str]:
    """Sets a damaged `metrics.jsonl` aside and leaves its whole lines in its place."""
    path = folder.metrics_jsonl
    try:
        lines = read_lines(path)
    except (OSError, UnsafePath) as error:
        if path.is_symlink():  # somebody wants the run to write elsewhere, or the user has a reason: ask
            raise
        why = error.strerror if isinstance(error, OSError) else "it is not an ordinary file"
        yield f"metrics.jsonl is damaged: {why}; it is set aside as {set_aside(path)}"
        return
    whole = [line.text + b"\n" for line in lines if line.values is not None]
    if len(whole) < len(lines):
        lost, aside = f"{len(lines) - len(whole)} of {len(lines)} lines cannot be read", set_aside(path)
        atomic_write(path, b"".join(whole))
        yield f"metrics.jsonl is damaged: {lost}; the whole file is kept as {aside}"


def _repair_pointer(folder: RunFolder) -> Iterator[str]:
    """`replay.json` says where the replay is; the replay's own signature names the run, too."""
    pointer = folder.replay_json
    if isinstance(read_object(pointer).get("path"), str):
        return
    if os.path.lexists(pointer):
        yield f"replay.json is damaged; it is set aside as {set_aside(pointer)}"
    for replay in (*replay_folders(), *folder.path.glob("replay_on_disk/*")):
        owner = read_object(replay / "owner.json")
        if owner.get("run") == str(folder.path):
            signed = {"mark": owner["mark"]} if "mark" in owner else {}
            folder.write_json("replay.json", {"path": str(replay), **signed})
            yield f"the replay was found by its signature: {replay}"
            return


def known_counts(folder: RunFolder) -> Counts:
    """The most that the run's checkpoints, metrics and summary count."""
    found: list[tuple[int, ...]] = []
    with contextlib.suppress(CheckpointError, KeyError, TypeError, ValueError):
        found.append(checkpoint_counts(folder.checkpoints))
    with contextlib.suppress(ConfigError):
        if (summary := read_summary(folder.summary_json)) is not None:
            found.append((summary.env_steps, summary.episodes, summary.updates))
    with contextlib.suppress(OSError, UnsafePath):
        rows = read_whole_lines(folder.metrics_jsonl)
        found += [tuple(int(row.get(name) or 0) for name in _COUNTED) for row in rows]
    believed = [counts for counts in found if all(0 <= count <= LARGEST_COUNT for count in counts)]
    return Counts(*map(max, zip(*believed, strict=True))) if believed else Counts()
