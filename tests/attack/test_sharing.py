"""Runs that share replay, with one that sleeps, lies or is sick: it costs the others nothing, and is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from tests.faults.conftest import Training
from tests.sharing.conftest import Nursery, _nursery, nursery
from tests.sharing.runs_process import make, write

from shoal.replay.shard_files import Header
from shoal.sharing import Registry, create_distributed_registry

pytestmark = pytest.mark.attack
__all__ = ["_nursery", "nursery"]  # fixtures of the sharing tests
STALE = 1.0


@pytest.fixture
def impatient() -> Iterator[Registry]:
    """A registry whose silent buffers are removed soon."""
    made = create_distributed_registry(min_buffer_size=10, stale_seconds=STALE)
    yield made
    made.stop()


def wait_for(nursery: Nursery, pid: int, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """What a process says as soon as it says what is waited for."""
    until = time.monotonic() + 50.0
    while not condition(said := nursery.report(pid)):
        assert time.monotonic() < until, said
        time.sleep(0.05)
    return said


def go_on(nursery: Nursery, pid: int, rounds: int) -> dict[str, Any]:
    """What a process says so many rounds from now."""
    now = nursery.report(pid)["round"]
    return wait_for(nursery, pid, lambda said: said["round"] >= now + rounds)


def grow_old(registry: Registry, *buffer_ids: str) -> None:
    """As if these had slept for hours."""
    for buffer_id in buffer_ids:
        os.utime(registry.folder(buffer_id) / "alive", (time.time() - 1e5,) * 2)


def members(registry: Registry, nursery: Nursery, *runs: int) -> tuple[list[int], list[str]]:
    """Processes that read each other, and their buffers."""
    pids = [nursery.start("run_member", registry=str(registry.path), run=run) for run in runs]
    said = [wait_for(nursery, pid, lambda one: set(runs) <= set(one["seen"])) for pid in pids]
    return pids, [one["buffer_id"] for one in said]


def test_runs_that_were_suspended_do_not_delete_each_other(impatient: Registry, nursery: Nursery) -> None:
    (awake, asleep), ids = members(impatient, nursery, 2, 3)
    os.kill(asleep, signal.SIGSTOP)
    grow_old(impatient, ids[1])
    time.sleep(2 * STALE)  # several looks at it
    said = go_on(nursery, awake, 5)
    assert set(said["seen"]) == {2, 3} and impatient.folder(ids[1]).is_dir(), "it sleeps, and its rows are there"
    os.kill(awake, signal.SIGSTOP)
    grow_old(impatient, *ids)
    for pid in (asleep, awake):  # a whole machine that wakes
        os.kill(pid, signal.SIGCONT)
    for pid in (asleep, awake):
        said = go_on(nursery, pid, 60)
        wait_for(nursery, pid, lambda one: set(one["seen"]) == {2, 3})
        assert said["num_shared_buffers"] == 1 and said["warned"] == []
    assert sorted(entry.buffer_id for entry in impatient.entries()) == sorted(ids)
    for pid in (asleep, awake):
        nursery.kill(pid)


def test_a_live_run_that_was_removed_comes_back_with_its_rows_and_says_so(
    impatient: Registry, nursery: Nursery
) -> None:
    """Whoever cannot see its process, in another container, goes by its silence."""
    (one, other), ids = members(impatient, nursery, 2, 3)
    before = nursery.report(other)["peers"]["run-2"]["samples"]
    os.kill(other, signal.SIGSTOP)
    shutil.rmtree(impatient.folder(ids[1]))
    wait_for(nursery, one, lambda said: said["seen"] == [2] and said["num_shared_buffers"] == 0)
    os.kill(other, signal.SIGCONT)
    said = wait_for(nursery, other, lambda said: said["warned"])
    assert said["warned"] == ["Another run took run-3 for dead and removed its rows: its rows are shared again."]
    assert said["buffer_id"] == ids[1] and said["local_size"] > 20, "its old rows were kept"
    for pid in (one, other):
        wait_for(nursery, pid, lambda said: set(said["seen"]) == {2, 3})
    assert nursery.report(other)["peers"]["run-2"]["samples"] > before, "what it had read stays counted"
    for pid in (one, other):
        nursery.kill(pid)


def test_rows_of_an_ended_run_stay_as_long_as_the_launcher(nursery: Nursery) -> None:
    maker = nursery.start("run_maker", stale_seconds=0.4)
    registry = Registry(Path(nursery.report(maker)["path"]))
    ended = nursery.start("run_ended", registry=str(registry.path), run=2, rows=200)
    buffer_id = nursery.report(ended)["buffer_id"]
    assert nursery.wait(ended) == 0
    grow_old(registry, buffer_id)
    assert [entry.buffer_id for entry in registry.entries()] == [buffer_id]
    nursery.kill(maker)
    grow_old(registry, buffer_id)
    assert list(registry.entries()) == [] and not registry.folder(buffer_id).exists()
    shutil.rmtree(registry.path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _word(buffer: Any, word: Header, value: int) -> None:
    buffer._writer.header.words[word] = value


def _nan(buffer: Any) -> None:
    """What a writer that checks nothing would leave."""
    buffer._writer.columns["obs"][30:] = np.nan


SICK: dict[str, Callable[[Any, Path], Any]] = {
    "nested": lambda buffer, folder: (folder / "entry.json").write_text("[" * 100_000),
    "pipe": lambda buffer, folder: _pipe(folder / "entry.json"),
    "blocked": lambda buffer, folder: _pipe(folder / "shard" / "header.bin"),
    "beyond": lambda buffer, folder: [_word(buffer, word, 2**63 + 9) for word in (Header.CLAIM, Header.HEAD)],
    "claims": lambda buffer, folder: _word(buffer, Header.CLAIM, 2**64 - 1),
    "nan": lambda buffer, folder: _nan(buffer),
    "inf": lambda buffer, folder: buffer._writer.columns["action"].fill(np.inf),
}


@pytest.mark.parametrize("when", ["joins", "goes mad"])
def test_sick_peers_are_refused_by_name_and_the_others_go_on(impatient: Registry, nursery: Nursery, when: str) -> None:
    """All at once: whichever of them ended or stalled its readers would end the test."""
    fine = make(impatient, "fine")
    write(fine, 7, 50)
    reader = None
    if when == "goes mad":
        reader = nursery.start("run_member", registry=str(impatient.path), run=2)
    peers = {name: make(impatient, name) for name in SICK}
    for buffer in peers.values():
        write(buffer, 7, 50)
    if reader is not None:
        wait_for(nursery, reader, lambda said: said["num_shared_buffers"] == len(SICK) + 1)
    for name, buffer in peers.items():
        SICK[name](buffer, impatient.folder(buffer._member.buffer_id))
    if reader is None:
        reader = nursery.start("run_member", registry=str(impatient.path), run=2)
    hidden = {"blocked"} if when == "goes mad" else set()  # its header is mapped: what replaced the file does no harm
    named = set(SICK) - hidden
    said = wait_for(
        nursery, reader, lambda said: len(said["refused"]) >= len(named) and len(said["warned"]) >= len(named)
    )
    assert {name.split("_")[0] for name in said["refused"]} == named
    assert all(any(text.startswith(f"Not sharing with {name}") for text in said["warned"]) for name in named)
    assert "nan in an observation" in said["refused"]["nan"] and "inf in an action" in said["refused"]["inf"]
    said = go_on(nursery, reader, 60)
    assert said["num_shared_buffers"] == 1 + len(hidden) and set(said["seen"]) == {2, 7}
    nursery.kill(reader)


# Whole runs.

RUN = """framework: sb3
algo: DQN
env: {{id: "moody_env:Cart-v0"}}
total_timesteps: {steps}
evaluation: {{every_steps: 100000000, episodes: 1}}
hyperparameters: {{learning_starts: 200, train_freq: 50, gradient_steps: 2, buffer_size: 5000}}
"""
MOODY_ENV = """
import gymnasium, numpy, os
from gymnasium.envs.classic_control import CartPoleEnv
class Moody(CartPoleEnv):
    steps = 0
    def step(self, action):
        obs, *rest = super().step(action)
        Moody.steps += 1
        sick = Moody.steps > 900 and os.environ["SHOAL_RUN_ID"].startswith("sick")
        return (obs * numpy.float32(numpy.nan) if sick else obs), *rest
gymnasium.register("Cart-v0", Moody, max_episode_steps=500)
"""


def _last_line(folder: Path) -> dict[str, Any]:
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return json.loads(lines[-1]) if lines else {}


def test_a_group_outlives_a_sick_run_and_reads_one_that_has_ended(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    """A run whose environment breaks fails alone; one that ended is read on, though `--stale-seconds` is short."""
    (tmp_path / "moody_env.py").write_text(MOODY_ENV)
    for name, steps in (("ends", 1200), ("stays", 100_000_000), ("sick", 100_000_000)):
        (tmp_path / f"{name}.yaml").write_text(RUN.format(steps=steps))
    options = ("--stale-seconds", "0.3", "--min-buffer-size", "100", "--tag", "t")
    group = train("share", "ends.yaml", "stays.yaml", "sick.yaml", *options)
    launch = group.out / "runs/share_t/launch_001"
    summaries = [launch / name / "summary.json" for name in ("ends_0", "sick_2")]
    group.wait_for(lambda: all(path.exists() for path in summaries), "two ends")
    ended, sick = (json.loads(path.read_text()) for path in summaries)
    assert ended["status"] == "finished" and sick["status"] == "failed"
    assert "sick_2 has nan in its observation in row" in sick["error"]
    group.wait_for(lambda: "finished" in group.output, "word of the end")
    steps = _last_line(launch / "stays_1").get("step", 0)
    group.wait_for(lambda: _last_line(launch / "stays_1").get("step", 0) > steps + 3000, "more steps")
    group.press_ctrl_c()
    assert group.end(60) == 1, group.output
    stayed = _last_line(launch / "stays_1")
    assert stayed["share/peers"] >= 1 and stayed["share/ends_0/fraction"] > 0, "who ended is read to the last"
    assert json.loads((launch / "stays_1" / "summary.json").read_text())["status"] == "interrupted"
