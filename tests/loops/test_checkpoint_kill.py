"""A process saving checkpoints in a loop is killed at random moments; what it leaves is always complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.loops import checkpoint as ck

KILLS = 15

# Runs in a process of its own that imports torch once and then forks savers, so that many kills take little time.
# Each saver is killed a random moment after its first save; large files make the writing most of that time.
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from shoal.loops.checkpoint import CheckpointState, load_best, load_checkpoint, save_best, save_checkpoint

folder, kills = Path(sys.argv[1]), int(sys.argv[2])

def save_for_ever(updates, pipe):
    while True:
        updates += 1
        tensors = {f"layer{i}": torch.full((1024, 1024), float(updates)) for i in range(4)}
        state = CheckpointState(updates, tensors, {"env_steps": updates * 10})
        save_checkpoint(folder, state, keep=2)
        save_best(folder, state)
        os.write(pipe, b"%d\\n" % updates)

def check(state, reported):
    assert state.skipped == (), state.skipped
    assert state.updates in (reported, reported + 1), (state.updates, reported)  # what was reported as saved is there
    assert state.info["env_steps"] == state.updates * 10
    assert all(bool((tensor == state.updates).all()) for tensor in state.tensors.values())

moments = random.Random(0)
newest = 0
for kill in range(kills):
    reading, writing = os.pipe()
    saver = os.fork()
    if saver == 0:
        save_for_ever(newest, writing)
    os.close(writing)
    said = os.read(reading, 100)
    time.sleep(moments.uniform(0.0, 0.2))
    os.kill(saver, signal.SIGKILL)
    os.waitpid(saver, 0)
    while chunk := os.read(reading, 65536):
        said += chunk
    os.close(reading)
    reported = int(said.split(b"\\n")[-2])
    check(load_checkpoint(folder), reported)
    check(load_best(folder), reported)
    newest = load_checkpoint(folder).updates
save_checkpoint(folder, CheckpointState(newest + 1, {}, {}), keep=2)
assert not list(folder.glob(".step_*")), "temporary files of killed savers stay"
"""


@pytest.mark.slow
def test_sigkill_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(ck.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(KILLS)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
