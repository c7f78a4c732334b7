"""GradientBoard: no vector is torn, and every push is accounted for, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ConfigError, CorruptShard, NoSpace
from shoal.loops.gradient_board import GradientBoard, gradient_board_bytes

SIZE = 50_000
"""200 KB: a copy takes long enough to be interrupted."""
WRITER = """
import sys
from pathlib import Path
import numpy as np
from shoal.loops.gradient_board import GradientBoard
assert "torch" not in sys.modules
board, count, wait = GradientBoard(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3] == "wait"
for _ in range(count):
    while wait and not board.settled:
        pass
    number = board.pushed + 1
    board.push(np.full(board.size, number, np.float32), number, 2 * number)
"""


def writer(path: Path, count: int, how: str = "newest") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(count), how])


def accounted(board: GradientBoard) -> bool:
    counts = board.counts
    return counts.pushed == counts.applied + counts.dropped + counts.waiting and min(counts) >= 0


def vector(value: float, size: int = 3) -> np.ndarray:
    return np.full(size, value, np.float32)


def test_the_newest_push_is_taken_once(tmp_path: Path) -> None:
    worker = GradientBoard.create(tmp_path / "gradients.bin", 3)
    server = GradientBoard(tmp_path / "gradients.bin")
    assert server.size == 3 and server.take() is None and worker.settled
    worker.push(vector(1), 20, 5)
    assert (worker.counts.waiting, worker.counts.dropped, worker.settled) == (1, 0, False)
    worker.push(vector(2), 10, 6)
    taken = server.take()
    assert taken is not None and (taken.rows, taken.version) == (10, 6)
    assert taken.vector.tolist() == [2, 2, 2] and server.take() is None
    assert not worker.settled, "taken, but not applied yet"
    server.settle(applied=1)
    assert worker.settled and server.counts == (2, 1, 1, 0)


def test_what_was_taken_is_dropped_until_it_was_applied(tmp_path: Path) -> None:
    board = GradientBoard.create(tmp_path / "gradients.bin", 3)
    board.push(vector(1), 1, 1)
    assert board.take() is not None
    again = GradientBoard(tmp_path / "gradients.bin")  # the reader died, another took its place
    assert again.take() is None and again.counts.dropped == 1
    again.settle(applied=0)
    assert again.settled and again.counts == (1, 0, 1, 0)


@pytest.mark.parametrize("how", ["newest", "wait"])
def test_no_vector_is_torn_and_every_push_is_counted(tmp_path: Path, how: str) -> None:
    """A writer at full speed in another process."""
    board, count = GradientBoard.create(tmp_path / "gradients.bin", SIZE), 3_000 if how == "newest" else 300
    taken = 0
    with writer(tmp_path / "gradients.bin", count, how) as process:
        last = 0
        while process.poll() is None or board.counts.waiting:
            if push := board.take():
                assert push.rows > last and push.version == 2 * push.rows
                assert (push.vector == push.rows).all(), "torn"
                last, taken = push.rows, taken + 1
                board.settle(applied=taken % 2)
    assert process.returncode == 0 and board.pushed == count and last == count
    assert board.counts.applied == (taken + 1) // 2 and board.counts.dropped == count - board.counts.applied
    assert how == "newest" or taken == count, "none was replaced"


def test_a_killed_writer_leaves_a_board_that_the_next_one_goes_on_with(tmp_path: Path) -> None:
    board, taken = GradientBoard.create(tmp_path / "gradients.bin", SIZE), 0
    for _ in range(5):
        before = board.pushed
        process = writer(tmp_path / "gradients.bin", 10**9)
        deadline = time.monotonic() + 60
        while board.pushed < before + 200 and time.monotonic() < deadline:
            if push := board.take():
                taken += 1
                board.settle(applied=1)
                assert (push.vector == push.rows).all()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert board.pushed >= before + 200
        board.check()
        assert accounted(board) and board.counts.applied == taken
        if push := board.take():
            taken += 1
            board.settle(applied=1)
            assert (push.vector == push.rows).all()


def test_damage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "gradients.bin"
    with pytest.raises(CorruptShard, match="missing"):
        GradientBoard(path)
    board = GradientBoard.create(path, 7)
    assert path.stat().st_size == gradient_board_bytes(7)
    board.push(vector(np.nan, 7), 1, 1)
    with pytest.raises(CorruptShard, match="not finite"):
        board.check()
    board.take()
    board.check()
    board._words.words[3] = 9
    with pytest.raises(CorruptShard, match="damaged"):
        GradientBoard(path).check()
    path.write_bytes(bytes(13))
    with pytest.raises(CorruptShard, match="13 bytes"):
        GradientBoard(path)


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoSpace):
        GradientBoard.create(tmp_path / "gradients.bin", 10**14)


def test_names_that_would_share_their_counters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'g\.0'"):
        GradientBoard.create(tmp_path / "g.0", 3)
