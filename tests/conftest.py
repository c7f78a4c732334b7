"""What every test gets: one thread, no screen, no network, and no process left behind."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.session_folders import WORKER, make_folder

# Before anything imports numpy, torch, pygame or ray: they read these once.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    MPLBACKEND="Agg",
    SDL_VIDEODRIVER="dummy",
    SDL_AUDIODRIVER="dummy",
    PYGAME_HIDE_SUPPORT_PROMPT="1",
    RAY_USAGE_STATS_ENABLED="0",
    WANDB_MODE="offline",
    # Where the key is kept that signs this user's runs.
    XDG_CONFIG_HOME=make_folder("disk", "config"),
    # Stable-Baselines3 makes a folder at every `learn`, in /tmp if it is not told where.
    SB3_LOGDIR=make_folder("disk", "sb3"),
    SHOAL_SHARED_MEMORY=make_folder("memory", "replays"),
)

import psutil
import pytest
from hypothesis import settings

# A shared machine may stall any single example; slowness is measured in benchmarks/, not here.
settings.register_profile("shoal", deadline=None, print_blob=True)
settings.load_profile("shoal")


def pytest_configure(config: pytest.Config) -> None:
    """A SIGTERM ends a session as Ctrl-C does: workers are ended and their folders removed."""
    if WORKER is None and config.getoption("dist", "no") != "no":  # tests of this process would see the handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Excludes what was imported until now from garbage collection: a million objects that stay until the end."""
    gc.collect()
    gc.freeze()


GRACE_SECONDS = 10.0
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "wandb-core")
"""Their libraries keep these until Python exits; they are nobody's leak."""


def _children() -> set[psutil.Process]:
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        return set(psutil.Process().children())  # looks at every process of the machine: milliseconds, twice a test
    found = set()
    for one in lists:
        with suppress(OSError):  # a thread that has just ended
            for pid in one.read_text().split():
                with suppress(psutil.NoSuchProcess):
                    found.add(psutil.Process(int(pid)))
    return found


def _is_leak(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and not any(helper in command for helper in HELPERS)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fails a test whose child processes outlive it, and ends them so that the next test starts clean.

    Processes of module- or session-wide fixtures (a shared Ray, for one) are older than the test and are let be.
    """
    before = _children()
    yield
    _, alive = psutil.wait_procs([p for p in _children() - before if _is_leak(p)], timeout=GRACE_SECONDS)
    if alive:
        left = [f"{p.pid} {' '.join(p.cmdline())[:120]}" for p in alive if _is_leak(p)]
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)
        pytest.fail("processes left behind:\n" + "\n".join(left))
