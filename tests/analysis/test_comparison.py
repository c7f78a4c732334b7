"""Groups against each other, with curves short enough to work out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.analysis.fakes import EVAL, write_group, write_run

from shoal.analysis.comparison import compare
from shoal.analysis.results import Comparison
from shoal.analysis.runs import read_groups
from shoal.errors import ConfigError, UnknownName

ROLLOUT = "rollout/ep_rew_mean"


def _compare(paths: list[Path], **options: object) -> Comparison:
    return compare(read_groups(paths), **({"resamples": 200} | options))  # type: ignore[arg-type]


def test_area_and_final_return_are_over_the_steps_of_all(tmp_path: Path) -> None:
    short = write_run(tmp_path / "short" / "run", [0, 10, 20])  # steps 0 to 20
    long = write_run(tmp_path / "long" / "run", [4, 8, 99, 99, 99])  # steps 0 to 40
    found = _compare([short, long])
    assert found.metric == EVAL and found.span == (0, 20)
    assert [one.area.iqm.value for one in found.groups] == [5, 6]
    assert [one.final.iqm.value for one in found.groups] == [10, 8]  # steps 18 to 20, the reading at 20 comes after
    assert found.groups[1].over_steps.x[-1] == 40  # curves are as long as their own runs
    assert found.groups[1].over_seconds.x[-1] == 20
    first, second = found.groups
    assert first.area.better is None and second.area.better is not None and second.final.better is not None
    assert (second.area.better.value, second.final.better.value) == (1, 0)
    assert math.isnan(second.area.better.low) and np.isnan(second.over_steps.low).all()  # a run has no interval
    assert (first.group.unit, first.group.units) == ("nothing", 1)


def test_curve_is_the_iqm_over_runs(tmp_path: Path) -> None:
    write_group(tmp_path / "g", [[[1, 10], [2, 20], [3, 30], [400, 400]]])
    (one,) = _compare([tmp_path / "g"]).groups
    assert one.over_steps.value[0] == 2.5 and one.over_steps.value[-1] == 25
    assert (one.over_steps.low <= one.over_steps.value).all() and (one.over_steps.value <= one.over_steps.high).all()
    assert (one.group.unit, one.group.units) == ("runs", 4)


def test_launches_are_drawn_whole(tmp_path: Path) -> None:
    same = write_group(tmp_path / "same", [[[0, 0], [10, 10]]] * 3)
    apart = write_group(tmp_path / "apart", [[[0, 0], [0, 0]], [[10, 10], [10, 10]]])
    first, second = _compare([same, apart]).groups
    assert (first.group.unit, first.group.units) == ("launches", 3)
    assert first.area.iqm == (5, 5, 5)  # every launch says the same, so every resample does
    assert second.area.iqm == (5, 0, 10)
    assert second.area.better == (0.5, 0.25, 0.75)


def test_time_to_threshold_with_runs_that_never_got_there(tmp_path: Path) -> None:
    base = write_group(tmp_path / "base", [[[0, 0, 9, 9, 9], [0, 0, 0, 9, 0], [0, 0, 0, 0, 9]]])
    fast = write_group(tmp_path / "fast", [[[0, 9, 9, 9, 9], [0, 9, 9, 9, 9], [0, 0, 0, 0, 0]]])
    none = write_group(tmp_path / "none", [[[0, 9, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]])
    first, second, third = _compare([base, fast, none], threshold=9).groups
    once, held = first.reached
    assert (once.window, once.runs, once.steps.value, once.seconds.value) == (1, 3, 30, 15)
    assert (held.window, held.runs, held.steps.value) == (3, 1, math.inf)
    assert once.steps_ratio is None
    once, held = second.reached
    assert (once.runs, once.steps.value) == (2, 10) and (held.runs, held.steps.value, held.seconds.value) == (2, 30, 15)
    assert once.steps_ratio is not None and once.steps_ratio.value == pytest.approx(1 / 3)
    assert once.steps_ratio.high == math.inf  # too many resamples have the third run more than once
    assert held.steps_ratio is not None and math.isnan(held.steps_ratio.value)  # the baseline never got there
    assert (third.reached[0].runs, third.reached[0].steps.value) == (1, math.inf)
    assert third.reached[0].seconds_ratio is not None and math.isnan(third.reached[0].seconds_ratio.value)


def test_neither_got_there_in_a_resample(tmp_path: Path) -> None:
    base = write_group(tmp_path / "base", [[[0, 9, 9], [0, 0, 0], [0, 9, 9]]])
    slow = write_group(tmp_path / "slow", [[[0, 0, 9], [0, 0, 0], [0, 0, 9]]])
    # Of three draws two or more are the bad run in 7 of 27 cases, in both groups in 49 of 729: then nothing is known.
    assert _compare([base, slow], threshold=9).groups[1].reached[0].steps_ratio == (2, 0, math.inf)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = [write_group(tmp_path / name, rng.normal(size=(3, 2, 4)).tolist()) for name in "ab"]
    one, two, other = (_compare(groups, threshold=0.5, seed=seed) for seed in (1, 1, 2))
    assert [group.area for group in one.groups] == [group.area for group in two.groups]
    assert [group.reached for group in one.groups] == [group.reached for group in two.groups]
    assert (one.groups[1].over_steps.low == two.groups[1].over_steps.low).all()
    assert [group.area for group in one.groups] != [group.area for group in other.groups]


def test_auto_takes_evaluations_only_if_all_have_them(tmp_path: Path) -> None:
    judged = write_run(tmp_path / "judged", [1.0, 2.0])
    trained = write_run(tmp_path / "trained", [1.0, 2.0], name=ROLLOUT)
    both = write_run(tmp_path / "both", [1.0, 2.0])
    (both / "metrics.jsonl").write_text(f'{{"step": 0, "wall": 0, "{EVAL}": 1, "{ROLLOUT}": 2}}\n')
    assert _compare([judged, both]).metric == EVAL
    assert _compare([trained, both]).metric == ROLLOUT
    assert _compare([both], metric="rollout").metric == ROLLOUT
    with pytest.raises(ConfigError, match=r"No run in .*judged has a reading of rollout.*try --metric eval"):
        _compare([trained, judged])
    with pytest.raises(ConfigError, match="Did its runs ever start"):
        _compare([write_run(tmp_path / "nothing", [])])
    with pytest.raises(UnknownName, match="Did you mean 'eval'"):
        _compare([judged], metric="evl")
    with pytest.raises(ConfigError, match="threshold = inf"):
        _compare([judged], threshold=math.inf)


def test_a_run_without_a_reading_counts_as_never_there(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", [[[9, 9], [9, 9]], [[9, 9], [None, None]]])
    (one,) = _compare([group], metric="eval", threshold=9).groups
    assert one.reached[0].runs == 3 and len(one.scores) == 4
    assert one.area.iqm == (9, 9, 9) and math.isnan(one.scores[3].area)


def test_no_common_steps(tmp_path: Path) -> None:
    early, late = write_run(tmp_path / "early", [1.0, 2.0]), tmp_path / "late"
    write_run(late, [])
    (late / "metrics.jsonl").write_text(
        f'{{"step": 90, "wall": 9, "{EVAL}": 1}}\n{{"step": 99, "wall": 10, "{EVAL}": 3}}'
    )
    found = _compare([early, late])
    assert found.span is None and all(math.isnan(one.area.iqm.value) for one in found.groups)
    assert found.groups[1].area.better is not None and math.isnan(found.groups[1].area.better.value)
    assert found.groups[1].over_steps.x[0] == 90


def test_what_runs_cost_and_shared(tmp_path: Path) -> None:
    group = write_group(tmp_path / "g", [[[1, 1, 1], [1, 1, 1]]], foreign=0.5)
    write_run(group / "launch_0" / "alone", [1, 1, 1], foreign=0.2)
    (one,) = _compare([group]).groups
    assert one.foreign_fraction == pytest.approx(0.4)
    assert (one.wall_seconds, one.steps_per_second) == (10, 2)
    assert math.isnan(_compare([write_run(tmp_path / "r", [1.0])]).groups[0].foreign_fraction)
