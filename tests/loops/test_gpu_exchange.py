"""Learners with a GPU each exchange by NCCL. One GPU is enough here: see `gpu_member`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.loops.gpu_exchange import gpu_number
from shoal.loops.team import Learners

HAS_NCCL = torch.cuda.is_available() and torch.distributed.is_nccl_available()


def start(folder: Path, rank: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.loops.gpu_member", str(folder), str(rank), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def printed(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in process.communicate(timeout=120)[0].splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def test_only_gpus_have_a_number() -> None:
    assert gpu_number(None) == gpu_number(torch.device("cpu")) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_learners_on_one_gpu_have_the_same_number() -> None:
    assert gpu_number(torch.device("cuda")) == gpu_number(torch.device("cuda", 0)) > 0


@pytest.mark.skipif(not HAS_NCCL, reason="needs a GPU and NCCL")
def test_gpus_exchange_directly_and_survive_a_death_within_an_exchange(tmp_path: Path) -> None:
    Learners.create(tmp_path / "learners.bin", 2)
    processes = [start(tmp_path, 0), start(tmp_path, 1, "dies")]
    try:
        died = printed(processes[1])
        assert processes[1].returncode == -9
        assert died["direct"] is True and died["sum"] == [3.0, 3.0] and died["wide"] == 2e-12
        processes.append(start(tmp_path, 1))
        again = printed(processes[2])
        stayed = printed(processes[0])
        assert processes[0].returncode == 0
        assert stayed["lost"] < 60 and stayed["again"] == again["again"] == [4.0, 4.0, 4.0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.skipif(not HAS_NCCL, reason="needs a GPU and NCCL")
def test_a_death_while_nccl_connects_does_not_hold_the_others_up_for_ever(tmp_path: Path) -> None:
    Learners.create(tmp_path / "learners.bin", 2)
    processes = [start(tmp_path, 0, "only connects"), start(tmp_path, 1, "dies connecting")]
    try:
        printed(processes[1])
        assert processes[1].returncode == -9
        processes.append(start(tmp_path, 1, "only connects"))
        again, stayed = printed(processes[2]), printed(processes[0])
        assert stayed["connected"] < 60 and stayed["direct"] is again["direct"] is True
        assert stayed["again"] == again["again"] == [4.0, 4.0, 4.0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
