"""The run folder: names, ownership, and documents that survive a kill."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
from dataclasses import fields
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ConfigError, RunInUse, UnsafePath
from shoal.files import read_json
from shoal.runtime import run_folder
from shoal.runtime.run_folder import RunFolder, Summary

NOW = datetime(2026, 1, 31, 15, 45, 0)
SUMMARY = Summary(
    status="finished",
    env_steps=10,
    episodes=0,
    updates=3,
    wall_seconds=1.5,
    train_return_mean=math.nan,
    eval_return_mean=math.inf,
    eval_return_std=0.5,
    steps_per_second=6.7,
    updates_per_second=2.0,
    samples_per_insert=8.0,
    staleness_mean=1.0,
    learner_wait_fraction=0.1,
    actor_wait_fraction=0.2,
    bottleneck="balanced",
    restarts=0,
    replay_bytes=1024,
)


def complete(folder: RunFolder) -> RunFolder:
    folder.config_yaml.write_text("seed: 1\n")
    folder.run_json.write_text("{}")
    return folder


def test_create_names_and_numbers_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third = (RunFolder.create(None, "ALE/Pong-v5", "apex-dqn", NOW) for _ in range(3))
    assert first.path == tmp_path / "runs/ALE-Pong-v5_apex-dqn_20260131-154500"
    assert second.path.name.endswith("154500-2") and third.path.name.endswith("154500-3")
    assert (tmp_path / "runs/latest").readlink() == Path(third.path.name)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir())[-1] == "latest"  # and nothing temporary
    assert first.checkpoints == first.path / "checkpoints"
    assert first.replay_json.name == "replay.json" and first.tensorboard.name == "tensorboard"


@pytest.mark.parametrize(
    ("env_id", "folder"),
    [("pack_age:MyEnv-v0", "pack_age-MyEnv-v0"), ("../../x y", "x-y"), ("…", "unnamed"), ("a" * 300, "a" * 80)],
)
def test_environment_ids_become_safe_names(tmp_path: Path, env_id: str, folder: str) -> None:
    path = RunFolder.create(tmp_path / "deep/out", env_id, "dqn", NOW).path
    assert path == tmp_path / f"deep/out/{folder}_dqn_20260131-154500"


def test_create_where_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").symlink_to("nowhere/at/all")
    for out in (tmp_path / "file", tmp_path / "file/below", tmp_path / "broken"):
        with pytest.raises(ConfigError, match=r"Cannot make runs in .*Choose another --out"):
            RunFolder.create(out, "CartPole-v1", "dqn", NOW)


def test_a_folder_called_latest_does_not_stop_a_run(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    folder = RunFolder.create(tmp_path, "CartPole-v1", "dqn", NOW)
    assert sorted(tmp_path.iterdir()) == sorted([folder.path, tmp_path / "latest"])


def test_open_follows_latest_once(tmp_path: Path) -> None:
    first = complete(RunFolder.create(tmp_path, "CartPole-v1", "dqn", NOW))
    opened = RunFolder.open(tmp_path / "latest")
    RunFolder.create(tmp_path, "CartPole-v1", "dqn", NOW)
    assert opened.path == first.path.resolve()


def test_open_explains_what_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no such folder\. Start one with `shoal train`\."):
        RunFolder.open(Path("runs/latest"))
    folder = RunFolder.create(None, "CartPole-v1", "dqn", NOW)
    with pytest.raises(ConfigError, match=r"config\.yaml and run\.json are missing"):
        RunFolder.open(Path("runs/latest"))
    folder.run_json.write_text("{}")
    with pytest.raises(ConfigError, match=r"config\.yaml is missing\. Runs nearby: .*CartPole-v1_dqn_20260131"):
        RunFolder.open(folder.path)
    with pytest.raises(ConfigError, match=r"no such folder\. Runs nearby: runs/CartPole-v1_dqn_20260131-154500\."):
        RunFolder.open(Path("runs/CartPole"))
    Path("runs/gone").symlink_to("deleted")
    with pytest.raises(ConfigError, match="it points to deleted, which is gone"):
        RunFolder.open(Path("runs/gone"))
    with pytest.raises(ConfigError, match="it is a file"):
        RunFolder.open(folder.run_json)


def test_the_lock_is_exclusive_and_can_be_taken_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.owner() is None
    with folder.lock() as lock:
        assert (folder.owner() or "").startswith(f"{os.getpid()} on ")
        with pytest.raises(RunInUse, match=f"in use by process {os.getpid()} on"):
            folder.lock()
        assert (folder.owner() or "").startswith(f"{os.getpid()} on ")  # the refused attempt did not free it
    assert folder.owner() is None
    lock.release()  # twice does no harm
    folder.lock().release()


def test_the_lock_holds_under_another_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.path.mkdir()
    with folder.lock():
        moved = RunFolder(folder.path.rename(tmp_path / "b"))
        with pytest.raises(RunInUse):
            moved.lock()
        assert moved.owner() is not None


@pytest.mark.parametrize("name", ["run.lock", "checkpoints", "tensorboard", "videos", "wandb", "replay_on_disk"])
def test_a_lock_is_not_taken_where_links_lead_elsewhere(tmp_path: Path, name: str) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.write_text("mine")
    run.mkdir()
    (run / name).symlink_to(precious)
    with pytest.raises(UnsafePath, match=f"{name} is a link to {precious}.*Remove it"):
        RunFolder(run).lock()
    assert RunFolder(run).owner() is None and precious.read_text() == "mine"


def test_a_pipe_in_place_of_the_lock_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.lock")
    assert RunFolder(tmp_path).owner() is None
    with pytest.raises(UnsafePath, match="not an ordinary file"):
        RunFolder(tmp_path).lock()


HOLDER = """
import os, signal, sys
from pathlib import Path
from shoal.runtime.run_folder import RunFolder
lock = RunFolder(Path(sys.argv[1])).lock()
if os.fork() == 0:
    lock.release()
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)
signal.pause()
"""


def test_kill_frees_the_lock_and_forked_children_do_not_matter(tmp_path: Path) -> None:
    """A forked child (an AsyncVectorEnv worker) neither frees its parent's lock nor outlives it with it."""
    folder = RunFolder(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(run_folder.__file__).parents[2])},
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"  # the child has "released" it
        assert (folder.owner() or "").startswith(f"{holder.pid} on ")
        with pytest.raises(RunInUse, match=f"in use by process {holder.pid} on"):
            folder.lock()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert folder.owner() is None  # the child still waits for our end of the pipe
        with folder.lock():
            assert (folder.owner() or "").startswith(f"{os.getpid()} on ")


def test_write_json_is_atomic_and_strict(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    deep = [np.float32("inf"), {"x": -math.inf}]
    folder.write_json("a.json", {"nan": math.nan, "deep": deep, "n": np.int64(3), "p": Path("/x"), "t": (1, 2)})
    assert read_json(folder.path / "a.json") == {
        "nan": None,
        "deep": [None, {"x": None}],
        "n": 3,
        "p": "/x",
        "t": [1, 2],
    }
    with pytest.raises(TypeError):
        folder.write_json("a.json", {"x": object()})
    assert read_json(folder.path / "a.json")["n"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_summary_has_exactly_the_promised_fields(tmp_path: Path) -> None:
    promised = (
        "status env_steps episodes updates wall_seconds train_return_mean eval_return_mean eval_return_std "
        "steps_per_second updates_per_second samples_per_insert staleness_mean learner_wait_fraction "
        "actor_wait_fraction bottleneck restarts replay_bytes error ray_calls startup_seconds best_checkpoint health"
    ).split()
    assert [field.name for field in fields(Summary)] == promised
    written = json.loads(RunFolder(tmp_path).write_json("summary.json", SUMMARY).read_text())
    assert list(written) == promised
    assert written["train_return_mean"] is None and written["eval_return_mean"] is None
    assert written["env_steps"] == 10 and written["error"] is None
    with pytest.raises(ValueError, match="status must be one of solved, finished, interrupted, failed, got 'done'"):
        Summary(**{**SUMMARY.__dict__, "status": "done"})


def test_run_json_tells_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("nvidia-smi", "NVIDIA H200\nNVIDIA H200"), ("git", "0123abc")):
        (tools / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tools / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    folder = RunFolder(tmp_path)
    folder.write_run_json(seed=7, command=["shoal", "train", "CartPole-v1", "--note", "two words"], resumed_from=None)
    run = read_json(folder.path / "run.json")
    assert run["seed"] == 7 and run["command"] == "shoal train CartPole-v1 --note 'two words'"
    assert set(run["versions"]) == {"python", "shoal-rl", "torch", "ray", "gymnasium", "numpy"}
    assert run["versions"]["numpy"] == np.__version__
    assert run["git"] == {"commit": "0123abc", "dirty": True}
    assert run["machine"]["gpus"] == ["NVIDIA H200", "NVIDIA H200"]
    assert run["machine"]["cores"] >= run["machine"]["usable_cores"] >= 1
    assert run["machine"]["memory_bytes"] > 2**28 and run["machine"]["cpu"]
    assert run["resumed_from"] is None


def test_a_broken_or_absent_tool_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = RunFolder(tmp_path)
    folder.write_run_json(seed=None, command=["x"])
    assert read_json(folder.path / "run.json")["machine"]["gpus"] == []
    assert read_json(folder.path / "run.json")["git"] is None
