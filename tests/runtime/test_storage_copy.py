"""Copies of runs at URLs: real filesystems of fsspec, a folder and this process's memory."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import shoal
from shoal.errors import ConfigError, RunInUse, UnsafePath
from shoal.runtime import copies, storage_copy
from shoal.runtime.copies import Folder, Stamp, update_copy
from shoal.runtime.run_folder import RunFolder
from shoal.runtime.signals import StopSignals
from shoal.runtime.storage_copy import StorageFolder, fetch_run, keep_copy, open_copy, require_writable

SMALL = {"evaluation.episodes": 1, "learner.checkpoint_seconds": 0.2, "replay.keep": True}


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}/nas" if request.param == "file" else "memory://nas/shoal"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Goes to another folder, as if it were another machine."""

    def go(name: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)
        return tmp_path / name

    monkeypatch.setattr(storage_copy, "COPY_SECONDS", 0.05)
    go("here")
    return go


@pytest.fixture
def folder(place: Callable[[str], Path], tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "here" / "runs" / "a_run")
    (made.path / "checkpoints").mkdir(parents=True)
    made.write_run_json(seed=1, command=["shoal"])
    (made.path / "checkpoints" / "step_1").write_bytes(b"1" * 100)
    return made


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_files_arrive_whole_change_and_go(url: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "CHUNK_BYTES", 30)
    source, target = Folder(folder.path), StorageFolder(f"{url}/a_run")
    (folder.path / "empty").touch()
    update_copy(source, target)
    written: list[str] = []
    plain = target.write
    monkeypatch.setattr(target, "write", lambda name, *rest: (written.append(name), plain(name, *rest)))
    update_copy(source, target)
    assert written == []  # nothing has changed
    (folder.path / "checkpoints" / "step_1").rename(folder.path / "checkpoints" / "step_2")
    update_copy(source, target)
    back = Folder(folder.path.parent / "back")
    update_copy(StorageFolder(f"{url}/a_run"), back)
    assert {name: (back.path / name).read_bytes() for name in back.stamps()} == {
        name: (folder.path / name).read_bytes() for name in source.stamps()
    }
    assert set(back.stamps()) == {"run.json", "checkpoints/step_2", "empty"}


def test_an_interrupted_write_leaves_the_old_file(url: str, folder: RunFolder) -> None:
    target = StorageFolder(f"{url}/a_run")
    target.write("config.yaml", 0, b"old", Stamp(3, 0))
    target.write("config.yaml", 0, b"half of the ne", None)
    found = StorageFolder(f"{url}/a_run")
    assert set(found.stamps()) == {"config.yaml"}
    assert (found.read("config.yaml", 0) or b"")[0] == b"old"


def test_a_run_is_resumed_from_its_copy_wherever_it_was(url: str, place: Callable[[str], Path]) -> None:
    settings = {**SMALL, "checkpoints.path": url}
    first = shoal.train("CartPole-v1", algo="apex-dqn", runtime="inline", steps=1500, quiet=True, settings=settings)
    name, elsewhere = first.path.name, place("elsewhere")
    shutil.rmtree(first.path)  # its machine is gone
    again = shoal.resume(f"{url}/{name}", steps=2000, quiet=True)
    assert again.path == elsewhere / "runs" / name == (elsewhere / "runs" / "latest").resolve()
    assert again.summary is not None and again.summary.env_steps >= 2000 and again.settings.checkpoints.path == url
    assert [row["step"] for row in again.metrics()] == sorted(row["step"] for row in again.metrics())
    there = StorageFolder(f"{url}/{name}")
    assert set(there.stamps()) == set(Folder(again.path).stamps())  # it is copied there again
    assert there.signed()["running"] is False


def test_the_run_that_is_here_is_used_unless_it_is_older(url: str, place: Callable[[str], Path]) -> None:
    settings = {**SMALL, "checkpoints.path": url}
    run = shoal.train("CartPole-v1", algo="apex-dqn", runtime="inline", steps=1200, quiet=True, settings=settings)
    told: list[str] = []
    assert fetch_run(f"{url}/{run.path.name}", told.append) == run.path and "so it is used" in told[-1]
    place("elsewhere")
    shoal.resume(f"{url}/{run.path.name}", steps=1600, quiet=True)
    with pytest.raises(ConfigError, match=r"as it went on elsewhere: `shoal resume .* continues that one"):
        shoal.resume(run.path, steps=2000, quiet=True)
    place("here")
    assert fetch_run(f"{url}/{run.path.name}", told.append) == run.path
    assert "is now" in told[-2] and len(list(run.path.parent.glob("*.before-*"))) == 1  # nothing was deleted
    run.path.joinpath("run.json").write_text(json.dumps({"id": "of another"}))
    with pytest.raises(ConfigError, match="is not an older state of"):
        fetch_run(f"{url}/{run.path.name}", told.append)


def test_a_new_run_does_not_write_over_another_one(url: str, folder: RunFolder) -> None:
    assert open_copy(url, folder) is not None
    update_copy(Folder(folder.path), StorageFolder(f"{url}/a_run"))
    assert open_copy(url, folder) is not None
    folder.run_json.unlink()
    folder.write_run_json(seed=1, command=["shoal"])
    with pytest.raises(ConfigError, match="holds another run of this name"):
        open_copy(url, folder)


def test_failures_are_told_once_and_tried_again(tmp_path: Path, folder: RunFolder) -> None:
    told: list[str] = []
    nas, run = tmp_path / "nas", tmp_path / "nas" / "a_run"
    copy = open_copy(f"file://{nas}", folder)
    with StopSignals() as signals, keep_copy(copy, folder, told.append, signals):
        wait_until(lambda: (run / "run.json").exists())
        nas.rename(tmp_path / "away")
        nas.touch()  # a file: nothing can be written below it
        wait_until(lambda: told)
        time.sleep(0.3)  # several times
        assert len(told) == 1 and "could not be written (NotADirectoryError" in told[0] and "tried again" in told[0]
        (folder.path / "summary.json").write_text("{}")
        nas.unlink()
        wait_until(lambda: (run / "summary.json").exists())
        wait_until(lambda: (run / "checkpoints" / "step_1").exists())  # all: somebody has emptied the place
        wait_until(lambda: len(told) == 2)
        assert "again" in told[1]
        nas.rename(tmp_path / "away2")
        nas.touch()
    assert "it is older than" in told[-1]


def test_a_store_that_hangs_does_not_hold_up_a_user_who_hurries(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, release = list[str](), threading.Event()
    copy = open_copy(f"file://{tmp_path}/nas", folder)
    assert copy is not None
    monkeypatch.setattr(copy, "is_ours", release.wait)
    with StopSignals() as signals, keep_copy(copy, folder, told.append, signals):
        signals.ask()
        signals.ask()
    assert "a second Ctrl-C does not wait" in told[0] and "was not waited for" in told[1]
    release.set()


def test_of_two_writers_the_first_one_stops(url: str, folder: RunFolder) -> None:
    told: list[str] = []
    with StopSignals() as signals, keep_copy(open_copy(url, folder), folder, told.append, signals):
        other = StorageFolder(f"{url}/a_run")
        wait_until(lambda: other.sign(running=True) or told)  # more than once: both may write at the same moment
    assert "another machine writes" in told[0] and len(told) == 1


def test_a_run_that_goes_on_is_not_resumed(url: str, folder: RunFolder, place: Callable[[str], Path]) -> None:
    told: list[str] = []
    copy = open_copy(url, folder)
    assert copy is not None
    with StopSignals() as signals, keep_copy(copy, folder, told.append, signals):
        wait_until(lambda: "run.json" in StorageFolder(copy.url).stamps())
        place("elsewhere")
        with pytest.raises(RunInUse, match=r"goes on, on .*: stop it there first"):
            fetch_run(copy.url, told.append)
    copy.sign(running=True)  # as if it had been killed
    assert (fetch_run(copy.url, told.append) / "run.json").exists()
    assert "did not say that it ended" in told[0]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/shoal", r"Install s3fs to access S3\. Do so with pip on every node"),
        ("nosuch://bucket/shoal", "Protocol not known: nosuch"),
        ("ftp://127.0.0.1:1/shoal", "Connection refused"),
        ("/mnt/nas", "no URL, such as file:///folder"),
        ("file://mnt/nas", "three slashes and the whole path"),
        ("file:///proc/shoal", "No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_folder_is_made(
    url: str, reason: str, place: Callable[[str], Path], tmp_path: Path
) -> None:
    if url.startswith("s3:") and _has("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(ConfigError, match=rf"checkpoints.path = {url} cannot be used: .*{reason}"):
        shoal.train("CartPole-v1", runtime="inline", steps=100, quiet=True, settings={"checkpoints.path": url})
    assert list((tmp_path / "here").iterdir()) == []
    require_writable(None)


def _has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


@pytest.mark.parametrize("end", ["", "/..", "/.hidden", "/no run"])
def test_a_url_without_a_run_is_refused(end: str, place: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "nas" / "no run").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"is no run|holds no run"):
        fetch_run(f"file://{tmp_path}/nas{end}", print)
    assert list((tmp_path / "here").iterdir()) == []


def test_links_and_names_that_lead_out_are_not_fetched(
    tmp_path: Path, folder: RunFolder, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "nas" / "a_run"
    shutil.copytree(folder.path, there)
    (there / "linked").symlink_to("/etc/hostname")
    (there / "linked_folder").symlink_to(tmp_path)
    place("elsewhere")
    path = fetch_run(f"file://{there}", print)
    assert set(Folder(path).stamps()) == {"run.json", "checkpoints/step_1"}
    shutil.rmtree(path)
    plain = StorageFolder.stamps
    monkeypatch.setattr(StorageFolder, "stamps", lambda self: {**plain(self), "../outside": Stamp(1, 1)})
    monkeypatch.setattr(StorageFolder, "read", lambda self, name, offset: (b'{"id": 1}', Stamp(9, 1)))
    with pytest.raises(UnsafePath, match="is not inside of"):
        fetch_run(f"file://{there}", print)
    assert [one.name for one in (tmp_path / "elsewhere" / "runs").iterdir()] == ["latest"]


def test_a_copy_from_somebody_else_asks_for_trust_but_not_for_the_url_that_was_typed(
    tmp_path: Path, place: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, "checkpoints.path": f"file://{tmp_path}/nas", "env.kwargs": {"sutton_barto_reward": True}}
    theirs = shoal.train("CartPole-v1", algo="apex-dqn", runtime="inline", steps=1200, quiet=True, settings=settings)
    place("elsewhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other_key"))
    url = f"file://{tmp_path}/nas/{theirs.path.name}"
    config = tmp_path / "nas" / theirs.path.name / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace(f"path: file://{tmp_path}/nas", f"path: file://{tmp_path}/theirs"))
    again = shoal.resume(url, steps=1400, quiet=True)
    assert again.settings.checkpoints.path == f"file://{tmp_path}/nas" and not (tmp_path / "theirs").exists()
    place("third")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "third_key"))
    config.write_text(text.replace("id: CartPole-v1", "id: no_such_module:CartPole-v1"))
    with pytest.raises(ConfigError, match=r"does not carry your signature.*import the module 'no_such_module'"):
        shoal.resume(url, steps=1600, quiet=True)
    folder = next((tmp_path / "third" / "runs").glob("CartPole*"))
    with pytest.raises(ConfigError, match="copy the run to 'file://"):
        shoal.resume(folder, steps=1600, quiet=True)
