"""What a run says of a role that failed, without a Ray."""

from __future__ import annotations

from pathlib import Path

from ray.exceptions import RayTaskError

from shoal.errors import EnvError
from shoal.runtime.ray_runtime import _cause
from shoal.runtime.run_folder import RunFolder

TRACEBACK = "\x1b[36mray::Host.run()\x1b[39m (pid=7)\n  File learner.py, line 3\nValueError: \x1b[31mbad\x1b[0m"


def test_an_unforeseen_error_is_one_sentence_and_its_traceback_is_in_a_file(tmp_path: Path) -> None:
    failure = RayTaskError("run", TRACEBACK, ValueError("\x1b[31mbad\x1b[0m"))
    said = str(_cause("learner", failure, RunFolder(tmp_path)))
    assert said == f"learner failed: ValueError: bad (the traceback is in {tmp_path / 'error.txt'})"
    kept = (tmp_path / "error.txt").read_text()
    assert "learner.py, line 3" in kept and "\x1b" not in kept


def test_an_error_of_ours_is_kept_as_it_is(tmp_path: Path) -> None:
    error = _cause("actor 1", RayTaskError("run", TRACEBACK, EnvError("no such pole")), RunFolder(tmp_path))
    assert type(error) is EnvError and str(error) == "actor 1: no such pole"
    assert not (tmp_path / "error.txt").exists()
