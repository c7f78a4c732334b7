"""More actors on the way: what the plan, the replay and `actors.json` become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fakes import corridor

from shoal.errors import NoSpace
from shoal.loops.plan import Plan, make_plan
from shoal.loops.preparation import prepare, prepare_more
from shoal.loops.run_paths import RunPaths
from shoal.replay import shard_files
from shoal.runtime.growth import ACTORS_FILE, grown
from shoal.runtime.run_folder import RunFolder


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan(corridor(actors=3, replay={"capacity": 1000}), RunPaths(tmp_path / "replay", tmp_path))


def test_new_actors_have_shards_like_the_others(plan: Plan) -> None:
    for actors in (4, 7, 64):
        more = plan.with_actors(actors)
        assert more.rows_per_shard == plan.rows_per_shard
        assert more.settings.replay.capacity >= plan.settings.replay.capacity * actors / 3
        assert more.with_actors(3).rows_per_shard == plan.rows_per_shard


@pytest.mark.parametrize(("content", "actors"), [
    ('{"actors": 5}', 5), ('{"actors": 2}', 3), ('{"actors": 100000}', 3), ('{"actors": "5"}', 3), ("[]", 3), ("{", 3),
])  # fmt: skip
def test_only_a_larger_number_is_believed(plan: Plan, tmp_path: Path, content: str, actors: int) -> None:
    (tmp_path / ACTORS_FILE).write_text(content)
    assert grown(plan, RunFolder(tmp_path)).settings.actors == actors


def test_shards_of_new_actors_are_made_and_nothing_counts_as_lost(plan: Plan) -> None:
    plan.paths.replay.mkdir()
    prepare(plan, 5, "run")
    more = plan.with_actors(5)
    prepare_more(more, "run", 3)
    assert prepare(more, 7, "run") == []
    described = [json.loads((shard / "schema.json").read_text()) for shard in more.shards]
    assert len({one["rows"] for one in described}) == 1


def test_without_room_no_shard_is_left(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan.paths.replay.mkdir()
    prepare(plan, 5, "run")
    more, made, real = plan.with_actors(6), [], shard_files.reserve_file

    def full_later(path: Path, nbytes: int) -> None:
        made.append(path)
        if "shard_004" in str(path):
            raise NoSpace("the disk is full")
        real(path, nbytes)

    monkeypatch.setattr(shard_files, "reserve_file", full_later)
    with pytest.raises(NoSpace):
        prepare_more(more, "run", 3)
    assert made and sorted(path.name for path in plan.paths.replay.glob("shard_*")) == [
        f"shard_{actor:03d}" for actor in range(3)
    ]
