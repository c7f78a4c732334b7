"""The weight board: newest weights, never torn."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from shoal.errors import CorruptShard
from shoal.loops.weights import BoardModule, WeightBoard, count_weights

SIZE = 200_000
WRITER = """
import sys
from pathlib import Path
import numpy as np
from shoal.loops.weights import WeightBoard
board = WeightBoard(Path(sys.argv[1]), int(sys.argv[2]))
weights = np.empty(int(sys.argv[2]), np.float32)
for value in range(1, 10**9):
    weights[:] = value
    board.publish(weights)
"""


def test_version_zero_means_nothing_published(tmp_path: Path) -> None:
    board, out = WeightBoard.create(tmp_path / "weights.bin", 3), np.full(3, 7.0, np.float32)
    assert board.read(out) == 0 and out.tolist() == [7.0, 7.0, 7.0]
    assert board.publish(np.array([1, 2, 3], np.float32)) == 1
    assert board.read(out) == 1 and out.tolist() == [1.0, 2.0, 3.0]


def test_another_network_is_refused(tmp_path: Path) -> None:
    WeightBoard.create(tmp_path / "weights.bin", 3)
    with pytest.raises(CorruptShard, match=r"24 bytes instead of 32.*another network.*has 4"):
        WeightBoard(tmp_path / "weights.bin", 4)


def test_what_no_learner_published_is_refused(tmp_path: Path) -> None:
    board = WeightBoard.create(tmp_path / "weights.bin", 3)
    board.check()
    board.publish(np.ones(3, np.float32))
    board.check()
    board._words.words[0] = 2  # killed while it published
    board.check()
    for claim, version in ((3, 1), (0, 1), (2**40, 2**40), (2**64 - 1, 2**64 - 1)):
        board._words.words[0], board._words.words[1] = claim, version
        with pytest.raises(CorruptShard, match=rf"weights\.words.*{version} and {claim}"):
            board.check()
    board._words.words[0] = board._words.words[1] = 1
    board.publish(np.array([1, np.nan, 3], np.float32))
    with pytest.raises(CorruptShard, match="not finite"):
        board.check()


def test_a_board_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    for name in ("weights.bin", "weights.words"):
        WeightBoard.create(tmp_path / "weights.bin", 3)
        (tmp_path / name).unlink()
        with pytest.raises(CorruptShard, match=rf"{name} is missing"):
            WeightBoard(tmp_path / "weights.bin", 3)
        for left in tmp_path.iterdir():
            left.unlink()


@pytest.mark.parametrize("in_place", [False, True])
def test_modules_travel_whole(tmp_path: Path, in_place: bool) -> None:
    source, copy = (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)) for _ in range(2))
    source(torch.randn(32, 4))  # moves the running statistics, which must travel too
    path = tmp_path / "weights.bin"
    WeightBoard.create(path, count_weights(source))
    published, follower = BoardModule(source, path), BoardModule(copy, path, in_place=in_place)
    before = {name: tensor.clone() for name, tensor in copy.state_dict().items()}
    assert follower.refresh() == 0 and all(torch.equal(before[name], copy.state_dict()[name]) for name in before)
    for version in (1, 2):
        published.publish()
        assert follower.refresh() == follower.version == version
        for name, tensor in source.state_dict().items():
            if tensor.is_floating_point():
                assert torch.equal(copy.state_dict()[name], tensor)
        with torch.no_grad():
            source[0].weight.mul_(2)


@pytest.mark.stress
def test_no_torn_weights_beside_a_publisher_at_full_speed(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    board, out = WeightBoard.create(path, SIZE), np.empty(SIZE, np.float32)
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(SIZE)])
    try:
        versions: list[int] = []
        deadline = time.monotonic() + 60
        while len(set(versions)) < 60 and time.monotonic() < deadline:
            if (version := board.read(out)) > 0:
                assert (out == out[0]).all(), f"version {version} is torn"
                assert out[0] == version
                versions.append(version)
    finally:
        process.kill()
        process.wait()
    assert versions == sorted(versions) and len(set(versions)) == 60
