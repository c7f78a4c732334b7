"""Files that have their space when they are made."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.errors import NoSpace
from shoal.replay.reserve import PAGE, reserve_file, reserved_bytes


def test_the_space_is_really_taken(tmp_path: Path) -> None:
    reserve_file(tmp_path / "file", 100_000)
    found = (tmp_path / "file").stat()
    assert found.st_size == 100_000 and found.st_blocks * 512 >= 100_000
    assert (tmp_path / "file").read_bytes() == bytes(100_000)
    assert [reserved_bytes(n) for n in (1, PAGE, PAGE + 1)] == [PAGE, PAGE, 2 * PAGE]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        reserve_file(tmp_path / "file", 8)
    assert (tmp_path / "file").read_text() == "mine"


def test_too_little_is_refused_with_the_numbers_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match=r"file needs 1048576\.0 GiB, but .* free.*replay\.capacity.*shoal clean"):
        reserve_file(tmp_path / "file", 2**50)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_process_is_refused_in_the_same_way(tmp_path: Path) -> None:
    code = f"""
import resource, signal
from pathlib import Path
from shoal.errors import NoSpace
from shoal.replay.reserve import reserve_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    reserve_file(Path({str(tmp_path)!r}) / "file", 8192)
except NoSpace as error:
    print(error.__cause__.errno)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == errno.EFBIG and list(tmp_path.iterdir()) == []
