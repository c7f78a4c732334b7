"""`shoal clean`: frees the memory and disk space of replays whose runs have ended. Live runs are never touched."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli.output import relative
from shoal.errors import RunInUse, ShoalError
from shoal.files import is_own_folder, read_object

State = Literal["live", "resumable", "kept", "gone", "dead"]

_MEANING: dict[State, str] = {
    "live": "in use",
    "resumable": "its run can be resumed with it",
    "kept": "its run was told to keep it",
    "gone": "its run's folder is gone or was moved",
    "dead": "nobody needs it",
}
_NEW_SECONDS = 60.0
"""A replay younger than this may belong to a run that has not yet signed it."""


@dataclass(frozen=True)
class LeftReplay:
    """A replay that takes memory or disk space."""

    path: Path
    run: Path | None
    state: State
    nbytes: int


def clean(
    everything: Annotated[bool, typer.Option("--all", help="Also remove what runs could be resumed with.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list.")] = False,
    runs: Annotated[
        Path, typer.Option("--runs", metavar="DIR", help="Also look for replays on disk, of the runs in this folder.")
    ] = Path("runs"),
) -> None:
    """Free what the replays of ended runs hold.

    Replays of runs that ended well are removed. Those of runs that can be resumed, or whose folder is gone or was
    moved, are removed with --all, or when you say so; such a run can still be resumed, but with its weights only. Live
    runs are never touched.

    \b
    Examples:
      shoal clean --dry-run
      shoal clean
      shoal clean --all --yes
    """
    from shoal.replay.storage import gib

    found = sorted(find_left_replays(runs), key=lambda left: (left.state, left.path))
    if not found:
        typer.echo("No replay is held: nothing to free.")
        return
    for left in found:
        run = "(unknown run)" if left.run is None else relative(left.run)
        typer.echo(f"{gib(left.nbytes):>10}  {left.state:<9}  {run}  {left.path}  ({_MEANING[left.state]})")
    chosen = [left for left in found if left.state == "dead"]
    wanted = [left for left in found if left.state in ("resumable", "kept", "gone")]
    if not dry_run and wanted and _agreed(wanted, everything, yes):
        chosen += wanted
    if dry_run:
        typer.echo(f"\nWould free {gib(sum(left.nbytes for left in chosen))}.")
        return
    freed = sum(left.nbytes for left in chosen if _removed(left))
    typer.echo(f"\nFreed {gib(freed)}.")
    if wanted and wanted[0] not in chosen:
        typer.echo(f"{len(wanted)} that can still be of use stay: `shoal clean --all` frees them, too.")


def find_left_replays(runs: Path) -> Iterator[LeftReplay]:
    """Every replay of this user on shared memory, and those on disk that belong to, or lie in, the runs of a folder."""
    from shoal.replay.storage import replay_folders, sharing_folders

    pointed = dict(_pointed(runs))
    for path in dict.fromkeys([*replay_folders(), *sharing_folders(), *pointed]):
        yield _look_at(path, pointed.get(path))


def _pointed(runs: Path) -> Iterator[tuple[Path, Path]]:
    """Replays that runs point to, with these runs. Only folders that the run has signed: a wrong pointer must not
    delete other files. Also replays inside a run's folder: a copied run has one that it does not point to.
    """
    from shoal.runtime.replay_folder import ON_DISK, own_replay
    from shoal.runtime.run_folder import RunFolder

    for run in (RunFolder(one.resolve()) for one in sorted(runs.glob("*/")) if not one.is_symlink()):
        if (own := own_replay(run)) is not None:
            yield own, run.path
        inside = [] if (run.path / ON_DISK).is_symlink() else sorted((run.path / ON_DISK).glob("*"))
        for path in filter(is_own_folder, inside):
            if own is None or not path.samefile(own):
                yield path, run.path


def _look_at(path: Path, run: Path | None) -> LeftReplay:
    """Looks at a replay or a registry. `run`, if given, is the run that uses it: its owner.json may be out of date."""
    from shoal.replay.storage import folder_bytes
    from shoal.runtime.replay_folder import owner_of

    run, nbytes = run or owner_of(path), 0
    with contextlib.suppress(OSError):  # its run may be removing it
        nbytes = folder_bytes(path)
    state = _registry_state(path) if (path / "registry.json").is_file() else _state(path, run)
    return LeftReplay(path, run, state, nbytes)


def _registry_state(path: Path) -> State:
    """A registry is live as long as one of its runs, or the process that made it."""
    from shoal.sharing import connect_registry

    with contextlib.suppress(ShoalError, OSError):
        registry = connect_registry(path)
        return "live" if registry.maker_lives or any(True for _ in registry.entries(sweep=False)) else "dead"
    return "dead"


def _state(path: Path, run: Path | None) -> State:
    from shoal.runtime.replay_folder import in_use, own_replay
    from shoal.runtime.run_folder import RunFolder

    if in_use(path, run):
        return "live"
    if run is None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < _NEW_SECONDS:
                return "live"
        return "dead"
    if not run.is_dir():
        return "gone"
    folder = RunFolder(run)
    own = own_replay(folder) if path.is_relative_to(run) else None
    if own is not None and own.resolve() != path.resolve():  # copied with its run, which has made another one since
        return "dead"
    if read_object(folder.summary_json).get("status") not in ("solved", "finished"):  # damaged: it can be resumed
        return "resumable"
    replay = read_object(folder.config_yaml).get("replay")
    return "kept" if isinstance(replay, dict) and replay.get("keep") else "dead"


def _agreed(wanted: list[LeftReplay], everything: bool, yes: bool) -> bool:
    from shoal.replay.storage import gib

    if not sys.stdin.isatty() or (everything and yes):
        return everything
    size = gib(sum(left.nbytes for left in wanted))
    return typer.confirm(f"\nAlso remove {len(wanted)} replays that can still be of use ({size})?", default=False)


def _removed(left: LeftReplay) -> bool:
    """Removes a replay while holding its lock, so that no run starts to use it. Writes nothing elsewhere."""
    from shoal.runtime.run_folder import RunFolder

    try:
        if _look_at(left.path, left.run).state == "live":
            raise RunInUse("a run has started to use it.")
        with RunFolder(left.path).lock():
            shutil.rmtree(left.path)
        return True
    except ShoalError as error:
        typer.echo(f"Left {left.path}: {error}", err=True)
    except OSError as error:
        typer.echo(f"Cannot remove {left.path}: {error.strerror}.", err=True)
    return False
