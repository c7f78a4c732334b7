"""Counters: words on shared memory that other processes see."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import CorruptShard
from shoal.replay import ShardWriter, counters
from shoal.replay.counters import WORDS, Counters, fence


class Word(IntEnum):
    """Two of the words."""

    FIRST = 0
    LAST = WORDS - 1


def test_words_are_shared_between_mappings(tmp_path: Path) -> None:
    writer = Counters.create(tmp_path / "words.bin")
    reader = Counters(tmp_path / "words.bin", writable=False)
    assert reader[Word.FIRST] == reader[Word.LAST] == 0
    writer[Word.LAST] = 2**63 + 1
    writer.add(Word.FIRST, 3)
    writer.add(Word.FIRST, 4)
    assert (reader[Word.FIRST], reader[Word.LAST]) == (7, 2**63 + 1)
    assert isinstance(reader[Word.FIRST], int)


def test_words_are_shared_with_another_process(tmp_path: Path) -> None:
    words = Counters.create(tmp_path / "words.bin")
    program = "import numpy, sys; w = numpy.memmap(sys.argv[1], numpy.uint64, 'r+'); w[0] = 41; w[0] += numpy.uint64(1)"
    subprocess.run([sys.executable, "-c", program, str(words.path)], check=True)
    assert words[Word.FIRST] == 42


def test_words_are_aligned(tmp_path: Path) -> None:
    words = Counters.create(tmp_path / "words.bin")
    assert np.frombuffer(words.words, np.uint64).ctypes.data % 8 == 0
    assert words.words.itemsize == 8


def test_making_does_not_wipe_what_another_made(tmp_path: Path) -> None:
    """Two roles that both find no file: the second one opens the first one's."""
    first = Counters.create(tmp_path / "words.bin")
    first[Word.FIRST] = 5
    second = Counters.create(tmp_path / "words.bin")
    assert (first[Word.FIRST], second[Word.FIRST]) == (5, 5)
    second[Word.FIRST] = 6
    assert first[Word.FIRST] == 6
    assert [path.name for path in tmp_path.iterdir()] == ["words.bin"]


def test_readers_cannot_write(tmp_path: Path) -> None:
    Counters.create(tmp_path / "words.bin")
    words = Counters(tmp_path / "words.bin", writable=False)
    with pytest.raises((ValueError, TypeError)):
        words[Word.FIRST] = 1


@pytest.mark.parametrize("size", [0, 8, WORDS * 8 + 8])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "words.bin").write_bytes(bytes(size))
    with pytest.raises(CorruptShard, match=rf"words\.bin has {size} bytes instead of {WORDS * 8}"):
        Counters(tmp_path / "words.bin", writable=True)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptShard, match=r"words\.bin"):
        Counters(tmp_path / "words.bin", writable=False)


@pytest.mark.parametrize("writable", [False, True])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path, writable: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(CorruptShard, match=name):
            Counters(tmp_path / name, writable=writable)


def test_there_may_be_any_number(tmp_path: Path) -> None:
    words = Counters.create(tmp_path / "words.bin", 100)
    words.words[99] = 7
    assert Counters(tmp_path / "words.bin", writable=False, count=100).words[99] == 7
    assert (tmp_path / "words.bin").stat().st_blocks * 512 >= 800


def test_fences_return() -> None:
    for _ in range(100):
        fence()


class Turnstile:
    """A lock that counts."""

    def __init__(self) -> None:
        self.passed = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.passed += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_large_copies_are_fenced_on_every_processor(
    marked: ModuleType, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores past the caches, which a C library makes of large copies, may overtake the claim that announces them."""
    turnstile = Turnstile()
    monkeypatch.setattr(counters, "_mutex", turnstile)
    monkeypatch.setattr(counters, "_KEEPS_ORDER", True)
    writer = ShardWriter(shards.make(marked.info(4096, 1)))
    writer.append_chunk(marked.block_of(0, 1, 0, 2))
    assert turnstile.passed == 0, "rows of a few bytes pay nothing"
    widest = max(column.nbytes for column in writer.info.schema.columns)
    writer.append_chunk(marked.block_of(0, 1, 2, -(-counters.LARGE_COPY // widest)))
    assert turnstile.passed > 0


def test_more_files_than_the_soft_limit_are_opened_and_the_hard_one_is_named(tmp_path: Path) -> None:
    """A learner holds nine files of each shard open: a thousand actors need more than the usual soft limit of 1,024."""
    Counters.create(tmp_path / "words.bin")
    code = """
import resource, sys
from pathlib import Path
from shoal.errors import ReplayError
from shoal.replay.counters import Counters
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
held = []
try:
    while len(held) < 1000:
        held.append(Counters(Path(sys.argv[1]), writable=False))
except ReplayError as error:
    print(len(held), error)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "words.bin")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 64 < int(said.split()[0]) < 128 and "ulimit -n" in said
