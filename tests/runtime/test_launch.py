"""Plain functions as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.errors import ConfigError, ShoalError
from shoal.runtime.launch import launch


def number(value: int, place: Path) -> tuple[int, int]:
    import torch

    (place / str(os.getpid())).touch()
    return value, torch.get_num_threads()


def fail() -> None:
    raise ValueError("no such luck")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(place: Path) -> None:
    (place / str(os.getpid())).touch()
    time.sleep(600)


def pids(place: Path) -> list[int]:
    return [int(path.name) for path in place.iterdir()]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(holds: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_results_in_order_each_from_its_own_process_with_one_thread(engine: Any, tmp_path: Path) -> None:
    results = launch([partial(number, value, tmp_path) for value in (3, 5)], engine=engine, until="all")
    assert results == [(3, 1), (5, 1)] and len(set(pids(tmp_path))) == 2


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_first_ends_the_others(engine: Any, tmp_path: Path) -> None:
    assert launch([partial(sleep, tmp_path), partial(number, 1, tmp_path)], engine=engine) == [None, (1, 1)]
    wait_until(lambda: all(gone(pid) for pid in pids(tmp_path)))


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("broken", "said"), [(fail, "fail failed.*no such luck"), (die, "process of die died")])
def test_a_failure_is_named_and_ends_the_others(engine: Any, broken: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=f"(?s){said}"):
        launch([partial(sleep, tmp_path), broken], engine=engine, until="all")
    wait_until(lambda: all(gone(pid) for pid in pids(tmp_path)))


def test_nothing_outlives_a_killed_caller(tmp_path: Path) -> None:
    code = f"import test_launch, functools, pathlib; place = pathlib.Path({str(tmp_path)!r})\n"
    code += "if __name__ == '__main__': test_launch.launch([functools.partial(test_launch.sleep, place)] * 2)"
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent)
    wait_until(lambda: len(pids(tmp_path)) == 2)
    caller.kill()
    caller.wait()
    wait_until(lambda: all(gone(pid) for pid in pids(tmp_path)))


def test_bad_arguments() -> None:
    wrong: Any = "threads"
    with pytest.raises(ConfigError, match="launch needs"):
        launch([])
    with pytest.raises(ConfigError, match="'threads'"):
        launch([fail], engine=wrong)
    with pytest.raises(ConfigError, match="threads = 0"):
        launch([fail], threads=0)
    with pytest.raises(ConfigError, match="give it functions of a module"):
        launch([lambda: 1])
