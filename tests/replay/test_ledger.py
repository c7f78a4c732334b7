"""Ledger: the counts of one run."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.errors import CorruptShard
from shoal.replay import Ledger, LedgerWord, ShardWriter


def test_inserts_and_episodes_come_from_the_shards(marked: ModuleType, shards: Any, tmp_path: Path) -> None:
    paths = [shards.make(marked.info(16, 2)) for _ in range(2)]
    writers = [ShardWriter(path) for path in paths]
    ledger = Ledger(tmp_path, paths)
    assert (ledger.inserts, ledger.env_steps, ledger.episodes) == (0, 0, 0)
    writers[0].append_chunk(marked.block_of(1, 2, 0, 5))
    writers[1].append_chunk(marked.block_of(1, 2, 0, 3), steps=4, episodes=2)
    assert (ledger.inserts, ledger.episodes) == (14, 2)
    ledger[LedgerWord.BASE_STEPS], ledger[LedgerWord.BASE_EPISODES] = 100, 10
    assert (ledger.inserts, ledger.env_steps, ledger.episodes) == (14, 114, 12)


def test_what_one_process_counts_the_others_see(tmp_path: Path) -> None:
    learner, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    learner.add(LedgerWord.SAMPLES, 512)
    learner.add(LedgerWord.SAMPLES, 512)
    learner.add(LedgerWord.UPDATES, 2)
    actor[LedgerWord.BASE_UPDATES] = 40
    assert (actor[LedgerWord.SAMPLES], actor.updates) == (1024, 42)
    assert Ledger(tmp_path, [])[LedgerWord.SAMPLES] == 1024, "opening must not start from zero"


def test_stop(tmp_path: Path) -> None:
    driver, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    assert not actor.stop
    driver[LedgerWord.STOP] = 1
    assert actor.stop
    driver[LedgerWord.STOP] = 0
    assert not actor.stop


def test_the_drivers_silence(tmp_path: Path) -> None:
    driver, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    driver.beat()
    assert not actor.orphaned
    driver[LedgerWord.HEARTBEAT] = time.time_ns() - 50 * 10**9
    assert not actor.orphaned
    driver[LedgerWord.HEARTBEAT] = time.time_ns() - 61 * 10**9
    assert actor.orphaned


def test_what_the_driver_saw_is_remembered(marked: ModuleType, shards: Any, tmp_path: Path) -> None:
    path = shards.make(marked.info(16, 2))
    ledger = Ledger(tmp_path, [path])
    ShardWriter(path).append_chunk(marked.block_of(1, 2, 0, 5), episodes=3)
    ledger.beat()
    assert (ledger[LedgerWord.SEEN_STEPS], ledger[LedgerWord.SEEN_EPISODES]) == (10, 3)


@pytest.mark.parametrize("entry", list(LedgerWord))
def test_words_that_no_run_leaves_are_refused(tmp_path: Path, entry: LedgerWord) -> None:
    ledger = Ledger(tmp_path, [])
    ledger.beat()
    ledger.check()
    ledger[entry] = 2**63
    if entry is LedgerWord.HEARTBEAT:
        ledger.check()
    else:
        with pytest.raises(CorruptShard, match=rf"ledger\.bin is damaged.*{entry.name} = {2**63}"):
            ledger.check()


def test_words_that_are_not_used_are_zero(tmp_path: Path) -> None:
    Ledger(tmp_path, []).check()
    with open(tmp_path / "ledger.bin", "r+b") as file:
        file.seek(8 * len(LedgerWord))
        file.write(b"\1")
    with pytest.raises(CorruptShard, match=r"ledger\.bin is damaged"):
        Ledger(tmp_path, []).check()
