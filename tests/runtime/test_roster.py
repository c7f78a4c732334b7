"""Runtimes and supervisor know no role by name: an unknown one works, reports, is restarted and ends."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from tests.fakes import corridor

from shoal.loops.assembly import open_ledger
from shoal.loops.plan import Plan, make_plan
from shoal.loops.reports import Report
from shoal.metrics_file import read_metrics
from shoal.runtime import execution
from shoal.runtime.roster import Bounds, RosterEntry, make_roster
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class TallyReport(Report):
    pieces: int
    index: int
    notes: tuple[str, ...] = ()

    @property
    def logged(self) -> Mapping[str, float]:
        return {"tally/pieces": self.pieces, "tally/index": self.index}


class Tally:
    """Counts its own pieces of work in a file; number 0 dies once, where it has a process of its own."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._ledger, self._index = open_ledger(plan), index
        self._file = plan.paths.checkpoints / f"tally_{index}"
        self._mortal = plan.settings.runtime == "ray" and index == 0 and not self._file.exists()

    def run(self, *, seconds: float) -> TallyReport:
        pieces = int(self._file.read_text()) + 1 if self._file.exists() else 1
        self._file.write_text(str(pieces))
        if self._mortal:
            os._exit(1)
        return TallyReport(pieces, self._index, (f"tally {self._index} has worked",) if pieces == 1 else ())

    @property
    def stopping(self) -> bool:
        return self._ledger.stop

    def end(self) -> None:
        self._file.with_suffix(".ended").touch(exist_ok=False)


def tallying(supervisor: Supervisor) -> Bounds:
    return {"seconds": 0.0}


def worked_often(folder: RunFolder) -> bool:
    files = [folder.checkpoints / f"tally_{index}" for index in range(2)]
    return all(file.exists() and int(file.read_text() or 0) > 2 for file in files)


@pytest.mark.parametrize("runtime", ["inline", "ray"])
def test_a_role_is_one_more_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    entry = RosterEntry("tally", Tally, tallying, count=2)
    monkeypatch.setattr(execution, "make_roster", lambda plan: (*make_roster(plan), entry))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))  # for Ray's workers
    ends = Supervisor.status
    # A busy machine may take longer to restart a process than the run takes.
    monkeypatch.setattr(Supervisor, "status", lambda self: ends(self) if worked_often(folder) else None)
    folder = RunFolder.create(tmp_path, "Corridor", "apex-dqn", datetime.now())
    summary = execution.execute(make_plan(corridor(runtime=runtime, report_seconds=1)), folder)
    assert summary.status == "finished" and summary.restarts == (runtime == "ray")
    for index in range(2):
        assert int((folder.checkpoints / f"tally_{index}").read_text()) > 1
        assert (folder.checkpoints / f"tally_{index}.ended").exists()
    rows = read_metrics(folder.metrics_jsonl)
    assert any(row.get("tally/pieces", 0) > 1 for row in rows)
    assert rows[-1]["tally/index"] == 0.5, "the mean of both"
    assert "tally 1 has worked" in capsys.readouterr().out
    if runtime == "ray":
        assert {"tally 0", "tally 1"} < set(json.loads((folder.path / "processes.json").read_text()))


def test_no_runtime_names_a_role() -> None:
    roles = {entry.name for entry in make_roster(make_plan(corridor(actor={"inference": "served"})))}
    assert roles == {"actor", "learner", "inference", "evaluator"}
    for name in ("fleet", "inline", "ray_cluster", "ray_hosts", "ray_runtime", "supervisor"):
        tree = ast.parse((ROOT / "src" / "shoal" / "runtime" / f"{name}.py").read_text())
        named = roles & {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert not named, f"{name}.py names {named}"
