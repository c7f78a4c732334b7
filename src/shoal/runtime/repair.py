"""What a damaged run folder can still say. A document that cannot be read is set aside, with a note, and the run goes
on without it: nothing in it is needed but the settings and a checkpoint or the replay.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from shoal.errors import CheckpointError, ConfigError, UnsafePath
from shoal.files import read_object
from shoal.loops.counts import Counts, checkpoint_counts
from shoal.loops.preparation import set_aside
from shoal.replay.counters import LARGEST_COUNT
from shoal.replay.storage import replay_folders
from shoal.runtime.metrics import keep_whole_lines, whole_lines
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.summary import read_summary

_COUNTED = ("step", "rollout/episodes", "train/updates")
"""Counts in a line of metrics."""


def repair(folder: RunFolder) -> list[str]:
    """Sets aside what is damaged; returns a note on each. For the owner of the folder, before anything is written."""
    notes = []
    try:
        read_summary(folder.summary_json)
    except ConfigError:
        notes.append(f"summary.json is damaged; it is set aside as {set_aside(folder.summary_json)}")
    for path in (folder.path / name for name in ("resumed.json", "processes.json")):
        if os.path.lexists(path) and not read_object(path):
            notes.append(f"{path.name} is damaged; it is set aside as {set_aside(path)}")
    if damaged := keep_whole_lines(folder.metrics_jsonl, set_aside):
        notes.append(f"metrics.jsonl is damaged: {damaged}")
    return notes + list(_repair_pointer(folder))


def _repair_pointer(folder: RunFolder) -> Iterator[str]:
    """`replay.json` says where the replay is; the replay's own signature names the run, too."""
    pointer = folder.replay_json
    if isinstance(read_object(pointer).get("path"), str):
        return
    damaged = os.path.lexists(pointer)
    if damaged:
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
        rows = [row for _, row in whole_lines(folder.metrics_jsonl) if row is not None]
        found += [tuple(int(row.get(name) or 0) for name in _COUNTED) for row in rows]
    believed = [counts for counts in found if all(0 <= count <= LARGEST_COUNT for count in counts)]
    return Counts(*map(max, zip(*believed, strict=True))) if believed else Counts()
