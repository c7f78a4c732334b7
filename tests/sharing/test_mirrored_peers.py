"""Mirrors of other nodes' buffers, with two registries in one process: no Ray."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.replay import Header, ShardReader, ShardWriter
from shoal.sharing import Description, Registry, create_distributed_registry, mirrored_peers
from shoal.sharing.member import MemberShard, Membership
from shoal.sharing.mirrored_peers import MirroredPeers
from shoal.sharing.offers import Offers
from shoal.sharing.pool import Pool
from shoal.sharing.rows import transition_schema
from shoal.types import CUT, Keys

SCHEMA = transition_schema((np.float32, (2,)), (np.float32, (1,)), with_next=True)
MEANING = Description("Toy-v0", "Box(2)", "Box(1)", "unit")
NODE, OTHER = "a" * 56, "b" * 56
ROWS = 40


@pytest.fixture
def nodes() -> Iterator[tuple[Registry, Registry]]:
    made = [create_distributed_registry(min_buffer_size=4, stale_seconds=5.0) for _ in range(2)]
    yield made[0], made[1]
    for one in made:
        one.stop()


def make_run(registry: Registry, name: str = "one", rows: int = ROWS, meaning: Description = MEANING) -> MemberShard:
    buffer = registry.register_buffer(name, "SAC")
    return MemberShard(Membership(registry, buffer, name, "SAC", ""), SCHEMA, rows, 1, meaning)


def write(writer: ShardWriter, count: int) -> None:
    """Rows whose reward is their number."""
    for number in range(writer.head, writer.head + count):
        row = {column.name: np.zeros((1, *column.shape), column.dtype) for column in SCHEMA.columns}
        writer.append({**row, "reward": np.float32([number]), "obs": np.float32([[number, -number]])})


class Link:
    """One direction between two nodes."""

    def __init__(self, source: Registry, target: Registry, most: int = 10_000, node: str = NODE) -> None:
        self.offers, self.mirrors, self._most, self._node = Offers(source), MirroredPeers(target), most, node

    def turn(self) -> bool:
        delivery = self.offers.deliver(self.mirrors.wanted(self._node), self._most)
        self.mirrors.take(self._node, delivery)
        return delivery.more

    def settle(self) -> None:
        self.turn()  # makes what is new
        while self.turn():
            pass


def entries(registry: Registry) -> list[Any]:
    return list(registry.entries())


def mirrored(registry: Registry) -> ShardReader:
    (entry,) = (one for one in entries(registry) if one.origin)
    return ShardReader(entry.shards[0])


def rewards(shard: ShardReader, first: int) -> list[float]:
    return [float(shard.columns["reward"][row % shard.rows, 0]) for row in range(first, shard.head)]


Nodes = tuple[Registry, Registry]


def test_rows_come_with_their_numbers_and_are_drawn(nodes: Nodes) -> None:
    run, own, link = make_run(nodes[0]), make_run(nodes[1], "two"), Link(*nodes)
    write(run.writer, 25)
    write(own.writer, 5)
    link.settle()
    copy = mirrored(nodes[1])
    assert copy.head == 25 and rewards(copy, 0) == list(range(25))
    for _ in range(10):  # over the end of the ring several times
        write(run.writer, 10)
        link.settle()
    assert copy.head == 125 and rewards(copy, 125 - ROWS) == list(range(125 - ROWS, 125)) and link.mirrors.lost == 0
    (entry,) = (one for one in entries(nodes[1]) if one.origin)
    assert (entry.run_id, entry.algorithm, entry.description) == ("one", "SAC", MEANING)
    pool = Pool([own.reader], own.member.buffer_id, nodes[1], MEANING, "self_heavy", 1.0)
    keys = Keys.empty(64)
    assert pool.draws(64) == 64 and pool.draw(64, keys, 0)
    drawn = pool.table.shards[1].columns["reward"][keys.logical % ROWS, 0]
    assert (drawn == keys.logical).all() and pool.counted()["one"].samples == 64


def test_both_directions_and_mirrors_are_not_passed_on(nodes: Nodes) -> None:
    runs = [make_run(registry, name) for registry, name in zip(nodes, ("one", "two"), strict=True)]
    for run in runs:
        write(run.writer, 10)
    links = [Link(*nodes), Link(nodes[1], nodes[0], node=OTHER)]
    for _ in range(3):
        for link in links:
            link.settle()
    assert [sorted(one.run_id for one in entries(registry)) for registry in nodes] == [["one", "two"]] * 2


def test_a_mirror_that_begins_late_begins_at_the_oldest_row(nodes: Nodes) -> None:
    run, link = make_run(nodes[0]), Link(*nodes, most=200)
    write(run.writer, 100)
    link.turn()
    assert not any(one.shards for one in entries(nodes[1]))  # nobody reads it before it has caught up
    link.settle()
    copy = mirrored(nodes[1])
    first = 100 - ROWS + 2  # a sixteenth of the ring is left to the writer
    assert copy.head == 100 and rewards(copy, first) == list(range(first, 100))
    assert (copy.columns["boundary"][(first - 1) % ROWS] == CUT).all() and link.mirrors.lost == 0


def test_rows_that_were_missed_are_cut_and_counted(nodes: Nodes) -> None:
    run, link = make_run(nodes[0]), Link(*nodes)
    write(run.writer, 10)
    link.settle()
    write(run.writer, 50)
    link.settle()
    copy = mirrored(nodes[1])
    kept = 60 - ROWS + ROWS // 8
    assert copy.head == 60 and rewards(copy, kept) == list(range(kept, 60)) and link.mirrors.lost == kept - 10
    write(run.writer, 10 * ROWS)  # nothing of it follows: it begins again
    link.settle()
    assert mirrored(nodes[1]).head == run.writer.head


def test_a_run_that_ends_or_begins_again(nodes: Nodes) -> None:
    run, link = make_run(nodes[0]), Link(*nodes)
    write(run.writer, 10)
    link.settle()
    before = mirrored(nodes[1])
    run.remove()
    link.settle()
    assert entries(nodes[1]) == [] and before.head == 10  # still mapped
    again = make_run(nodes[0])
    write(again.writer, 3)
    link.settle()
    assert mirrored(nodes[1]).head == 3
    again.writer.columns["reward"][:] = 7.0  # another shard in the same place
    path = again.reader.path
    shutil.rmtree(path)
    other = MemberShard(again.member, SCHEMA, ROWS, 1, MEANING)
    write(other.writer, 2)
    link.settle()
    assert rewards(mirrored(nodes[1]), 0) == [0.0, 1.0]


def test_a_successor_continues_without_a_row_twice(nodes: Nodes) -> None:
    run, first = make_run(nodes[0]), Link(*nodes)
    write(run.writer, 30)
    first.settle()
    copy = mirrored(nodes[1])
    copy_writer = Link(*nodes)  # the first one was killed
    write(run.writer, 20)
    assert copy_writer.mirrors.wanted(NODE)[run.member.buffer_id].rows == (30,)
    copy_writer.settle()
    assert copy.head == 50 and rewards(copy, 50 - 20) == list(range(30, 50))
    first.settle()  # alive after all: it sees that it was replaced, and begins a mirror of its own
    assert copy.head == 50


def test_a_successor_removes_what_is_not_whole(nodes: Nodes) -> None:
    run, link = make_run(nodes[0]), Link(*nodes)
    write(run.writer, 30)
    link.settle()
    shard = mirrored(nodes[1]).path
    (shard / "reward.bin").unlink()
    assert MirroredPeers(nodes[1]).wanted(NODE) == {} and entries(nodes[1]) == []


def test_a_node_that_is_silent_is_dropped_after_the_usual_time(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    run, link = make_run(nodes[0]), Link(*nodes)
    write(run.writer, 10)
    link.settle()
    link.mirrors.drop_silent()
    assert entries(nodes[1])
    monkeypatch.setattr(link.mirrors._registry, "stale_seconds", 0.0)
    link.mirrors.drop_silent()
    assert entries(nodes[1]) == [] and link.mirrors.wanted(NODE) == {}


def test_without_room_a_peer_is_refused_with_the_numbers(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    run, own, link = make_run(nodes[0]), make_run(nodes[1], "two"), Link(*nodes)
    write(run.writer, 10)
    write(own.writer, 10)
    monkeypatch.setattr(mirrored_peers, "available", lambda path: 100)
    link.settle()
    pool = Pool([own.reader], own.member.buffer_id, nodes[1], MEANING, "self_heavy", 1.0)
    assert pool.draws(8) == 0
    assert pool.refused["one"].startswith("there is no room for a copy of its rows on this machine: it needs 1.1 KiB")
    assert not list(nodes[1].path.glob("*/shard_*"))
    monkeypatch.undo()
    monkeypatch.setattr(mirrored_peers, "RETRY_SECONDS", 0.0)
    link.settle()
    assert mirrored(nodes[1]).head == 10


def test_what_others_damaged_is_not_offered_and_other_spaces_are_refused(nodes: Nodes) -> None:
    run, own = make_run(nodes[0]), make_run(nodes[1], "two")
    strange = make_run(nodes[0], "strange", meaning=replace(MEANING, action="Box(2)"))
    link = Link(*nodes)
    for one in (run, own, strange):
        write(one.writer, 10)
    link.settle()
    run.writer.header[Header.HEAD] = 2**50
    link.settle()
    assert sorted(one.run_id for one in entries(nodes[1])) == ["strange", "two"]
    pool = Pool([own.reader], own.member.buffer_id, nodes[1], MEANING, "self_heavy", 1.0)
    assert pool.draws(8) == 0 and pool.refused == {"strange": "its action space is Box(2), here it is Box(1)"}
