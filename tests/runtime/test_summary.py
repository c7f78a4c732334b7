"""summary.json: what can be read of it, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.damages import DOCUMENT, Damage, name_of

from shoal.errors import ConfigError
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.summary import Summary, read_summary

SUMMARY = replace(Summary.not_begun("x"), status="finished", env_steps=1200, eval_return_mean=3.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return RunFolder(tmp_path).write_json("summary.json", SUMMARY)


def test_what_was_written_is_read(path: Path) -> None:
    found = read_summary(path)
    assert found is not None and repr(found) == repr(SUMMARY)  # NaN equals nothing
    path.unlink()
    assert read_summary(path) is None


def test_nulls_are_not_known_and_entries_of_another_version_are_left_out(path: Path) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "eval_return_mean": None, "of_tomorrow": 3}))
    found = read_summary(path)
    assert found is not None and math.isnan(found.eval_return_mean) and found.status == "finished"


@pytest.mark.parametrize("damage", DOCUMENT, ids=name_of)
def test_damage_is_refused_by_name(path: Path, damage: Damage) -> None:
    damage(path)
    with pytest.raises(ConfigError, match=r"summary\.json is damaged \(.*Remove it"):
        read_summary(path)


@pytest.mark.parametrize(
    "changed",
    [{"env_steps": "many"}, {"env_steps": None}, {"status": "done"}, {"updates": 2.5}, {"error": [1]}],
    ids=str,
)
def test_values_that_no_run_has_are_refused(path: Path, changed: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(ConfigError, match=rf"summary\.json is damaged.*{next(iter(changed))}"):
        read_summary(path)
