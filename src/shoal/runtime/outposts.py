"""The folder of an outpost, on its node: made, found again, freed. Called there, in tasks of their own.

`owner.json` in it holds the run's mark, as in home's replay folder, so that a resumed run finds its outposts wherever
it is started, and `shoal clean` knows whose they are.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import CorruptShard
from shoal.files import read_object
from shoal.loops.counts import Counts, total
from shoal.loops.plan import Plan
from shoal.loops.preparation import Start, needed_bytes, prepare_outpost
from shoal.loops.run_paths import RunPaths
from shoal.replay import Header, ShardReader
from shoal.replay.counters import Counters
from shoal.replay.mirror import steps_before
from shoal.replay.shard import LAST_ROW_SECONDS
from shoal.replay.storage import choose_folder, replay_folders
from shoal.runtime.replay_folder import ON_DISK, in_use, not_safe
from shoal.runtime.run_folder import RunFolder

OWNER = "owner.json"


@dataclass(frozen=True)
class FoundOutpost:
    """An outpost's folder that an earlier execution left on a node."""

    path: Path
    run: Path
    """The run folder that signed it."""
    starts: Mapping[int, Start]
    """Where a mirror of each shard begins: at its oldest row."""
    counts: Counts
    """Of all its shards."""
    epoch: int
    """Of its shards: the larger, the later; see `preparation`."""


def open_outpost(
    plan: Plan, run: Path, mark: str, roles: int, starts: Mapping[int, Start], version: int, path: Path | None
) -> tuple[Path, list[str]]:
    """Makes or opens an outpost's folder on this node.

    Args:
        plan: the run's plan, for this outpost.
        run: the run's folder, which may not exist on this node.
        mark: the run's.
        roles: how many roles the run has.
        starts: how far home is with each of the actors.
        version: of home's weights.
        path: of a folder that was found here; None makes one.

    Returns:
        Its path, and notes on what could not be reused.
    """
    if path is None:
        name = f"{run.name}-outpost-{plan.outpost}"
        path = choose_folder(name, needed_bytes(plan, roles), plan.settings.replay.path, run / ON_DISK)
    RunFolder(path).write_json(OWNER, {"run": str(run), "mark": mark, "outpost": True})
    return path, prepare_outpost(plan.at(RunPaths(path, plan.paths.checkpoints)), roles, run.name, starts, version)


def find_outposts(mark: str, run: Path, requested: Path | None) -> list[FoundOutpost]:
    """The outposts of a run on this node. What its earlier execution still has running here can write no more.

    Args:
        mark: the run's.
        run: its folder, which the caller has locked: nobody else executes this run.
        requested: its `replay.path`.
    """
    found = (_look_at(path, mark, run) for path in _candidates(run, requested))
    return [one for one in found if one is not None]


def free_outposts(mark: str, run: Path, requested: Path | None, only: Path | None = None) -> None:
    """Removes all outposts of a run from this node, also one that was given up, on a node that came back; or one."""
    for path in _candidates(run, requested) if only is None else [only]:
        owner = read_object(path / OWNER)
        if owner.get("mark") == mark and owner.get("outpost") and owner.get("run") == str(run):
            shutil.rmtree(path, ignore_errors=True)


def _candidates(run: Path, requested: Path | None) -> Iterator[Path]:
    """Where `open_outpost` may have made a folder."""
    yield from replay_folders()
    for place in (run / ON_DISK, *([] if requested is None else [requested])):
        if place.is_dir() and not place.is_symlink():
            yield from (path for path in sorted(place.iterdir()) if path.is_dir() and not path.is_symlink())


def _look_at(path: Path, mark: str, run: Path) -> FoundOutpost | None:
    owner = read_object(path / OWNER)
    if owner.get("mark") != mark or not owner.get("outpost") or not_safe(path):
        return None
    if owner.get("run") != str(run) and in_use(path, path):  # a copy of this run, or this one before it was moved
        return None
    _stop_writers(path)
    starts, counts, epoch = dict[int, Start](), list[Counts](), 0
    for folder in sorted(path.glob("shard_[0-9]*")):
        if not (folder / "schema.json").exists() or not folder.name[6:].isdigit():  # a header alone, or set aside
            continue
        try:
            reader = ShardReader(folder)
        except CorruptShard:
            continue
        oldest, header = reader.oldest, reader.header
        words = {Header.HEAD: oldest, Header.CLAIM: oldest, Header.STEPS: steps_before(reader, oldest)}
        words |= {Header.EPOCH: header[Header.EPOCH], Header.CUTS: 0}
        words[Header.CURSOR] = max(oldest, header[Header.CURSOR])  # a queue does not hand out again what it has
        words[Header.EPISODES] = min(header[Header.EPISODES], oldest * reader.lanes)
        counts.append(Counts(reader.steps, header[Header.EPISODES]))
        coming = Counts(reader.steps - words[Header.STEPS], header[Header.EPISODES] - words[Header.EPISODES])
        starts[int(folder.name[6:])] = Start(words, coming=coming)
        epoch = max(epoch, header[Header.EPOCH])
    return FoundOutpost(path, Path(str(owner.get("run"))), starts, total(counts), epoch) if starts else None


def _stop_writers(path: Path) -> None:
    """When home dies, Ray needs some time to end the outposts' actors: until then they would go on writing, and the
    counts of their shards would not be final.
    """
    shards = [shard for shard in path.glob("shard_[0-9]*") if (shard / "schema.json").exists()]
    for shard in shards:
        with suppress(CorruptShard):
            Counters(shard / "header.bin", writable=True).add(Header.EPOCH, 1)
    if shards:
        time.sleep(LAST_ROW_SECONDS)
