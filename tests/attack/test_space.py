"""Too little shared memory, on a real small one: refused at start with the numbers, never a SIGBUS later."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import ROOT

from shoal.config.load import settings_for
from shoal.errors import NoSpace
from shoal.loops.plan import make_plan
from shoal.loops.preparation import needed_bytes, prepare
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.loops.weights import board_bytes
from shoal.replay.reserve import PAGE
from shoal.replay.storage import gib

pytestmark = pytest.mark.attack
ROLES = 4
WANTED = (
    "algo=apex-dqn",
    "runtime=inline",
    "env.lanes=4",
    "replay.capacity=4000",
    "replay.min_size=100",
    "hidden=[512,512]",
    "learner.batch_size=16",
    "evaluation.episodes=1",
    "stop.steps=300",
)
Mount = Callable[[int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Makes memory of so many bytes that looks like files."""
    mounted = []

    def make(nbytes: int) -> Path:
        path = tmp_path / f"memory_{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={nbytes},mode=1777", "tmpfs", str(path)], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def settings(*more: str) -> RunSettings:
    return settings_for("CartPole-v1", "apex-dqn", [*WANTED, *more])


def needed(*more: str) -> int:
    return needed_bytes(make_plan(settings(*more)), ROLES)


def start(out: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shoal", "train", "CartPole-v1", "--out", str(out), *WANTED, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )


def fill(folder: Path, leave: int = 0) -> None:
    """Takes all that is left of the memory but so many bytes, in pages."""
    usage = os.statvfs(folder)
    free = usage.f_bavail * usage.f_frsize - leave
    with open(folder / "filler", "ab") as file:
        if free > 0:
            os.posix_fallocate(file.fileno(), file.tell(), free)


def test_room_for_the_shards_only_is_refused_with_the_numbers(mount: Mount, tmp_path: Path) -> None:
    memory = mount(needed() - board_bytes(200_000))
    process = start(tmp_path, f"replay.path={memory}")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, (
        f"{signal.Signals(-process.returncode).name if process.returncode < 0 else ''} {said}"
    )
    assert f"needs {gib(needed())}" in said and "replay.capacity" in said and "Traceback" not in said
    assert list(memory.iterdir()) == []


def test_of_two_runs_that_start_together_one_is_refused_with_a_sentence(mount: Mount, tmp_path: Path) -> None:
    memory = mount(needed() * 3 // 2)
    both = [start(tmp_path / name, f"replay.path={memory}", "replay.keep=true") for name in ("a", "b")]
    ended = [(process.communicate(timeout=180)[0], process.returncode) for process in both]
    assert sorted(code for _, code in ended) == [0, 1], ended
    refused = next(said for said, code in ended if code)
    assert " needs " in refused and " free" in refused and "Traceback" not in refused


def test_whatever_is_left_a_run_begins_or_is_refused_and_leaves_nothing_half_made(mount: Mount, tmp_path: Path) -> None:
    plan = make_plan(settings("hidden=[16]", "replay.capacity=256"))
    most, begun = needed_bytes(plan, ROLES), 0
    for free in range(0, most + PAGE, 2 * PAGE):
        memory = mount(most)
        fill(memory, leave=free)
        places = RunPaths(memory / "replay", tmp_path / "checkpoints")
        places.replay.mkdir()
        try:
            prepare(plan.at(places), ROLES, "run")
            begun += 1
        except NoSpace as refused:
            assert " needs " in str(refused) and " free" in str(refused)
            assert not list(places.replay.glob("*.new/*")), "what a shard had so far is given back"
    assert 0 < begun < 8, "what is asked for is hardly more than what is taken"


def test_full_memory_in_mid_run_is_no_trouble_even_when_roles_die(
    mount: Mount, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = mount(needed("actors=2") + 2 * PAGE)
    monkeypatch.setenv("SHOAL_SHARED_MEMORY", str(memory))
    training = train("train", "CartPole-v1", *WANTED, "runtime=ray", "actors=2", "stop.steps=1_000_000")
    training.wait_for(lambda: training.read("replay.json"), "replay")
    assert training.read("replay.json")["path"].startswith(str(memory))
    training.wait_for(lambda: training.pids().get("learner"), "learner")
    fill(memory)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), open(memory / "pid", "w") as file:
        file.write("12345")
        file.flush()
    before = training.wait_for(lambda: len(pids := training.pids()) >= 3 and pids, "all roles")
    for role in ("actor 0", "learner"):
        os.kill(before[role], signal.SIGKILL)

    def started_again(role: str) -> bool:
        fill(memory)  # whoever takes the memory takes what comes free, too
        return bool(training.pids()[role] != before[role])

    for role in ("actor 0", "learner"):
        training.wait_for(partial(started_again, role), f"new {role}")
    training.press_ctrl_c()
    assert training.end() == 0, training.output
    assert training.read("summary.json")["status"] == "interrupted" and "Traceback" not in training.output
    assert training.read("summary.json")["restarts"] == 2
