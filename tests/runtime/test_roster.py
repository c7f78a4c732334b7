"""Runtimes and supervisor know no role by name: an unknown one works, reports, is restarted and ends."""

from __future__ import annotations

import ast
import json
import os
import re
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
from shoal.runtime.roster import Bounds, RosterEntry, count_beside, count_roles, list_roles, make_roster
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


@pytest.mark.parametrize("runtime", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
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
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "8 environments: learner, 2 actors, evaluator, 2 tallys" in shown and "tally 1 has worked" in shown
    if runtime == "ray":
        assert {"tally 0", "tally 1"} < set(json.loads((folder.path / "processes.json").read_text()))


def test_roles_in_words() -> None:
    roster = make_roster(make_plan(corridor(actor={"inference": "served"}, actors=1)))
    assert list_roles(roster) == "learner, inference, 1 actor, evaluator"
    more = RosterEntry("tally", Tally, tallying, count=3)
    assert list_roles((*roster, more)) == "learner, inference, 1 actor, evaluator, 3 tallys"


def test_all_roles_except_actors_are_beside_the_learner() -> None:
    for changes in ({}, {"learners": 2}, {"actor": {"inference": "served"}}):
        settings = corridor(runtime="ray", **changes)
        assert count_beside(settings) == count_roles(make_roster(make_plan(settings))) - settings.actors


def test_a_new_role_has_its_own_seed() -> None:
    plan = make_plan(corridor())
    assert plan.seed("tally") == plan.seed("tally") != plan.seed("tally", 1)
    known = ("actor", "policy", "learner", "evaluator", "replay", "inference", "tally", "yllat")
    assert len({plan.seed(role) for role in known}) == len(known)


def spoken_texts(source: str) -> list[str]:
    """All strings of a module but its docstrings."""
    tree = ast.parse(source)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in silent)
    return [node.value for node in texts if isinstance(node.value, str)]


def test_no_runtime_names_a_role() -> None:
    roles = {entry.name for entry in make_roster(make_plan(corridor(actor={"inference": "served"})))}
    assert roles == {"actor", "learner", "inference", "evaluator"}
    word = re.compile(rf"\b({'|'.join(roles)})\b(?!\.\w)", re.IGNORECASE)  # `learner.compile` is a setting
    assert word.search("the Learner died") and not word.search("set learner.compile, time/learner_wait_fraction")
    assert spoken_texts('"""Of an actor."""\nx = f"{1} evaluator"') == [" evaluator"]
    for name in ("execution", "fleet", "inline", "ray_cluster", "ray_hosts", "ray_runtime", "supervisor"):
        texts = spoken_texts((ROOT / "src" / "shoal" / "runtime" / f"{name}.py").read_text())
        named = [text for text in texts if word.search(text)]
        assert not named, f"{name}.py names a role in {named}"
