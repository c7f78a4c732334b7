"""Where shards go: shared memory, the disk, or nowhere with the numbers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from shoal.errors import NoSpace
from shoal.replay import storage
from shoal.replay.storage import (
    available,
    choose_folder,
    folder_bytes,
    gib,
    replay_folders,
    sharing_folder,
    sharing_folders,
)

GIB = 2**30


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Shared memory of 4 GiB and a disk of 10 GiB on a machine with 100 GiB of free memory."""
    memory, disk = tmp_path / "shm", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    free = {memory: 4 * GIB, disk: 10 * GIB}
    machine = SimpleNamespace(available=100 * GIB)

    def disk_usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=next(size for root, size in free.items() if path.is_relative_to(root)))

    monkeypatch.setattr(storage, "SHARED_MEMORY", memory)
    monkeypatch.setattr(storage.shutil, "disk_usage", disk_usage)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    return SimpleNamespace(memory=memory, disk=disk, free=free, machine=machine)


def test_what_fits_goes_to_shared_memory(places: SimpleNamespace) -> None:
    folder = choose_folder("run", 4 * GIB, None, places.disk)
    assert folder.is_dir() and folder.is_relative_to(places.memory)
    assert (folder.parent.stat().st_mode & 0o777, folder.name) == (0o700, "run")
    assert list(replay_folders()) == [folder]


def test_what_does_not_fit_there_goes_to_the_disk(places: SimpleNamespace) -> None:
    assert choose_folder("run", 4 * GIB + 1, None, places.disk) == places.disk / "run"
    assert list(replay_folders()) == []


def test_a_machine_short_of_memory_keeps_its_share(places: SimpleNamespace) -> None:
    places.machine.available = 2 * GIB
    assert available(places.memory) == int(2 * GIB * storage.MEMORY_SHARE)
    assert choose_folder("run", 2 * GIB, None, places.disk) == places.disk / "run"
    assert available(places.disk) == 10 * GIB


def test_no_shared_memory_means_the_disk(places: SimpleNamespace) -> None:
    places.memory.rmdir()
    assert choose_folder("run", 1, None, places.disk) == places.disk / "run"


def test_what_fits_nowhere_is_refused_with_the_numbers(places: SimpleNamespace) -> None:
    with pytest.raises(NoSpace) as refused:
        choose_folder("run", 11 * GIB, None, places.disk)
    for words in (
        "needs 11.0 GiB",
        "4.0 GiB",
        "10.0 GiB",
        str(places.disk),
        "replay.capacity",
        "replay.path",
        "shoal clean",
    ):
        assert words in str(refused.value)
    assert list(places.disk.iterdir()) == []


def test_the_requested_place_is_taken_or_refused_by_name(places: SimpleNamespace) -> None:
    wanted = places.disk / "here"
    assert choose_folder("run", 10 * GIB, wanted, places.disk) == wanted / "run"
    with pytest.raises(NoSpace, match=rf"needs 10\.1 GiB, but replay\.path = {wanted} has 10\.0 GiB free"):
        choose_folder("run", int(10.1 * GIB), wanted, places.disk)


def test_two_runs_of_one_name_get_two_folders(places: SimpleNamespace) -> None:
    first, second = (choose_folder("run", 1, None, places.disk) for _ in range(2))
    assert first != second and first.parent == second.parent
    assert set(replay_folders()) == {first, second}


def test_a_replay_is_closed_to_others_wherever_it_is(places: SimpleNamespace) -> None:
    for folder in (
        choose_folder("run", 1, None, places.disk),
        choose_folder("run", 5 * GIB, None, places.disk),
        choose_folder("run", 1, places.disk / "asked" / "for", places.disk),
        choose_folder("run", 1, places.disk / "asked" / "for", places.disk),
    ):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_was_made_readable_is_closed(places: SimpleNamespace) -> None:
    storage._base(places.memory).mkdir(mode=0o755)
    folder = sharing_folder("registry")
    assert folder.parent == storage._base(places.memory) and folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without a name")
def test_a_user_without_a_name_has_a_folder_too() -> None:
    program = (
        "import os; from pathlib import Path; from shoal.replay import storage; os.setuid(54321); "
        "[os.environ.pop(name, None) for name in ('LOGNAME', 'USER', 'LNAME', 'USERNAME')]; "
        "print(storage._base(Path('/there')))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "/there/shoal-54321"


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A place that every user of the machine can write to, as shared memory and the temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-tests-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


PLANTED = ("mkdir -m 755 {0}", "mkdir -m 777 {0}", "mkdir -m 777 {0}-his && ln -s {0}-his {0}", "ln -s /nowhere {0}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")
@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("fallback", [False, True], ids=["shared memory", "temporary folder"])
def test_what_another_user_was_first_to_make_is_not_used(
    everybodys: Path, monkeypatch: pytest.MonkeyPatch, plant: str, fallback: bool
) -> None:
    monkeypatch.setattr(storage, "SHARED_MEMORY", Path("/nowhere") if fallback else everybodys)
    monkeypatch.setattr(tempfile, "tempdir", str(everybodys))
    base = storage._base(everybodys)
    subprocess.run(["sh", "-c", plant.format(base)], user="nobody", check=True)
    registries = [sharing_folder(name) for name in ("one", "two")]
    assert registries[0].parent == registries[1].parent != base
    found = registries[0].parent.lstat()
    assert stat.S_ISDIR(found.st_mode) and (found.st_mode & 0o777, found.st_uid) == (0o700, os.geteuid())
    assert registries[0].parent.parent == everybodys
    for registry in registries:
        registry.mkdir()
        (registry / "registry.json").touch()
    assert list(sharing_folders()) == registries  # `shoal clean` finds them again


def test_a_petabyte_is_refused_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match=r"needs 1048576\.0 GiB"):
        choose_folder("run", 2**50, None, tmp_path)


def test_folder_bytes_are_those_really_taken(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "full").write_bytes(bytes(range(256)) * 1024)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(GIB)
    assert 256 * 1024 <= folder_bytes(tmp_path) < 512 * 1024


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * GIB // 2, "1.5 GiB")]
)
def test_sizes_as_people_read_them(nbytes: int, text: str) -> None:
    assert gib(nbytes) == text
