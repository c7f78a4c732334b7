"""Ledger: the counts of one run."""

from __future__ import annotations

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.errors import CorruptShard
from shoal.replay import Entry, Ledger, ShardWriter


def test_inserts_and_episodes_come_from_the_shards(marked: ModuleType, shards: Any, tmp_path: Path) -> None:
    paths = [shards.make(marked.info(16, 2)) for _ in range(2)]
    writers = [ShardWriter(path) for path in paths]
    ledger = Ledger(tmp_path, paths)
    assert (ledger.inserts, ledger.env_steps, ledger.episodes) == (0, 0, 0)
    writers[0].append_chunk(marked.block_of(1, 2, 0, 5))
    writers[1].append_chunk(marked.block_of(1, 2, 0, 3), steps=4, episodes=2)
    assert (ledger.inserts, ledger.episodes) == (14, 2)
    ledger[Entry.BASE_STEPS], ledger[Entry.BASE_EPISODES] = 100, 10
    assert (ledger.inserts, ledger.env_steps, ledger.episodes) == (14, 114, 12)


def test_what_one_process_counts_the_others_see(tmp_path: Path) -> None:
    learner, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    learner.add(Entry.SAMPLES, 512)
    learner.add(Entry.SAMPLES, 512)
    learner.add(Entry.UPDATES, 2)
    actor[Entry.BASE_UPDATES] = 40
    assert (actor[Entry.SAMPLES], actor.updates) == (1024, 42)
    assert Ledger(tmp_path, [])[Entry.SAMPLES] == 1024, "opening must not start from zero"


def test_stop(tmp_path: Path) -> None:
    driver, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    assert not actor.stop
    driver[Entry.STOP] = 1
    assert actor.stop
    driver[Entry.STOP] = 0
    assert not actor.stop


def test_the_drivers_silence(tmp_path: Path) -> None:
    driver, actor = Ledger(tmp_path, []), Ledger(tmp_path, [])
    driver.beat()
    assert 0 <= actor.driver_silent_for() < 10
    driver[Entry.HEARTBEAT] = time.time_ns() - 90 * 10**9
    assert 89 < actor.driver_silent_for() < 100


def test_what_the_driver_saw_is_remembered(marked: ModuleType, shards: Any, tmp_path: Path) -> None:
    path = shards.make(marked.info(16, 2))
    ledger = Ledger(tmp_path, [path])
    ShardWriter(path).append_chunk(marked.block_of(1, 2, 0, 5), episodes=3)
    ledger.beat()
    assert (ledger[Entry.SEEN_STEPS], ledger[Entry.SEEN_EPISODES]) == (10, 3)


@pytest.mark.parametrize("entry", list(Entry))
def test_words_that_no_run_leaves_are_refused(tmp_path: Path, entry: Entry) -> None:
    ledger = Ledger(tmp_path, [])
    ledger.beat()
    ledger.check()
    ledger[entry] = 2**63
    if entry is Entry.HEARTBEAT:
        ledger.check()
    else:
        with pytest.raises(CorruptShard, match=rf"ledger\.bin is damaged.*{entry.name} = {2**63}"):
            ledger.check()


def test_words_that_are_not_used_are_zero(tmp_path: Path) -> None:
    Ledger(tmp_path, []).check()
    with open(tmp_path / "ledger.bin", "r+b") as file:
        file.seek(8 * len(Entry))
        file.write(b"\1")
    with pytest.raises(CorruptShard, match=r"ledger\.bin is damaged"):
        Ledger(tmp_path, []).check()
