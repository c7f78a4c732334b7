"""What a run says of a role that failed, without a Ray."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import RayTaskError

from shoal.errors import EnvError
from shoal.runtime.ray_runtime import _cause, gpu_shares
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


@pytest.mark.parametrize(
    ("trains", "gpus", "used", "shares"),
    [
        ([True], 1, 1, [1.0]),
        ([True, True], 1, 1, [0.5, 0.5]),
        ([True, False], 1, 1, [0.9, 0.1]),
        ([True, True, False], 1, 1, [0.4, 0.4, 0.1]),
        ([True, True, False], 2, 2, [0.9, 0.9, 0.1]),  # those that train keep one each
        ([True, False], 8, 1, [0.9, 0.1]),
        ([False], 4, 1, [0.1]),
        ([True, True, False], 0, 0, []),
        ([], 1, 0, []),
    ],
)
def test_roles_share_gpus(trains: list[bool], gpus: int, used: int, shares: list[float]) -> None:
    assert gpu_shares(trains, gpus) == (used, pytest.approx(shares))
