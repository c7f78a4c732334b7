"""Copies of run folders between machines; here two folders stand for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.errors import UnsafePath
from shoal.runtime import copies
from shoal.runtime.copies import Folder, Stamp, copy_newer, fetch


@pytest.fixture
def there(tmp_path: Path) -> Folder:
    (tmp_path / "there" / "checkpoints").mkdir(parents=True)
    return Folder(tmp_path / "there")


@pytest.fixture
def here(tmp_path: Path) -> Folder:
    (tmp_path / "here").mkdir()
    return Folder(tmp_path / "here")


def test_files_of_any_size_arrive_with_their_times(
    here: Folder, there: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "CHUNK_BYTES", 10)
    contents = {"config.yaml": b"seed: 1\n", "empty": b"", "checkpoints/a": os.urandom(20), "checkpoints/b": b"x" * 37}
    for name, content in contents.items():
        (there.path / name).write_bytes(content)
    fetch(there, here, bulky=True)
    assert {name: (here.path / name).read_bytes() for name in contents} == contents
    assert here.stamps() == there.stamps()


def test_the_newer_file_stays_and_old_checkpoints_go(here: Folder, there: Folder) -> None:
    for folder, text, time in ((here, "mine", 2000), (there, "theirs", 1000)):
        (folder.path / "config.yaml").write_text(text)
        os.utime(folder.path / "config.yaml", (time, time))
    (there.path / "checkpoints" / "step_1").write_text("old")
    fetch(there, here, bulky=True)
    (there.path / "checkpoints" / "step_1").rename(there.path / "checkpoints" / "step_2")
    fetch(there, here, bulky=True)
    assert (here.path / "config.yaml").read_text() == "mine"
    assert [path.name for path in (here.path / "checkpoints").iterdir()] == ["step_2"]
    copy_newer(here, there)
    assert (there.path / "config.yaml").read_text() == "mine"


def test_what_belongs_to_one_machine_stays_there_and_what_is_bulky_waits(here: Folder, there: Folder) -> None:
    (there.path / "tensorboard").mkdir()
    for name in ("run.lock", "replay.json", "run.json", "tensorboard/events"):
        (there.path / name).write_text("x")
    (there.path / "link").symlink_to("/etc/hostname")
    fetch(there, here, bulky=False)
    assert set(here.stamps()) == {"run.json"}
    fetch(there, here, bulky=True)
    assert set(here.stamps()) == {"run.json", "tensorboard/events"}


class Changing(Folder):
    """Every read finds that the file has just been replaced."""

    times = 0

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp]:
        self.times += 1
        data, stamp = super().read(name, offset)
        return data, Stamp(stamp.size, self.times)


def test_halves_of_two_files_are_not_mixed_but_metrics_only_grow(
    here: Folder, there: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "CHUNK_BYTES", 10)
    for name in ("summary.json", "metrics.jsonl"):
        (there.path / name).write_text("0123456789abcdef")
    fetch(Changing(there.path), here, bulky=True)
    assert set(here.stamps()) == {"metrics.jsonl"}
    assert (here.path / "metrics.jsonl").read_text() == "0123456789abcdef"


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "checkpoints/../../outside", "linked/file"])
def test_nothing_outside_of_the_folder_is_read_or_written(here: Folder, name: str) -> None:
    (here.path / "linked").symlink_to(here.path.parent)
    with pytest.raises(UnsafePath, match="is not inside of"):
        here.write(name, 0, b"x", Stamp(1, 1))
    with pytest.raises(UnsafePath, match="is not inside of"):
        here.read(name, 0)
