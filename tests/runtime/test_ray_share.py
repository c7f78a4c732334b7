"""`shoal share` on several Ray nodes of this machine, from the command line to `shoal compare`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lab import Lab, light_cluster, namespaces, unavailable

from shoal.runtime.placement import Node, spread_runs
from shoal.runtime.ray_share import _SHELTER, RunHost, _as_outside_ray

pytest.importorskip("stable_baselines3")
ROOT = Path(__file__).parents[2]
SMALL = ("--", "learning_starts=100", "train_freq=50", "gradient_steps=5", "every_steps=10_000_000", "episodes=1")
REASON = unavailable()


@contextmanager
def nodes(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, count: int = 2) -> Iterator[Any]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with make(cpus=[1] * count) as lab:
        yield lab


def share(lab: Lab, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shoal", "share", "sb3_dqn_cartpole", "--address", "auto", "--out", str(out)]
    rest = ("--tag", "t", "--min-buffer-size", "100", *options, *SMALL)
    started: subprocess.Popen[str] = lab.nodes[0].run(
        [*command, *rest], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return started


def summaries(launch: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(launch.glob("*/summary.json"))]


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_runs_on_two_nodes_learn_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes(light_cluster, monkeypatch) as lab:
        said, _ = share(lab, tmp_path, "-n", "2", "--steps", "4000").communicate(timeout=120)
        launch = tmp_path / "share_t" / "launch_001"
        assert said.count("1 of them on node") == 2 and "finished" in said, said
        assert [one["status"] for one in summaries(launch)] == ["finished"] * 2
        assert max(one["foreign_fraction"] for one in summaries(launch)) > 0.05
        assert all((path.parent / "model.zip").is_file() for path in launch.glob("*/summary.json"))
        assert [list(node.files.glob("shoal-*/*")) for node in lab.nodes] == [[], []]
    compared = subprocess.run([sys.executable, "-m", "shoal", "compare", str(tmp_path / "share_t")], cwd=tmp_path)
    assert compared.returncode == 0


@pytest.mark.cluster
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_machines_without_shared_storage_and_deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node has its own /dev/shm: runs that are written there must be fetched."""
    endless = ("-n", "4", "--steps", "10_000_000")
    with nodes(namespaces, monkeypatch) as lab:
        head, other = lab.nodes
        group = share(lab, Path("/dev/shm/out"), "-n", "4", "--steps", "2000")
        said = group.communicate(timeout=120)[0]
        assert group.returncode == 0 and said.count("2 of them on node") == 2, said
        assert len(summaries(head.files / "out/share_t/launch_001")) == 4
        assert list((other.files / "out/share_t/launch_001").iterdir()) == []

        def steps(number: int) -> int:
            return len(list((tmp_path / f"share_t/launch_{number:03d}").glob("*/metrics.jsonl")))

        group = share(lab, tmp_path, *endless)
        wait_until(lambda: steps(1) == 4)
        time.sleep(2.0)
        head.signal(group, signal.SIGKILL)
        group.communicate(timeout=60)
        wait_until(lambda: len(summaries(tmp_path / "share_t/launch_001")) == 4)
        assert {one["status"] for one in summaries(tmp_path / "share_t/launch_001")} == {"interrupted"}
        wait_until(lambda: not any(list(node.files.glob("shoal-*/*")) for node in lab.nodes))

        group = share(lab, tmp_path, *endless)
        wait_until(lambda: steps(2) == 4)
        other.kill()
        time.sleep(10.0)
        assert group.poll() is None  # the other node's runs go on
        head.signal(group, signal.SIGINT)
        said = group.communicate(timeout=60)[0]
        assert group.returncode == 1 and said.count("failed: its node 10.77.0.2") == 2, said
        assert len(summaries(tmp_path / "share_t/launch_002")) == 2


def test_a_shell_between_host_and_run_passes_signals_and_codes_on() -> None:
    polite = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print(1, flush=True)"
    command = [*_SHELTER, sys.executable, "-c", f"{polite}; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        process.terminate()
        assert process.wait(20) == 5
    assert subprocess.run([*_SHELTER, "sh", "-c", "kill -9 $$"], stderr=subprocess.DEVNULL).returncode == 137


def test_what_ray_tells_its_own_processes_is_not_passed_on() -> None:
    told = {"RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": "/bin"}
    assert _as_outside_ray(told) == {"PATH": "/bin"}
    assert _as_outside_ray({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_host_lists_and_reads_the_files_of_a_run_and_no_link(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"12345")
    os.symlink("/etc/hostname", tmp_path / "link")
    host = RunHost()
    found = host.stamps(tmp_path)
    assert set(found) == {"deep/a"} and host.read(tmp_path, "deep/a", 2) == (b"345", found["deep/a"])
    host.remove(tmp_path)
    assert not tmp_path.exists()


def test_runs_go_where_most_cores_are_free() -> None:
    nodes = [Node("a", "1", cpus=2, here=True), Node("b", "2", cpus=4), Node("c", "3", cpus=0)]
    assert [node.id for node in spread_runs(nodes, 6)] == ["b", "b", "a", "b", "a", "b"]
    assert [node.id for node in spread_runs(nodes, 9)][6:] == ["a", "b", "c"]  # more runs than cores: in turn
