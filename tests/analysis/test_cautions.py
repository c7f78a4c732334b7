"""What a reader is told, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.fakes import write_group, write_run

from shoal.analysis.cautions import verdicts, warnings
from shoal.analysis.comparison import compare
from shoal.analysis.results import Comparison
from shoal.analysis.runs import read_groups


def _compare(*paths: Path, metric: str = "auto") -> Comparison:
    return compare(read_groups(paths), metric=metric, resamples=200)


def _launches(count: int, value: float) -> list[list[list[float | None]]]:
    return [[[0, value + number, value + number], [0, value, value]] for number in range(count)]


@pytest.mark.parametrize(
    ("launches", "value", "expected"),
    [
        (4, 90, "new against old: area higher (p = 0.029), final return higher (p = 0.029)."),
        (4, -90, "new against old: area lower (p = 0.029), final return lower (p = 0.029)."),
        (4, 0, "new against old: no difference that could be told from chance, neither in area nor in final return."),
        (3, 90, "new against old: cannot tell. 3 independent results against 3 can never be told from chance"),
    ],
)
def test_verdict(tmp_path: Path, launches: int, value: float, expected: str) -> None:
    old = write_group(tmp_path / "old", _launches(launches, 0))
    new = write_group(tmp_path / "new", _launches(launches, value), foreign=0.5)
    (verdict,) = verdicts(_compare(old, new))
    assert verdict.startswith(expected)


def test_one_of_two_is_undecided(tmp_path: Path) -> None:
    old = write_group(tmp_path / "old", [[[0, 10, 10, 10, 10, 10]]] * 4)
    new = write_group(tmp_path / "new", [[[9, 10, 10, 10, 10, 10]]] * 4)
    assert verdicts(_compare(old, new)) == ["new against old: area higher (p = 0.029); final return undecided."]


def test_a_single_launch_that_shared_is_one_result(tmp_path: Path) -> None:
    many = [[[0, 50 + run, 50 + run] for run in range(8)]]
    old = write_group(tmp_path / "old", [[[0, run, run] for run in range(8)]])
    new, alone = write_group(tmp_path / "new", many, foreign=0.5), write_group(tmp_path / "alone", many, foreign=0)
    shared, apart = verdicts(_compare(old, new, alone))
    assert "cannot tell" in shared and "1 independent result against 8 can never be told from chance" in shared
    assert apart == "alone against old: area higher (p = 0.0004), final return higher (p = 0.0004)."


def test_one_group_only(tmp_path: Path) -> None:
    only = _compare(write_group(tmp_path / "only", _launches(5, 1)))
    assert verdicts(only) == ["There is nothing to compare only with: only one group was given."]
    assert warnings(only) == []


def test_units_that_weaken_intervals(tmp_path: Path) -> None:
    paths = [
        write_group(tmp_path / "few", _launches(3, 1)),
        write_group(tmp_path / "together", _launches(1, 1), foreign=0.5),
        write_group(tmp_path / "apart", _launches(1, 1)),
        write_run(tmp_path / "alone", [0, 1, 1]),
    ]
    few, together, apart, alone = warnings(_compare(*paths))
    assert few.startswith("few has 3 launches only")
    assert "They learned from each other, so its intervals understate the uncertainty." in together
    assert "They may have more in common" in apart and "understate" in apart
    assert alone.startswith("alone is a single run: it has no interval")


def test_environments(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "run", [1.0])
    write_run(tmp_path / "b" / "run", [1.0], env="Pong-v5")
    first = warnings(_compare(tmp_path / "a", tmp_path / "b"))[0]
    assert first.startswith("Not all runs are of the same environment") and "a: CartPole-v1; b: Pong-v5" in first


def test_overlapping_groups(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "a" / "run", [1.0])
    assert (
        "1 run in more than one group, such as run" in warnings(_compare(tmp_path / "all", tmp_path / "all" / "a"))[0]
    )


def test_missing_and_damaged(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", [[[1, 1], [1, 1]]] * 5)
    write_run(group / "launch_0" / "empty", [], tail="{\n{")
    assert "eval/mean_reward" in _compare(group, metric="eval").metric
    lacking, damaged = warnings(_compare(group, metric="eval"))
    assert lacking.startswith("1 run without a reading of eval/mean_reward") and lacking.endswith("launch_0/empty.")
    assert damaged == "2 damaged lines skipped in the metrics of launch_0/empty."


def test_returns_of_training(tmp_path: Path) -> None:
    for number in range(2):
        write_run(tmp_path / "g" / f"l{number}" / "run", [1.0], name="rollout/ep_rew_mean")
    assert warnings(_compare(tmp_path / "g"))[0].startswith("Returns are those of training, with exploration: 2 runs")


def test_a_short_run_shortens_all(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", [[[1] * 11]] * 5)
    write_run(group / "launch_0" / "short", [1] * 5, status=None)
    short, ended = warnings(_compare(group))
    assert "(launch_0/short)" in short and "end at step 40, where the usual run ends at 100" in short
    assert ended.startswith("g: 1 run that did not end by themselves (no summary: killed, or still running)")


def test_no_common_steps(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [1.0])
    write_run(tmp_path / "b", [None, 1.0])
    assert "No step is covered by all runs: there is no area and no final return." in warnings(
        _compare(tmp_path / "a", tmp_path / "b")
    )


def test_a_run_that_does_not_say_what_it_shared(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", [[[1, 1]]] * 5, foreign=0.5)
    write_run(group / "launch_0" / "mute", [1, 1])
    assert warnings(_compare(group)) == ["g: 1 run without share/foreign_fraction; its mean leaves them out."]


def test_many_names_are_cut(tmp_path: Path) -> None:
    for number in range(5):
        write_run(tmp_path / "g" / "l" / f"r{number}", [1, 1], status="failed")
    assert warnings(_compare(tmp_path / "g"))[-1].endswith("(failed): l/r0, l/r1, l/r2 and 2 more.")
