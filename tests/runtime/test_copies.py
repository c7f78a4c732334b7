"""Copies of run folders between machines; here two folders stand for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.errors import UnsafePath
from shoal.runtime import copies
from shoal.runtime.copies import OF_THE_USER, Folder, Stamp, hand_over, history, update_copy
from shoal.runtime.run_folder import RunFolder


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
    update_copy(there, here)
    assert {name: (here.path / name).read_bytes() for name in contents} == contents
    assert here.stamps() == there.stamps()


@pytest.mark.parametrize("hours", [-1, 1])
def test_whose_clock_is_ahead_does_not_matter(here: Folder, there: Folder, hours: int) -> None:
    """Home's clock is an hour behind, or ahead: what it writes is brought; what the user changed here stays."""
    for folder, text in ((here, "mine"), (there, "theirs")):
        for name in ("config.yaml", "metrics.jsonl", "checkpoints/best"):
            (folder.path / name).parent.mkdir(exist_ok=True)
            (folder.path / name).write_text(text)
            if folder is there:
                changed = (folder.path / name).stat().st_mtime + 3600 * hours
                os.utime(folder.path / name, (changed, changed))
    update_copy(there, here, keep=OF_THE_USER)
    assert [(here.path / name).read_text() for name in ("config.yaml", "metrics.jsonl", "checkpoints/best")] == [
        "mine",
        "theirs",
        "theirs",
    ]


def test_checkpoints_that_are_gone_go_but_not_all_of_them(here: Folder, there: Folder) -> None:
    (there.path / "checkpoints" / "step_1").write_text("old")
    update_copy(there, here)
    (there.path / "checkpoints" / "step_1").rename(there.path / "checkpoints" / "step_2")
    update_copy(there, here)
    assert [path.name for path in (here.path / "checkpoints").iterdir()] == ["step_2"]
    (there.path / "checkpoints" / "step_2").unlink()  # somebody deletes the run
    update_copy(there, here)
    assert [path.name for path in (here.path / "checkpoints").iterdir()] == ["step_2"]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_run_that_comes_home_keeps_what_is_later_by_its_executions(here: Folder, there: Folder, hours: int) -> None:
    RunFolder(here.path).write_run_json(seed=1, command=[])
    (here.path / "config.yaml").write_text("steps: 1")
    hand_over(here, there)
    assert history(there) == history(here) != []
    # Home goes on; nobody brings its last files here. Its clock differs by an hour.
    for name in ("metrics.jsonl", "checkpoints/step_7"):
        (there.path / name).write_text("of home")
        changed = (there.path / name).stat().st_mtime + 3600 * hours
        os.utime(there.path / name, (changed, changed))
    (here.path / "metrics.jsonl").write_text("first lines")
    (here.path / "config.yaml").write_text("steps: 2")
    hand_over(here, there)
    assert (there.path / "metrics.jsonl").read_text() == (there.path / "checkpoints/step_7").read_text() == "of home"
    assert (there.path / "config.yaml").read_text() == "steps: 2"
    # The run goes on elsewhere, from an earlier checkpoint: what home has is no part of it any more.
    RunFolder(here.path).count_resumption()
    (here.path / "checkpoints").mkdir()
    (here.path / "checkpoints" / "step_5").write_text("of here")
    hand_over(here, there)
    assert (there.path / "metrics.jsonl").read_text() == "first lines"
    assert [path.name for path in (there.path / "checkpoints").iterdir()] == ["step_5"]


@pytest.mark.parametrize("text", ["[]", "{", '{"executions": 1}', "[" * 100_000])
def test_a_damaged_history_is_short(here: Folder, text: str) -> None:
    RunFolder(here.path).write_run_json(seed=1, command=[])
    (here.path / "resumed.json").write_text(text)
    assert len(history(here)) == 1
    (here.path / "run.json").write_text(text)
    assert len(history(here)) == (1 if "executions" in text else 0)


def test_the_folder_may_be_below_a_link(here: Folder, there: Folder, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(here.path)
    (there.path / "checkpoints" / "step_1").write_text("x")
    update_copy(there, Folder(tmp_path / "link"))
    assert (here.path / "checkpoints" / "step_1").exists()


def test_what_belongs_to_one_machine_stays_there_and_what_is_bulky_waits(here: Folder, there: Folder) -> None:
    (there.path / "tensorboard").mkdir()
    for name in ("run.lock", "replay.json", "run.json", "tensorboard/events"):
        (there.path / name).write_text("x")
    (there.path / "link").symlink_to("/etc/hostname")
    update_copy(there, here, bulky=False)
    assert set(here.stamps()) == {"replay.json", "run.json"}
    update_copy(there, here)
    assert set(here.stamps()) == {"replay.json", "run.json", "tensorboard/events"}


class Changing(Folder):
    """Every read finds that the file has just been replaced."""

    times = 0

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        self.times += 1
        found = super().read(name, offset)
        return found and (found[0], Stamp(found[1].size, self.times))


def test_halves_of_two_files_are_not_mixed_but_metrics_only_grow(
    here: Folder, there: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "CHUNK_BYTES", 10)
    for name in ("summary.json", "metrics.jsonl"):
        (there.path / name).write_text("0123456789abcdef")
    update_copy(Changing(there.path), here)
    assert set(here.stamps()) == {"metrics.jsonl"}
    assert (here.path / "metrics.jsonl").read_text() == "0123456789abcdef"


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "checkpoints/../../outside", "linked/file"])
def test_nothing_outside_of_the_folder_is_read_or_written(here: Folder, name: str) -> None:
    (here.path / "linked").symlink_to(here.path.parent)
    with pytest.raises(UnsafePath, match="is not inside of"):
        here.write(name, 0, b"x", Stamp(1, 1))
    with pytest.raises(UnsafePath, match="is not inside of"):
        here.read(name, 0)
