"""Run folders as a comparison sees them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from tests.analysis.fakes import EVAL, write_group, write_run

from shoal.analysis.runs import RunGroup, read_group, read_groups
from shoal.errors import ConfigError, UnknownName, UnsafePath


def test_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "g" / "run", [1.0, None, 3.0], foreign=0.25, seed=7, tail='{"step": 40, "wa')
    (run,) = read_group(tmp_path / "g").runs
    assert (run.seed, run.status, run.env, run.damaged) == (7, "finished", "CartPole-v1", 1)
    assert run.readings[EVAL].step.tolist() == [0, 20] and run.readings[EVAL].wall.tolist() == [0, 10]
    assert run.foreign_fraction == 0.25 and run.peers == {"peer": 0.125}
    assert (run.last_step, run.wall_seconds) == (20, 10)


def test_a_run_that_says_nothing_about_itself(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "run.json").write_text("{")
    (tmp_path / "config.yaml").write_text("env: [")
    (run,) = read_group(tmp_path).runs
    assert (run.seed, run.status, run.env, run.readings, run.damaged) == (None, None, None, {}, 0)
    assert math.isnan(run.foreign_fraction) and math.isnan(run.last_step)


@pytest.mark.parametrize(
    ("name", "text", "env"),
    [
        ("config.yaml", "env: {id: A-v0, lanes: 8}", "A-v0"),
        ("config.yaml", "env: A-v0", "A-v0"),
        ("run.json", '{"env": {"id": "A-v0"}}', "A-v0"),
        ("run.json", '{"env_id": "A-v0"}', "A-v0"),
        ("run.json", '{"env": 3}', None),
    ],
)
def test_where_the_environment_is_named(tmp_path: Path, name: str, text: str, env: str | None) -> None:
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / name).write_text(text)
    assert read_group(tmp_path).runs[0].env == env


def test_damaged_lines_are_counted(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "wall": 1, "rollout/ep_rew_mean": 5}',
        "",
        "[1]",
        '{"step": null, "wall": 1}',
        '{"wall": 1}',
        "\x00\x00",
        '{"step": 2, "w',
    ]
    end = f'{{"step": 3, "wall": 2, "{EVAL}": 7, "x": NaN}}'
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b"\xff\n" + end.encode())
    (run,) = read_group(tmp_path).runs
    assert run.readings[EVAL].step.tolist() == [3] and (run.last_step, run.wall_seconds, run.damaged) == (3, 2, 5)
    assert run.readings["rollout/ep_rew_mean"].step.tolist() == [1]


def test_links_are_not_followed_inside_a_group(tmp_path: Path) -> None:
    run = write_run(tmp_path / "group" / "deep" / "er" / "run", [1.0])
    (tmp_path / "group" / "latest").symlink_to(run)
    write_run(run / "inside", [1.0])  # nothing inside a run is another run
    assert [one.path for one in read_group(tmp_path / "group").runs] == [run]
    assert read_group(tmp_path / "group" / "latest").path == run  # but the group itself may be one


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ((1,), "1 run"),
        ((4,), "1 launch of 4 runs"),
        ((1, 1), "2 launches of 1 run"),
        ((4, 4, 4), "3 launches of 4 runs"),
        ((4, 3), "7 runs in 2 launches"),
    ],
)
def test_describe(tmp_path: Path, sizes: tuple[int, ...], text: str) -> None:
    group = read_group(write_group(tmp_path / "g", [[[1.0]] * size for size in sizes]))
    assert group.describe() == text and sorted(group.launches.values()) == sorted(sizes)


def test_runs_directly_in_the_group_are_one_launch(tmp_path: Path) -> None:
    for name in "abc":
        write_run(tmp_path / "g" / name, [1.0])
    assert read_group(tmp_path / "g").describe() == "1 launch of 3 runs"


def test_names_are_as_long_as_need_be(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / one, [1.0]) for one in ("x/a/runs", "x/b/runs", "x/c")]
    assert [group.name for group in read_groups(paths)] == ["a/runs", "b/runs", "c"]


def test_shared(tmp_path: Path) -> None:
    def group(foreign: float | None) -> RunGroup:
        return read_group(write_group(tmp_path / str(foreign), [[[1.0]]], foreign=foreign))

    assert group(0.1).shared and not group(0.0).shared and not group(None).shared


def test_what_is_no_group(tmp_path: Path) -> None:
    write_run(tmp_path / "share_local" / "run", [1.0])
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    with pytest.raises(UnknownName, match=r"Did you mean .*share_local'"):
        read_group(tmp_path / "share_locl")
    with pytest.raises(UnknownName, match="A group is a folder with runs in it"):
        read_group(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(ConfigError, match=r"holds no run: .*has a metrics\.jsonl"):
        read_group(tmp_path / "empty")
    with pytest.raises(ConfigError, match="is a file"):
        read_group(tmp_path / "share_local" / "run" / "run.json")
    with pytest.raises(ConfigError, match="given twice"):
        read_groups([tmp_path / "share_local", tmp_path / "empty" / ".." / "share_local"])


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [1.0])
    for name in ("run.json", "summary.json", "config.yaml"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
    (found,) = read_group(run).runs
    assert (found.seed, found.status, found.env) == (None, None, None)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(UnsafePath, match=r"metrics\.jsonl is not an ordinary file"):
        read_group(run)


def test_a_seed_that_is_no_number(tmp_path: Path) -> None:
    write_run(tmp_path / "r", [1.0])
    (tmp_path / "r" / "run.json").write_text(json.dumps({"seed": "x"}))
    assert read_group(tmp_path / "r").runs[0].seed is None


def test_a_folder_that_no_locale_can_spell_has_a_name_for_figures(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"l\xe4ufe")
    write_run(folder / "run", [1.0])
    (group,) = read_groups([folder])
    assert group.name == "l?ufe" and group.path == folder
