"""Runs that share replay, killed, stopped and damaged for real: the others go on, and no memory is left behind."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from tests.sharing.conftest import Nursery, _nursery, always_look, group, held, nursery
from tests.sharing.runs_process import make, read, write

from shoal.sharing import Registry, create_distributed_registry

pytestmark = pytest.mark.faults
__all__ = ["_nursery", "always_look", "group", "held", "nursery"]  # fixtures of the sharing tests
STALE = 2.0


@pytest.fixture
def impatient() -> Iterator[Registry]:
    """A registry whose silent buffers are removed soon."""
    made = create_distributed_registry(min_buffer_size=10, stale_seconds=STALE)
    yield made
    made.stop()


def foreign(buffer: Any, batch: int = 100) -> set[int]:
    return set(read(buffer.sample(batch))[0].tolist())


@pytest.mark.usefixtures("always_look")
def test_a_killed_peer_serves_its_rows_and_is_then_removed(
    impatient: Registry, nursery: Nursery, held: Callable[[], int]
) -> None:
    one = make(impatient, "one", cross_sample_ratio=0.5)
    write(one, 1, 50)
    before = held()
    peer = nursery.start("run_writer", registry=str(impatient.path), run=2, rows=20_000, steps=200)
    buffer_id = nursery.report(peer)["buffer_id"]
    assert foreign(one) == {1, 2}
    nursery.kill(peer)
    killed = time.monotonic()
    assert held() > before + 20_000_000
    while time.monotonic() - killed < STALE * 0.5:
        assert foreign(one) == {1, 2}, "it serves its rows for a while"
        time.sleep(0.05)
    while time.monotonic() - killed < STALE * 2.5 and 2 in foreign(one):
        time.sleep(0.05)
    assert foreign(one) == {1} and one.get_stats()["num_shared_buffers"] == 0
    assert not any(buffer_id in path.name for path in impatient.path.iterdir())
    assert held() <= before + 4096, "its memory is free"


def test_whoever_looks_removes_a_killed_peer(impatient: Registry, nursery: Nursery, held: Callable[[], int]) -> None:
    before = held()
    peer = nursery.start("run_writer", registry=str(impatient.path), run=2, rows=5000, steps=50)
    nursery.report(peer)
    nursery.kill(peer)
    time.sleep(STALE + 0.2)
    assert impatient.get_buffer_stats() == {} and held() <= before + 4096


@pytest.mark.usefixtures("always_look")
def test_peers_come_and_go_in_the_middle_of_sampling(group: Registry, nursery: Nursery) -> None:
    """Registered, written, deregistered and removed under a reader at full speed."""
    readers = [nursery.start("run_sampler", registry=str(group.path), seconds=4.0) for _ in range(2)]
    until, rounds = time.monotonic() + 3.5, 0
    while time.monotonic() < until:
        rounds += 1
        buffer = make(group, f"guest-{rounds % 3}", rows=100)
        write(buffer, 1 + rounds % 5, 60)
        time.sleep(0.02 * (rounds % 4))
        group.deregister_buffer(buffer._member.buffer_id)
        write(buffer, 1 + rounds % 5, 60, start=60)
    for reader in readers:
        said = nursery.report(reader)
        assert nursery.wait(reader) == 0 and 9 in said["runs"] and said["stats"]["refused"] == {}
    assert rounds > 1


def sample_beside_a_writer(group: Registry, nursery: Nursery, seconds: float) -> Any:
    """Samples a small ring that another process overwrites at full speed; every row is checked."""
    one = make(group, "one", cross_sample_ratio=0.5)
    write(one, 1, 50)
    peer = nursery.start("run_writer", registry=str(group.path), run=2, rows=400, lanes=2, steps=100, endless=True)
    nursery.report(peer)
    began, seen, newest = time.monotonic(), 0, 0
    while (spent := time.monotonic() - began) < seconds or (spent < 50 and (seen <= 1000 or newest <= 2000)):
        run, step, _ = read(one.sample(256))
        seen, newest = seen + int((run == 2).sum()), max(newest, int(step[run == 2].max(initial=0)))
    assert seen > 1000 and newest > 2000, "the ring was overwritten several times"
    nursery.kill(peer)
    return one


@pytest.mark.stress
@pytest.mark.usefixtures("always_look")
def test_no_torn_row_from_a_writer_at_full_speed(group: Registry, nursery: Nursery) -> None:
    sample_beside_a_writer(group, nursery, 4.0)


@pytest.mark.stress
def test_no_torn_row_between_two_looks(group: Registry, nursery: Nursery) -> None:
    """A second is time enough to overwrite the whole ring: the window of the last look is then of no use."""
    one = sample_beside_a_writer(group, nursery, 4.0)
    assert one.get_stats()["foreign_fraction"] == pytest.approx(0.5), "every sample is counted once"


@pytest.mark.parametrize("deregister", [False, True])
def test_many_remove_the_same_buffer_at_once(nursery: Nursery, held: Callable[[], int], deregister: bool) -> None:
    group = create_distributed_registry(stale_seconds=0.4)
    before = held()
    peer = nursery.start("run_writer", registry=str(group.path), run=2, rows=3000, steps=20)
    buffer_id = nursery.report(peer)["buffer_id"]
    nursery.kill(peer)
    at = time.time() + (0.2 if deregister else 0.7)
    options = {"registry": str(group.path), "at": at, "buffer_id": buffer_id, "deregister": deregister}
    sweepers = [nursery.start("run_sweeper", **options) for _ in range(4)]
    for sweeper in sweepers:
        assert nursery.report(sweeper)["left"] == [] and nursery.wait(sweeper) == 0
    assert [path.name for path in group.path.iterdir()] == ["registry.json"] and held() <= before + 4096
    group.stop()


@pytest.mark.usefixtures("always_look")
@pytest.mark.parametrize("damage", ["entry", "schema", "header", "column", "folder"])
def test_a_damaged_peer_is_no_error(group: Registry, damage: str) -> None:
    one, fine, bad = (make(group, name, cross_sample_ratio=0.5) for name in ("one", "fine", "bad"))
    for run, buffer in enumerate((one, fine, bad), start=1):
        write(buffer, run, 50)
    folder = group.folder(bad._member.buffer_id)
    if damage == "folder":
        shutil.rmtree(folder / "shard")
    else:
        names = {"entry": "entry.json", "schema": "shard/schema.json", "header": "shard/header.bin"}
        path = folder / names.get(damage, "shard/reward.bin")
        path.unlink()  # its writer still maps it
        path.write_bytes(b'{"nonsense": 1')
    if damage == "entry":  # that it is named is tested in test_pool.py
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert foreign(one) == {1, 2}
        return
    with pytest.warns(UserWarning, match="^Not sharing with bad: .*shard"):
        assert foreign(one) == {1, 2}
    assert foreign(one) == {1, 2} and list(one.get_stats()["refused"]) == ["bad"]
    write(bad, 3, 50)
    assert set(read(bad.sample(100))[0].tolist()) <= {1, 2, 3}


@pytest.mark.usefixtures("always_look")
@pytest.mark.parametrize("way", ["deleted", "stopped"])
def test_a_registry_may_vanish_under_its_members(
    nursery: Nursery, held: Callable[[], int], tmp_path: Path, way: str
) -> None:
    before = held()
    group = create_distributed_registry(min_buffer_size=10)
    sampler = nursery.start("run_sampler", registry=str(group.path), seconds=1.5)
    one, two = make(group, "one", cross_sample_ratio=0.5), make(group, "two")
    write(one, 1, 50)
    write(two, 2, 50)
    assert foreign(one) >= {1, 2}
    until = time.monotonic() + 50.0
    while 9 not in foreign(one) and time.monotonic() < until:  # the sampler's rows
        time.sleep(0.02)
    if way == "deleted":
        shutil.rmtree(group.path)
    else:
        group.stop()
    assert foreign(one) == {1}
    write(one, 1, 2000, start=50)
    assert foreign(one) == {1} and one.get_stats()["num_shared_buffers"] == 0
    group.deregister_buffer(one._member.buffer_id)
    group.stop()
    assert nursery.report(sampler)["stats"]["num_shared_buffers"] >= 0 and nursery.wait(sampler) == 0
    assert held() == before


def test_a_run_may_be_reset_after_its_registry_vanished() -> None:
    group = create_distributed_registry(min_buffer_size=10)
    one = make(group, "one")
    write(one, 1, 50)
    group.stop()
    one.reset()
    with pytest.warns(UserWarning, match="is gone"):
        write(one, 1, 5)


@pytest.mark.parametrize("end", ["killed", "collected"])
def test_private_buffers_leave_nothing(nursery: Nursery, held: Callable[[], int], end: str) -> None:
    before = held()
    if end == "collected":
        buffer = make(None, rows=5000)
        write(buffer, 1, 20)
        assert held() == before
        del buffer
    else:
        child = nursery.start("run_private", rows=5000)
        assert nursery.report(child)["read"] == 32
        assert held() == before
        nursery.kill(child)
    assert held() == before


def test_a_group_whose_maker_is_killed_is_swept_by_its_members(nursery: Nursery, held: Callable[[], int]) -> None:
    """Nobody is left to call stop(): the members' own entries go as they fall silent, whoever is left sweeps."""
    before = held()
    group = create_distributed_registry(min_buffer_size=10, stale_seconds=0.5)
    peers = [nursery.start("run_writer", registry=str(group.path), run=run, rows=2000, steps=20) for run in (2, 3)]
    for peer in peers:
        nursery.report(peer)
    for peer in peers:
        nursery.kill(peer)
    time.sleep(0.8)
    late = make(group, "late")
    write(late, 1, 20)
    np.random.seed(0)
    assert foreign(late) == {1}
    assert {entry.run_id for entry in group.entries()} == {"late"}
    group.stop()
    assert held() == before
