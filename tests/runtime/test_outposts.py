"""Folders of outposts: found again by the run's mark, never another run's; what is left over is freed everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes import corridor

from shoal.errors import ReplayError
from shoal.loops.assembly import build_actor
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import Start, prepare_outpost
from shoal.loops.run_paths import RunPaths
from shoal.replay import Header, ShardReader, storage
from shoal.runtime.outposts import find_outposts, free_outposts, open_outpost
from shoal.runtime.run_folder import RunFolder

HOME = RunPaths(Path("home"), Path("checkpoints"))
PLAN = replace(make_plan(corridor(replay={"samples_per_insert": None}), HOME), outposts=((1,),), outpost=0)
NEW = {1: Start(dict.fromkeys(Header, 0))}
MARK = "abc"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("shm", "runs/a"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(storage, "SHARED_MEMORY", tmp_path / "shm")
    return tmp_path / "runs" / "a"


def opened(run: Path, mark: str = MARK, path: Path | None = None) -> Path:
    made, notes = open_outpost(PLAN, run, mark, 4, NEW, 1, path)
    assert notes == []
    return made


def at(path: Path) -> Plan:
    return PLAN.at(RunPaths(path, path))


def test_an_outpost_is_found_by_its_run_alone_and_used_again(run: Path) -> None:
    path = opened(run)
    assert path.name == "a-outpost-0"
    actor = build_actor(at(path), 1)
    actor.run(steps=30)
    actor.end()
    own = ShardReader(path / "shard_001")
    assert find_outposts("another", run, None) == []
    (found,) = find_outposts(MARK, run, None)
    assert (found.path, found.run, found.counts.steps) == (path, run, own.steps)
    assert list(found.starts) == [1]  # of the other actor there is a header only
    words = found.starts[1].words
    assert (words[Header.HEAD], words[Header.STEPS]) == (own.oldest, 0)
    again, notes = open_outpost(PLAN, run, MARK, 4, found.starts, 1, found.path)
    assert again == path and notes == [] and ShardReader(path / "shard_001").head == own.head


def test_what_still_writes_there_is_stopped_before_its_rows_are_counted(run: Path) -> None:
    """When home dies, its actors elsewhere live on for some seconds."""
    path = opened(run)
    orphan = build_actor(at(path), 1)
    orphan.run(steps=5)
    with RunFolder(path).lock():  # its courier lives on, too
        (found,) = find_outposts(MARK, run, None)
        with pytest.raises(ReplayError, match="another writer"):
            orphan.run(steps=5)
        assert ShardReader(path / "shard_001").steps == found.counts.steps
        # A run folder elsewhere may be a copy, whose original is at work here.
        assert find_outposts(MARK, run.parent / "b", None) == []
    assert [one.run for one in find_outposts(MARK, run.parent / "b", None)] == [run]


def test_a_shard_that_is_older_than_its_mirror_begins_again(run: Path) -> None:
    path = opened(run)
    ahead = {1: Start({**NEW[1].words, Header.HEAD: 7, Header.CLAIM: 7, Header.STEPS: 20, Header.EPOCH: 1})}
    notes = prepare_outpost(at(path), 4, "a", ahead, 1)
    assert notes == ["shard_001 of outpost 0 is older than its mirror, and begins again."]
    assert ShardReader(path / "shard_001").head == 7 and not list(path.glob("shard_001.*"))
    assert [one.counts.steps for one in find_outposts(MARK, run, None)] == [20]


def test_all_folders_of_a_run_are_freed_and_no_others(run: Path, tmp_path: Path) -> None:
    """One was given up when its node was lost, and the node came back with it."""
    first, second = opened(run), opened(run)
    assert first != second and second.name.startswith("a-outpost-0")
    theirs, copied = opened(run, "another"), opened(run.parent / "b")
    home = storage.choose_folder("a", 1, None, tmp_path)
    RunFolder(home).write_json("owner.json", {"run": str(run), "mark": MARK})
    requested = tmp_path / "requested"
    plan = replace(PLAN, settings=corridor(replay={"samples_per_insert": None, "path": str(requested)}))
    there, _ = open_outpost(plan, run, MARK, 4, NEW, 1, None)
    assert there.parent == requested
    free_outposts(MARK, run, requested)
    assert [path.exists() for path in (first, second, there, theirs, copied, home)] == [False] * 3 + [True] * 3
