"""The buffers of a group as one run sees them: who is in, who is refused, and how often each is drawn from."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.replay import Column, Keys, Schema, ShardInfo, ShardReader, ShardWriter, create_shard
from shoal.replay.shard_files import Header
from shoal.sharing import Description, Registry, SharedBuffer, create_distributed_registry
from shoal.sharing.pool import Pool
from shoal.types import Transition

pytestmark = pytest.mark.usefixtures("always_look")
STREAM = (
    *(Column("obs", "int64"), Column("action", "int64"), Column("reward", "float32")),
    *(Column("terminated", "bool"), Column("truncated", "bool"), Column("boundary", "uint8")),
)
NEXT = (*STREAM, Column("next_obs", "int64"))
DESCRIPTION = Description("Toy-v0", "Discrete(9)", "Discrete(2)", "env")


class Member:
    """A buffer of a group, written by the test itself."""

    def __init__(
        self,
        registry: Registry,
        run: str,
        sizes: tuple[int, ...],
        *,
        lanes: int = 1,
        ring: int = 2000,
        columns: tuple[Column, ...] = NEXT,
        description: Description = DESCRIPTION,
    ) -> None:
        self.registry, self.buffer_id = registry, registry.register_buffer(run, "DQN")
        folder = registry.folder(self.buffer_id)
        self.paths = tuple(folder / f"shard_{index}" for index in range(len(sizes)))
        self.writers = []
        for path, size in zip(self.paths, sizes, strict=True):
            create_shard(path, ShardInfo(Schema(columns), ring, lanes))
            self.writers.append(ShardWriter(path))
            self.write(self.writers[-1], size)
        self.entry = SharedBuffer(self.buffer_id, run, "DQN", 1, description, self.paths)
        registry.announce(self.entry)

    def write(self, writer: ShardWriter, rows: int) -> None:
        """Rows of zeros."""
        for _ in range(rows):
            row = {c.name: np.zeros((writer.info.lanes, *c.shape), c.dtype) for c in writer.info.schema.columns}
            writer.append(row)

    def pool(self, strategy: Any = "self_heavy", ratio: float = 0.5, **options: Any) -> Pool:
        """This member's view of the group."""
        own = [ShardReader(path) for path in self.paths]
        return Pool(own, self.buffer_id, self.registry, self.entry.description, strategy, ratio, **options)


def draw(pool: Pool, count: int) -> Keys:
    keys = Keys(np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.int64))
    pool.refresh()
    assert pool.draw(count, keys, 0)
    return keys


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        ("self_heavy", [0, 0.25, 0.75]),
        ("uniform", [1 / 3, 1 / 3, 1 / 3]),
        ("weighted", [1 / 3, 1 / 6, 1 / 2]),
        ("newest", [1 / 3, 1 / 6, 1 / 2]),
    ],
)
def test_each_buffer_is_drawn_as_the_strategy_says(group: Registry, strategy: str, shares: list[float]) -> None:
    """The third buffer has two shards and the second two lanes: a buffer's part is that of all its rows."""
    one = Member(group, "one", (200,))
    Member(group, "two", (50,), lanes=2)
    Member(group, "three", (100, 200))
    pool = one.pool(strategy)
    keys = draw(pool, 30_000)
    order = [len(buffer.entry.shards) if buffer.entry else 0 for buffer in pool._buffers]
    counts = np.bincount(keys.shard, minlength=4) / 30_000
    by_buffer = {0: counts[0]}
    place = 1
    for shards in order[1:]:
        by_buffer[shards] = counts[place : place + shards].sum()
        place += shards
    assert [by_buffer[index] for index in (0, 1, 2)] == pytest.approx(shares, abs=0.015)
    drawn = {run: one.samples / 30_000 for run, one in pool.counted().items()}
    assert drawn.get("two", 0) == pytest.approx(shares[1], abs=0.015)
    assert drawn.get("three", 0) == pytest.approx(shares[2], abs=0.015)
    assert set(keys.lane[keys.shard == pool._buffers[1 if order[1] == 1 else 2].place].tolist()) == {0, 1}
    if strategy == "newest":
        assert keys.logical[keys.shard == 0].min() == 160


def test_a_small_buffer_is_not_drawn_from_yet(group: Registry) -> None:
    one, small = Member(group, "one", (100,)), Member(group, "small", (9,))
    pool = one.pool()
    assert pool.draws(64) == 0 and pool.sizes() == {"small": 9} and len(pool.peers) == 1
    small.write(small.writers[0], 1)
    assert pool.draws(64) == 32


def test_alone_there_is_no_pool(group: Registry) -> None:
    pool = Member(group, "one", (100,)).pool()
    assert pool.draws(64) == 0 and pool.peers == [] and pool.counted() == {}
    keys = Keys(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64))
    assert not pool.draw(1, keys, 0)


@pytest.mark.parametrize(("strategy", "ratio"), [("local_only", 0.5), ("self_heavy", 0.0)])
def test_who_does_not_read_does_not_even_look(group: Registry, strategy: str, ratio: float) -> None:
    one, _ = Member(group, "one", (100,)), Member(group, "two", (100,))
    pool = one.pool(strategy, ratio)
    assert pool.draws(64) == 0 and pool.peers == []


@pytest.mark.parametrize(
    ("change", "columns", "what"),
    [
        ({"env_id": "Else-v0"}, NEXT, "its environment is Else-v0"),
        ({"observation": "Discrete(8)"}, NEXT, "its observation space is Discrete(8)"),
        ({"action": "Discrete(3)"}, NEXT, "its action space is Discrete(3)"),
        ({"action_scaling": "unit"}, NEXT, "its scaling of actions is unit"),
        ({"reward": "clipped to 1"}, NEXT, "its reward is clipped to 1"),
        ({}, tuple(replace(c, dtype="int32") if c.name == "obs" else c for c in NEXT), "obs is int32 there"),
        ({}, tuple(c for c in NEXT if c.name != "truncated"), "truncated is missing"),
    ],
)
def test_who_differs_is_refused_by_name_and_the_others_are_used(
    group: Registry, change: dict[str, str], columns: tuple[Column, ...], what: str
) -> None:
    one, _ = Member(group, "one", (100,)), Member(group, "alike", (100,))
    odd = Member(group, "odd", (100,), columns=columns, description=replace(DESCRIPTION, **change))
    pool = one.pool("weighted")
    assert pool.draws(64) == 32 and [peer.run_id for peer in pool.peers] == ["alike"]
    assert list(pool.refused) == ["odd"] and what in pool.refused["odd"]
    assert pool.sizes() == {"alike": 100}
    group.deregister_buffer(odd.buffer_id)
    assert pool.draws(64) == 32


def test_who_does_not_say_its_environment_is_taken(group: Registry) -> None:
    one = Member(group, "one", (100,))
    Member(group, "quiet", (100,), description=replace(DESCRIPTION, env_id=""))
    assert one.pool().draws(64) == 32


def test_a_run_without_next_observations_reads_one_with_them(group: Registry) -> None:
    one, _ = Member(group, "one", (100,), columns=STREAM), Member(group, "two", (100,))
    assert one.pool().draws(64) == 32
    assert one.pool(n_steps=3).draws(64) == 32


@pytest.mark.parametrize("damage", ["schema.json", "header.bin", "reward.bin", "shard"])
def test_a_damaged_shard_is_refused_by_name(group: Registry, damage: str) -> None:
    one, _, bad = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "bad", (100,))
    if damage == "shard":
        bad.paths[0].rename(bad.paths[0].with_name("elsewhere"))
    else:
        (bad.paths[0] / damage).write_bytes(b"{")
    pool = one.pool()
    assert pool.draws(64) == 32 and list(pool.refused) == ["bad"] and pool.refused["bad"]
    assert [peer.run_id for peer in pool.peers] == ["fine"]


def test_one_that_is_mended_is_taken(group: Registry) -> None:
    one, odd = Member(group, "one", (100,)), Member(group, "odd", (100,))
    group.announce(replace(odd.entry, description=replace(DESCRIPTION, env_id="Else-v0")))
    pool = one.pool()
    assert pool.draws(64) == 0 and "odd" in pool.refused
    group.announce(odd.entry)
    assert pool.draws(64) == 32 and pool.refused == {}


def test_buffers_come_and_go_and_what_was_read_is_kept(group: Registry) -> None:
    one = Member(group, "one", (100,))
    others = [Member(group, f"run-{index}", (100,) * (1 + index % 2)) for index in range(4)]
    pool = one.pool()
    draw(pool, 1000)
    before = Counter({run: drawn.samples for run, drawn in pool.counted().items()})
    assert sum(before.values()) == 1000 and len(before) == 4
    for leaving in (others[1], others[0]):
        group.deregister_buffer(leaving.buffer_id)
        keys = draw(pool, 1000)
        for buffer in pool._buffers[1:]:
            assert buffer.entry is not None and pool.table.shards[buffer.place].path == buffer.entry.shards[0]
        assert set(keys.shard.tolist()) == set(range(1, len(pool.table.shards)))
    after = {run: drawn.samples for run, drawn in pool.counted().items()}
    assert sum(after.values()) == 3000 and after["run-1"] == before["run-1"]
    assert len(pool.table.shards) == 1 + sum(len(other.paths) for other in others[2:])
    for leaving in others[2:]:
        group.deregister_buffer(leaving.buffer_id)
    assert pool.draws(64) == 0 and pool.peers == [] and len(pool.table.shards) == 1


def test_ages_are_rows_behind_the_newest(group: Registry) -> None:
    one, _ = Member(group, "one", (100,)), Member(group, "two", (100,))
    pool = one.pool()
    keys = draw(pool, 500)
    assert pool.counted()["two"].age == (99 - keys.logical).sum()


def test_the_same_seed_draws_the_same(group: Registry) -> None:
    one, _ = Member(group, "one", (100,)), Member(group, "two", (100,))
    first, second, other = one.pool(seed=4), one.pool(seed=4), one.pool(seed=5)
    assert np.array_equal(draw(first, 50).logical, draw(second, 50).logical)
    assert not np.array_equal(draw(first, 50).logical, draw(other, 50).logical)


@pytest.mark.parametrize("strategy", ["self_heavy", "newest"])
def test_a_buffer_of_the_least_size_stays_when_its_ring_wraps(strategy: str) -> None:
    """A ring as large as `min_buffer_size`: full is full, however often it was overwritten."""
    group = create_distributed_registry(min_buffer_size=160)
    try:
        one, two = Member(group, "one", (100,)), Member(group, "two", (160,), ring=160)
        pool = one.pool(strategy)
        before = pool.draws(64)
        two.write(two.writers[0], 1)
        assert (before, pool.draws(64)) == (32, 32)
    finally:
        group.stop()


def test_who_left_is_no_longer_refused(group: Registry) -> None:
    one, odd = Member(group, "one", (100,)), Member(group, "odd", (100,), description=replace(DESCRIPTION, reward="x"))
    pool = one.pool()
    pool.refresh()
    assert list(pool.refused) == ["odd"]
    group.deregister_buffer(odd.buffer_id)
    pool.refresh()
    assert pool.refused == {}


def test_two_buffers_of_one_run_are_two(group: Registry) -> None:
    one = Member(group, "one", (100,))
    Member(group, "two", (100,))
    Member(group, "two", (50,))
    pool = one.pool()
    pool.refresh()
    assert sum(pool.sizes().values()) == 150


def test_a_damaged_entry_is_refused_by_name(group: Registry) -> None:
    one, bad = Member(group, "one", (100,)), Member(group, "bad", (100,))
    (group.folder(bad.buffer_id) / "entry.json").write_text("{")
    pool = one.pool()
    pool.refresh()
    assert any("bad" in name for name in pool.refused)


def test_a_next_observation_of_another_shape_is_refused(group: Registry) -> None:
    odd = tuple(replace(c, dtype="uint8") if c.name == "next_obs" else c for c in NEXT)
    one, _ = Member(group, "one", (100,)), Member(group, "odd", (100,), columns=odd)
    pool = one.pool()
    pool.refresh()
    assert list(pool.refused) == ["odd"]


def test_a_missing_folder_is_no_error(group: Registry) -> None:
    one, two = Member(group, "one", (100,)), Member(group, "two", (100,))
    pool = one.pool()
    assert pool.draws(64) == 32
    away = group.path.with_name("away")
    group.path.rename(away)
    assert pool.draws(64) == 0 and pool.peers == []
    away.rename(group.path)
    assert pool.draws(64) == 32 and pool.peers == [two.entry]


def _set_word(member: Member, word: Header, value: int) -> None:
    with (member.paths[0] / "header.bin").open("r+b") as file:
        file.seek(8 * word)
        file.write(value.to_bytes(8, "little"))


HEADERS = [(2**63 + 5, 2**63 + 5), (2**64 - 1, 2**64 - 1), (2**62, 100), (100, 2**63 - 1), (5000, 100)]


@pytest.mark.parametrize(("head", "claim"), HEADERS)
@pytest.mark.parametrize("when", ["before", "between two looks", "while it is read"])
def test_a_header_that_cannot_be_is_refused_by_name(group: Registry, head: int, claim: int, when: str) -> None:
    one, _, bad = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "bad", (100,))
    pool = one.pool()
    if when != "before":
        pool.refresh()
        assert len(pool.peers) == 2
    keys = draw(pool, 64) if when == "while it is read" else Keys.empty(64)
    _set_word(bad, Header.HEAD, head)
    _set_word(bad, Header.CLAIM, claim)
    if when == "while it is read":  # nothing is raised, whatever the words are
        torn = pool.table.torn(keys, np.arange(64))
        assert not len(torn) or pool.redraw(keys, torn)
    assert pool.draws(64) == 32 and "head" in pool.refused["bad"]
    assert pool.sizes() == {"fine": 100} and pool.draw(64, keys, 0)


@pytest.mark.parametrize("name", ["obs.bin", "header.bin"])
def test_a_file_that_was_cut_is_found_before_it_is_read(group: Registry, name: str) -> None:
    one, _, bad = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "bad", (100,))
    pool = one.pool()
    pool.refresh()
    os.truncate(bad.paths[0] / name, 8)
    pool.refresh()
    assert f"its {name} was cut to 8" in pool.refused["bad"]
    assert [peer.run_id for peer in pool.peers] == ["fine"] and pool.draws(64) == 32


def _column(path: Path, **changed: Any) -> None:
    described = json.loads((path / "schema.json").read_text())
    described["columns"].append({"name": "more", "dtype": "int64", "shape": [], **changed})
    (path / "schema.json").write_text(json.dumps(described))
    for name in ("more.bin", "../more.bin"):
        (path / name).write_bytes(bytes(8 * 2000))


def _replaced(path: Path, how: str) -> None:
    path.rename(path.with_name("real"))
    os.mkfifo(path) if how == "pipe" else path.symlink_to(path.with_name("real"))


SICK = {
    "pipe for a header": lambda path: _replaced(path / "header.bin", "pipe"),
    "pipe for a schema": lambda path: _replaced(path / "schema.json", "pipe"),
    "pipe for a column": lambda path: _replaced(path / "obs.bin", "pipe"),
    "link for a column": lambda path: _replaced(path / "obs.bin", "link"),
    "nested schema": lambda path: (path / "schema.json").write_text("[" * 100_000),
    "huge schema": lambda path: (path / "schema.json").write_bytes(b" " * (1 << 21)),
    "endless schema": lambda path: (path / "schema.json").write_text(
        (path / "schema.json").read_text().replace('"rows": 2000', '"rows": Infinity')
    ),
    "column of objects": lambda path: _column(path, dtype="object"),
    "column elsewhere": lambda path: _column(path, name="../more"),
}


@pytest.mark.parametrize("sickness", sorted(SICK))
def test_files_that_nobody_should_write_are_refused_by_name(group: Registry, sickness: str) -> None:
    one, _, bad = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "bad", (100,))
    assert {stats["rows"] for stats in group.get_buffer_stats().values()} == {100}
    SICK[sickness](bad.paths[0])
    assert group.get_buffer_stats()[bad.buffer_id]["rows"] == 0
    pool = one.pool()
    assert pool.draws(64) == 32 and list(pool.refused) == ["bad"]
    assert pool.refused["bad"].isprintable() and [peer.run_id for peer in pool.peers] == ["fine"]


@pytest.mark.parametrize("whose", ["mine", "another's", "its own, twice", "behind a link"])
def test_shards_that_are_not_its_own_are_refused_by_name(group: Registry, tmp_path: Path, whose: str) -> None:
    one, fine, bad = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "zbad", (100,))
    (tmp_path / "link").symlink_to(one.paths[0])
    said = {"mine": one.paths, "another's": fine.paths, "its own, twice": bad.paths * 2}
    group.announce(replace(bad.entry, shards=said.get(whose, (tmp_path / "link",))))
    pool = one.pool()
    assert pool.draws(64) == 32 and list(pool.refused) == ["zbad"] and pool.sizes() == {"fine": 100}


def test_a_peer_without_anything_to_draw_does_not_stop_the_others(group: Registry) -> None:
    one, _, barren = Member(group, "one", (100,)), Member(group, "fine", (100,)), Member(group, "barren", (500,))
    barren.writers[0].columns["boundary"][:500] = 1
    pool = one.pool()
    keys = draw(pool, 200)
    assert {pool.table.shards[place].path for place in set(keys.shard.tolist())} == {
        path for buffer in pool.peers if buffer.run_id == "fine" for path in buffer.shards
    }
    assert pool.counted()["fine"].samples == 200 and pool.counted()["barren"].samples == 0
    assert pool.counted()["fine"].age == (99 - keys.logical).sum()


def test_who_hands_out_nonsense_is_refused_until_it_announces_itself_anew(group: Registry) -> None:
    floats = tuple(replace(c, dtype="float32") if c.name.endswith("obs") else c for c in NEXT)
    one, _, bad = (Member(group, name, (100,), columns=floats) for name in ("one", "fine", "bad"))
    pool = one.pool()
    keys, places = draw(pool, 200), np.arange(200)
    obs = np.zeros((200, 1), np.float32)
    theirs = next(buffer.place for buffer in pool._buffers if buffer.entry == bad.entry)
    wrong = np.flatnonzero(keys.shard == theirs)[:3]
    obs[wrong] = np.nan
    batch = Transition(obs, np.zeros(200, int), np.zeros(200, np.float32), np.ones(200, np.float32), obs)
    assert set(pool.unsound(keys, places, batch)) == set(wrong) and pool.refused == {
        "bad": "it wrote nan in an observation"
    }
    assert pool.redraw(keys, wrong) and theirs not in keys.shard[wrong]
    assert pool.draws(64) == 32 and pool.sizes() == {"fine": 100} and list(pool.refused) == ["bad"]
    group.announce(replace(bad.entry, made=1.0))
    assert pool.draws(64) == 32 and len(pool.peers) == 2 and pool.refused == {}


def test_another_thread_may_ask_while_peers_come_and_go(group: Registry) -> None:
    """As the learner's reports do, beside the thread that draws."""
    one = Member(group, "one", (100,))
    pool, stop, failed = one.pool(), threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                pool.counted(), pool.sizes(), pool.peers, dict(pool.refused)
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=ask)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for number in range(40):
            guests = [Member(group, f"run-{number}-{index}", (20,)) for index in range(2)]
            draw(pool, 50)
            group.deregister_buffer(guests[0].buffer_id)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(switch)
    assert failed == [] and sum(one.samples for one in pool.counted().values()) == 40 * 50
