"""`shoal nodes`."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.cli.conftest import Shoal

SITES = [
    {"outpost": None, "node": "4088c0ffee", "address": "10.0.0.1", "roles": ["learner", "mirrors", "evaluator"]},
    {
        "outpost": 0,
        "node": "6393ec00ff",
        "address": "10.0.0.2",
        "roles": ["inference of outpost 0", "actor 0", "actor 2"],
        "rows_per_second": 1242.4,
        "mb_per_second": 8.76,
        "rows_behind": 12,
        "lag_seconds": 0.256,
        "rows_lost": 0,
        "calls_per_second": 9.3,
        "courier_restarts": 1,
        "moves": 2,
    },
]


def _run(folder: Path, nodes: str | None) -> Path:
    (folder / "config.yaml").write_text("")
    (folder / "run.json").write_text("{}")
    if nodes is not None:
        (folder / "nodes.json").write_text(nodes)
    return folder


def test_who_is_where(run_shoal: Shoal, tmp_path: Path) -> None:
    told = json.dumps({"written": time.time() - 3, "sites": SITES})
    result = run_shoal("nodes", str(_run(tmp_path, told)))
    assert result.code == 0
    lines = [line.split("  ") for line in result.out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[1] == ["home", "10.0.0.1 (4088c0)", "learner, mirrors, evaluator"]
    numbers = ["1,242", "8.8", "12", "0.26", "0", "9.3", "1", "2"]
    assert cells[2] == ["outpost 0", "10.0.0.2 (6393ec)", "inference of outpost 0, actors 0 2", *numbers]
    assert "As of 3" in result.out and "the run has ended, or goes on elsewhere" in result.out


def test_a_run_on_one_machine_and_a_damaged_file(run_shoal: Shoal, tmp_path: Path) -> None:
    assert "on one machine" in run_shoal("nodes", str(_run(tmp_path, None))).out
    assert "on one machine" in run_shoal("nodes", str(_run(tmp_path, '{"sites": 3}'))).out
    damaged = run_shoal("nodes", str(_run(tmp_path, '{"written": "x", "sites": [4, {"roles": 7, "moves": "many"}]}')))
    assert damaged.code == 0
    assert run_shoal("nodes", str(tmp_path / "nowhere")).code == 2
