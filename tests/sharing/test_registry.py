"""A folder of buffers: names, signs of life, and who removes what."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from shoal.errors import ConfigError
from shoal.sharing import Description, Entry, Registry, connect_registry, create_distributed_registry
from shoal.sharing.registry import REGISTRY

DESCRIPTION = Description("Toy-v0", "Discrete(2)", "Discrete(3)", "env")


def test_a_buffer_is_found_by_everyone(group: Registry) -> None:
    buffer_id = group.register_buffer("my_run_1", "SAC", "Toy-v0")
    entry = Entry(buffer_id, "my_run_1", "SAC", os.getpid(), DESCRIPTION, (Path("/x/shard"),))
    group.announce(entry, "Toy-v0")
    other = connect_registry(group.path)
    assert list(other.entries()) == [entry] and other.env_id(buffer_id) == "Toy-v0"
    assert other.get_buffer_stats()[buffer_id] == {"run_id": "my_run_1", "algorithm": "SAC", "rows": 0}
    other.deregister_buffer(buffer_id)
    assert list(group.entries()) == [] and group.entry(buffer_id) is None and group.env_id(buffer_id) == ""
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


def test_silence_removes_a_buffer_and_beats_keep_it(tmp_path: Path) -> None:
    registry = create_distributed_registry(path=tmp_path / "group", stale_seconds=0.5)
    silent, loud = registry.register_buffer("silent", "SAC"), registry.register_buffer("loud", "SAC")
    registry._quiet(silent)  # as if its process had died
    registry.keep_alive(loud)  # registering did so already: once is enough
    (registry.folder(silent) / "shard").mkdir()
    time.sleep(0.3)
    assert len(list(registry.entries())) == 2
    time.sleep(0.7)
    assert [entry.run_id for entry in registry.entries()] == ["loud"]
    assert not any("silent" in path.name for path in registry.path.iterdir()), "hidden leftovers count, too"
    registry.deregister_buffer(loud)
    assert [path.name for path in registry.path.iterdir()] == ["registry.json"]
    registry.stop()


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"run_id": 1}', '{"description": "x"}', "\xff\xfe"])
def test_a_damaged_entry_is_no_entry(group: Registry, damage: str) -> None:
    good, bad = group.register_buffer("good", "SAC"), group.register_buffer("bad", "SAC")
    (group.folder(bad) / "entry.json").write_bytes(damage.encode("latin-1"))
    assert [entry.buffer_id for entry in group.entries()] == [good]
    assert group.entry(bad) is None and group.env_id(bad) == ""
    assert set(group.get_buffer_stats()) == {good}


def test_a_folder_without_a_sign_of_life_is_passed_over(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    (group.path / "half-made").mkdir()
    (group.path / "a-file").write_text("")
    assert [entry.buffer_id for entry in group.entries()] == [buffer_id]


def test_an_entry_is_never_seen_half_written(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    entry, stop = Entry(buffer_id, "one", "SAC" * 1000, 1), threading.Event()

    def announce() -> None:
        while not stop.is_set():
            group.announce(entry, "Toy-v0")

    thread = threading.Thread(target=announce)
    thread.start()
    seen = {group.entry(buffer_id) for _ in range(300)}
    stop.set()
    thread.join()
    assert seen <= {entry, Entry(buffer_id, "one", "SAC", os.getpid())}
    assert "pid" in json.loads((group.folder(buffer_id) / "entry.json").read_text())


def test_after_its_end_nothing_raises(group: Registry) -> None:
    buffer_id = group.register_buffer("one", "SAC")
    group.keep_alive(buffer_id)
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
