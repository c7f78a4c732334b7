"""A folder of buffers: names, signs of life, and who removes what."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ConfigError
from shoal.sharing import Description, Registry, SharedBuffer, connect_registry, create_distributed_registry
from shoal.sharing.process import ProcessId
from shoal.sharing.registry import REGISTRY

DESCRIPTION = Description("Toy-v0", "Discrete(2)", "Discrete(3)", "env")


def test_a_buffer_is_found_by_everyone(group: Registry) -> None:
    buffer_id = group.register_buffer("my_run_1", "SAC", "Toy-v0")
    entry = SharedBuffer(buffer_id, "my_run_1", "SAC", os.getpid(), DESCRIPTION, (Path("/x/shard"),), env_id="Toy-v0")
    group.announce(entry)
    other = connect_registry(group.path)
    assert list(other.entries()) == [entry]
    assert other.get_buffer_stats()[buffer_id] == {"run_id": "my_run_1", "algorithm": "SAC", "rows": 0}
    other.deregister_buffer(buffer_id)
    assert list(group.entries()) == [] and group.entry(buffer_id) is None
    group.deregister_buffer(buffer_id)  # twice does no harm


def test_registering_twice_gives_two_buffers(group: Registry) -> None:
    ids = {group.register_buffer("same", "SAC") for _ in range(50)}
    assert len(ids) == 50 == len(list(group.entries()))


def test_the_environment_variable_names_it(group: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=REGISTRY):
        connect_registry()
    monkeypatch.setenv(REGISTRY, str(group.path))
    assert connect_registry().path == group.path


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no registry"):
        connect_registry(tmp_path)
    (tmp_path / "registry.json").write_text("{")
    with pytest.raises(ConfigError, match="is no registry"):
        connect_registry(tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "../up", ".hidden", "a/b", "x" * 152, "new\nline"])
def test_names_that_are_no_folders_are_refused(group: Registry, name: str) -> None:
    with pytest.raises(ConfigError, match="run_id"):
        group.register_buffer(name, "SAC")
    with pytest.raises(ConfigError, match="buffer_id"):
        group.folder(name)


@pytest.mark.parametrize("wrong", [{"max_buffer_size": 0}, {"min_buffer_size": 0}, {"stale_seconds": 0.0}])
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        create_distributed_registry(**wrong)


def test_a_second_maker_joins(tmp_path: Path) -> None:
    first = create_distributed_registry(500, path=tmp_path / "group", stale_seconds=7)
    second = create_distributed_registry(900, path=tmp_path / "group")
    assert (second.max_buffer_size, second.stale_seconds) == (500, 7)
    second.stop()
    assert first.exists, "only its maker removes it"
    first.stop()
    assert not first.exists and list(tmp_path.iterdir()) == []


def test_many_makers_at_once_make_one(tmp_path: Path) -> None:
    made: list[Registry] = []
    barrier = threading.Barrier(8)

    def make(size: int) -> None:
        barrier.wait()
        made.append(create_distributed_registry(size, path=tmp_path / "group"))

    threads = [threading.Thread(target=make, args=(size,)) for size in range(1000, 1008)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({registry.max_buffer_size for registry in made}) == 1
    assert sum(registry._owner for registry in made) == 1
    assert sorted(path.name for path in (tmp_path / "group").iterdir()) == ["registry.json"]


def test_a_copy_travels_between_processes(group: Registry) -> None:
    copy = pickle.loads(pickle.dumps(group))
    assert (copy.path, copy.min_buffer_size) == (group.path, 10)
    copy.stop()
    assert group.exists, "a copy is not its maker"
    group.stop()
    gone = pickle.loads(pickle.dumps(group))
    assert not gone.exists and list(gone.entries()) == []


def held_by(registry: Registry, buffer_id: str, **changed: Any) -> None:
    """As if another process held it: by default one that ended, whose number this process has got since."""
    holder = replace(ProcessId.current(), **(changed or {"started": 1.0}))
    (registry.folder(buffer_id) / "alive").write_text(json.dumps(asdict(holder)))


def age(registry: Registry, buffer_id: str, seconds: float = 1e4) -> None:
    """As if there had been no sign of life for so long, or the clock had been set."""
    os.utime(registry.folder(buffer_id) / "alive", (time.time() - seconds,) * 2)


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_silence_removes_the_buffer_of_a_process_that_ended(group: Registry) -> None:
    """The same number does not make it the same process."""
    dead, alive = group.register_buffer("dead", "SAC"), group.register_buffer("alive", "SAC")
    held_by(group, dead)
    (group.folder(dead) / "shard").mkdir()
    assert len(list(group.entries())) == 2, "its rows are served for a while"
    for buffer_id in (dead, alive):
        age(group, buffer_id)
    assert [entry.run_id for entry in connect_registry(group.path).entries()] == ["alive"]
    assert not any("dead" in path.name for path in group.path.iterdir()), "hidden leftovers count, too"
    group.deregister_buffer(alive)
    assert [path.name for path in group.path.iterdir()] == ["registry.json"]


def test_of_a_process_elsewhere_only_silence_that_was_seen_counts(tmp_path: Path) -> None:
    """The clock may have been set, or the machine have slept: an old date alone says nothing."""
    registry = create_distributed_registry(path=tmp_path / "group", stale_seconds=0.5)
    buffer_id = registry.register_buffer("one", "SAC")
    registry._quiet(buffer_id)
    held_by(registry, buffer_id, machine="another container")
    age(registry, buffer_id)
    began = time.monotonic()
    assert len(list(registry.entries())) == 1
    wait_for(lambda: not list(registry.entries()))
    assert time.monotonic() - began > 0.5 and not registry.folder(buffer_id).exists()
    registry.stop()


def test_who_was_removed_and_lives_comes_back(tmp_path: Path) -> None:
    registry = create_distributed_registry(path=tmp_path / "group", stale_seconds=0.2)
    buffer_id = registry.register_buffer("one", "SAC", "Toy-v0")
    (tmp_path / "elsewhere").mkdir()
    who = (buffer_id, "one", "SAC", os.getpid())
    entry = SharedBuffer(*who, DESCRIPTION, (tmp_path / "elsewhere",), env_id="Toy-v0")
    presence = registry.announce(entry)
    shutil.rmtree(registry.folder(buffer_id))
    wait_for(lambda: presence.returns)
    assert registry.entry(buffer_id) == entry and not presence.rows_lost
    (tmp_path / "elsewhere").rmdir()
    shutil.rmtree(registry.folder(buffer_id))
    wait_for(lambda: presence.returns == 2)
    assert presence.rows_lost and registry.entry(buffer_id) == SharedBuffer(*who, env_id="Toy-v0")
    registry.deregister_buffer(buffer_id)
    time.sleep(0.2)
    assert list(registry.entries()) == [], "who was deregistered does not"
    registry.register_buffer("two", "SAC")
    registry.stop()
    time.sleep(0.2)
    assert not registry.path.exists(), "nor does anybody whose registry is gone"


def test_what_was_handed_over_lives_as_long_as_the_registry_has_a_maker(group: Registry) -> None:
    buffer_id = group.register_buffer("ended", "SAC")
    joined = connect_registry(group.path)
    joined.hand_over(buffer_id)
    age(group, buffer_id)
    assert joined.is_held(buffer_id) and len(list(joined.entries())) == 1
    settings = json.loads((group.path / "registry.json").read_text())
    settings["maker"]["started"] = 1.0  # as if it had ended
    (group.path / "registry.json").write_text(json.dumps(settings))
    joined.hand_over(buffer_id)
    age(group, buffer_id)
    assert not joined.is_held(buffer_id) and not joined.maker_lives and list(joined.entries()) == []


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SICK = {
    "pipe": _pipe,
    "link": _link,
    "folder": _folder,
    "nested": lambda path: path.write_text("[" * 100_000),
    "huge": lambda path: path.write_bytes(b" " * (1 << 21)),
    "infinite": lambda path: path.write_text(path.read_text().replace('"made": 0.0', '"made": Infinity')),
    "name": lambda path: path.write_text(path.read_text().replace('"bad"', '"\\u001b[31m"')),
    "shards": lambda path: path.write_text(path.read_text().replace('"shards": []', '"shards": ["../.."]')),
}


@pytest.mark.parametrize("damage", sorted(SICK))
def test_an_entry_that_nobody_should_write_is_named_and_passed_over(group: Registry, damage: str) -> None:
    good, bad = group.register_buffer("good", "SAC"), group.register_buffer("bad", "SAC")
    SICK[damage](group.folder(bad) / "entry.json")
    look = group.look()
    assert [entry.buffer_id for entry in look.entries] == [good] and list(look.damaged) == [bad]
    assert "pydantic" not in look.damaged[bad]
    assert look.damaged[bad].isprintable() and len(look.damaged[bad]) < 400
    assert group.entry(bad) is None
    age(group, bad)
    assert bad in group.look().damaged, "its process lives: it is not removed"


def test_folders_that_are_no_buffers_are_named_or_passed_over(group: Registry, tmp_path: Path) -> None:
    good = group.register_buffer("good", "SAC")
    (group.path / "two words").mkdir()
    (group.path / "two words" / "entry.json").write_text("{}")
    (group.path / "linked").symlink_to(tmp_path)
    (group.path / "unlit").mkdir()
    os.mkfifo(group.path / "unlit" / "alive")
    look = group.look()
    assert [entry.buffer_id for entry in look.entries] == [good] and set(look.damaged) == {"linked", "two words"}


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"run_id": 1}', '{"description": "x"}', "\xff\xfe"])
def test_a_damaged_entry_is_no_entry(group: Registry, damage: str) -> None:
    good, bad = group.register_buffer("good", "SAC"), group.register_buffer("bad", "SAC")
    (group.folder(bad) / "entry.json").write_bytes(damage.encode("latin-1"))
    assert [entry.buffer_id for entry in group.entries()] == [good]
    assert group.entry(bad) is None
    assert set(group.get_buffer_stats()) == {good}


def test_a_folder_without_a_sign_of_life_is_passed_over(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    (group.path / "half-made").mkdir()
    (group.path / "a-file").write_text("")
    assert [entry.buffer_id for entry in group.entries()] == [buffer_id]


def test_an_entry_is_never_seen_half_written(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    entry, stop = SharedBuffer(buffer_id, "one", "SAC" * 1000, 1), threading.Event()

    def announce() -> None:
        while not stop.is_set():
            group.announce(entry)

    thread = threading.Thread(target=announce)
    thread.start()
    seen = {group.entry(buffer_id) for _ in range(300)}
    stop.set()
    thread.join()
    assert seen <= {entry, SharedBuffer(buffer_id, "one", "SAC", os.getpid())}
    assert "pid" in json.loads((group.folder(buffer_id) / "entry.json").read_text())


def test_after_its_end_nothing_raises(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    group.stop()
    group.stop()
    group.deregister_buffer(buffer_id)
    assert list(group.entries()) == [] and group.get_buffer_stats() == {} and not group.path.exists()


def test_what_was_left_half_made_is_removed_in_the_end(tmp_path: Path) -> None:
    registry = create_distributed_registry(path=tmp_path / "group", stale_seconds=0.1)
    left = registry.path / "killed-while-its-memory-was-reserved"
    (left / "shard.new").mkdir(parents=True)
    os.utime(left, (1, 1))
    list(registry.entries())
    try:
        assert not left.exists()
    finally:
        registry.stop()


def test_a_removal_that_was_cut_short_is_finished_by_others(tmp_path: Path) -> None:
    registry = create_distributed_registry(path=tmp_path / "group", stale_seconds=0.1)
    left = registry.path / ".run_1-12345"
    left.mkdir()
    os.utime(left, (1, 1))
    list(registry.entries())
    try:
        assert not left.exists()
    finally:
        registry.stop()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    """A registry removes what is in its folder."""
    (tmp_path / "thesis").mkdir()
    with pytest.raises(ConfigError, match="holds other files"):
        create_distributed_registry(path=tmp_path)
    assert (tmp_path / "thesis").is_dir() and not (tmp_path / "registry.json").exists()


def test_one_can_look_without_removing(tmp_path: Path) -> None:
    registry = create_distributed_registry(path=tmp_path / "registry", stale_seconds=0.05)
    (registry.path / "silent").mkdir()
    (registry.path / "silent" / "alive").touch()
    time.sleep(0.1)
    assert list(registry.entries(sweep=False)) == [] and (registry.path / "silent").is_dir()
    assert list(registry.entries()) == [] and not (registry.path / "silent").exists()
