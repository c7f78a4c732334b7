"""The watchdog ends what a dead driver left, also what it never saw while the driver lived."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shoal.runtime import watchdog

pytestmark = pytest.mark.faults

DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from shoal.runtime.watchdog import watched
SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
earlier = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with watched(os.getpid(), Path(sys.argv[1])):
    unmarked = {name: value for name, value in os.environ.items() if name != "SHOAL_DRIVER"}
    noted = subprocess.Popen(SLEEP, start_new_session=True, env=unmarked, stdout=subprocess.DEVNULL)
    time.sleep(4)
    # Started by a process that is gone at once: no descendant of the driver when anyone looks, as Ray's late workers.
    launch = "import subprocess as s, sys; print(s.Popen(sys.argv[1:], start_new_session=True, stdout=s.DEVNULL).pid)"
    late = subprocess.run([sys.executable, "-c", launch, *SLEEP], stdout=subprocess.PIPE, text=True).stdout.strip()
    print(earlier.pid, noted.pid, late, flush=True)
    os.kill(os.getpid(), 9)
"""


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.1)
    return condition()


def test_ends_the_noted_and_the_marked_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    (folder / "session").mkdir(parents=True)
    driver = subprocess.run([sys.executable, "-c", DRIVER, str(folder)], capture_output=True, text=True)
    assert driver.returncode == -9, driver.stderr
    earlier, noted, late = (psutil.Process(int(pid)) for pid in driver.stdout.split())
    try:
        assert wait_until(lambda: not noted.is_running() and not late.is_running(), 20)
        assert wait_until(lambda: not folder.exists(), 20)
        assert earlier.is_running()
    finally:
        earlier.kill()


def test_the_next_run_of_the_same_driver_is_left_alone(tmp_path: Path) -> None:
    first, sleep = tmp_path / "first", [sys.executable, "-c", "import time; time.sleep(300)"]
    first.mkdir()
    with pytest.raises(RuntimeError, match="the run fails"), watchdog.watched(os.getpid(), first):
        left = subprocess.Popen(sleep, start_new_session=True)
        raise RuntimeError("the run fails")
    # The first run's watchdog has not looked around even once: it is still starting.
    with watchdog.watched(os.getpid(), tmp_path / "second"), subprocess.Popen(sleep) as following:
        try:
            assert left.wait(60) == -9
            assert wait_until(lambda: not first.exists(), 60)  # the last that the watchdog does
            assert following.poll() is None
        finally:
            following.kill()


def test_the_mark_is_gone_after_the_run(tmp_path: Path) -> None:
    with watchdog.watched(os.getpid(), tmp_path / "ray"):
        assert os.environ[watchdog.MARK] == f"{os.getpid()}-ray"
    assert watchdog.MARK not in os.environ
