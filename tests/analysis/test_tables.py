"""The comparison as words and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.analysis.fakes import write_group, write_run

from shoal.analysis.comparison import compare
from shoal.analysis.results import Comparison
from shoal.analysis.runs import read_groups
from shoal.analysis.statistics import Estimate
from shoal.analysis.tables import (
    as_json,
    definitions,
    groups_table,
    number,
    runs_table,
    small,
    threshold_table,
    with_interval,
)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """Two launches of two runs against one run, which never gets to 5."""
    base = write_group(tmp_path / "base", [[[0, 9, 9], [0, 9, 9]]] * 2)
    paths = [base, write_run(tmp_path / "new", [0, 0, 1], foreign=0.25, status=None)]
    return compare(read_groups(paths), threshold=5, resamples=200)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (123456.7, "123,457"),
        (475.25, "475.2"),
        (9.123, "9.12"),
        (0.12345, "0.123"),
        (-21.0, "-21.00"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "–"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("estimate", "text", "two_digits"),
    [
        (None, "–", "–"),
        (Estimate(math.nan), "–", "–"),
        (Estimate(2.0), "2.00", "2.00"),
        (Estimate(2.0, 1.0, math.inf), "2.00 [1.00, ∞]", "2.00 [1.00, ∞]"),
        (Estimate(0.8333, 0.5, 1.0), "0.833 [0.500, 1.00]", "0.83 [0.50, 1.00]"),
    ],
)
def test_with_interval(estimate: Estimate | None, text: str, two_digits: str) -> None:
    assert with_interval(estimate) == text and small(estimate) == two_digits


def test_never_reached() -> None:
    assert with_interval(Estimate(math.inf)) == with_interval(Estimate(math.inf, math.inf, math.inf)) == "not reached"
    assert with_interval(Estimate(math.inf, 5.0, math.inf)) == "not reached [5.00, ∞]"


def test_groups_table(comparison: Comparison) -> None:
    table = groups_table(comparison)
    assert table.title == "eval/mean_reward over steps 0 to 20"
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[0][:3] == ("base", "2 launches of 2 runs", "4.50 [4.50, 4.50]")
    assert table.rows[1][:7] == ("new", "1 run", "0.000", "0.000", "0.00", "0.00", "25.0 %")


def test_threshold_table(comparison: Comparison) -> None:
    table = threshold_table(comparison)
    assert table is not None and table.title == "time to eval/mean_reward = 5"
    assert [row[:4] for row in table.rows] == [
        ("base", "one reading", "4 of 4", "10.00 [10.00, 10.00]"),
        ("base", "mean of 3 readings", "4 of 4", "20.00 [20.00, 20.00]"),
        ("new", "one reading", "0 of 1", "not reached"),
        ("new", "mean of 3 readings", "0 of 1", "not reached"),
    ]


def test_runs_table(comparison: Comparison, tmp_path: Path) -> None:
    table = runs_table(comparison, tmp_path / "out")
    assert len(table.rows) == 5 and all(len(row) == len(table.columns) for row in table.rows)
    assert table.rows[0][-1] == "../base/launch_0/run_0"
    assert table.rows[4][3] == "no summary" and table.rows[4][-3:] == ("25.0 %", "peer 12.5 %", "../new")


def test_every_column_is_explained(comparison: Comparison) -> None:
    explained = " ".join(definitions(comparison))
    threshold = threshold_table(comparison)
    assert threshold is not None
    for column in (*groups_table(comparison).columns[2:], *threshold.columns[3:]):
        word = "P(better" if column.startswith("P(") else column.split()[0]
        assert word in explained, column
    assert all(text.endswith(".") for text in definitions(comparison).values())


def test_json_is_strict_and_complete(comparison: Comparison) -> None:
    data = json.loads(json.dumps(as_json(comparison, ["said"], ["mind"]), allow_nan=False))
    assert (data["metric"], data["threshold"], data["steps"]) == ("eval/mean_reward", 5, [0, 20])
    assert (data["verdicts"], data["warnings"]) == (["said"], ["mind"])
    base, new = data["groups"]
    assert (base["runs"], base["launches"], base["resampled"]) == (4, 2, "launches")
    assert base["area"] == {"value": 4.5, "low": 4.5, "high": 4.5}
    assert len(base["curves"]["steps"]["x"]) == len(base["curves"]["seconds"]["low"]) == 200
    assert new["reached"][0] | {"steps": None} == new["reached"][0] | {"window": 1, "runs": 0, "of": 1, "steps": None}
    assert new["reached"][0]["steps"]["value"] is None
    assert new["every_run"][0]["peers"] == {"peer": 0.125} and new["every_run"][0]["status"] is None


def test_without_a_threshold(tmp_path: Path) -> None:
    plain = compare(read_groups([write_run(tmp_path / "r", [1.0, 2.0])]), resamples=200)
    assert threshold_table(plain) is None
    assert not any("not reached" in cell for row in runs_table(plain, tmp_path).rows for cell in row)
    assert "ratio" not in definitions(plain)
