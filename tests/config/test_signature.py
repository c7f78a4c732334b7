"""Which run folders this user made."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from shoal.config.load import load_config, settings_for
from shoal.config.signature import SIGNATURE, is_signed, key_path, sign, write_config

SETTINGS = settings_for("some_module:Env-v0", "apex-dqn", {"env.kwargs.size": 3})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder without a key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "shoal"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with `config.yaml`, signed."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_config(folder, SETTINGS)
    return folder


def _is_own(folder: Path) -> bool:
    return is_signed(folder, load_config(folder))


def test_a_run_is_ones_own_wherever_it_goes(run: Path, tmp_path: Path, home: Path) -> None:
    assert _is_own(run)
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600 and stat.S_IMODE(home.stat().st_mode) == 0o700
    shutil.copytree(run, tmp_path / "copy")
    run.rename(tmp_path / "moved")
    assert _is_own(tmp_path / "copy") and _is_own(tmp_path / "moved")
    assert os.listdir(home) == ["key"]


@pytest.mark.parametrize(
    ("old", "new", "own"),
    [
        ("some_module:", "other_module:", False),
        ("{size: 3}", "{size: 4}", False),
        ("address: null", "address: 'somewhere:6379'", False),
        ("  path: null", "  path: elsewhere", False),
        ("registry: null", "registry: elsewhere", False),
        ("  network: null", "  network: elsewhere:make", False),
        ("seed: 1", "seed: 2", True),
        ("batch_size: 512", "batch_size: 128", True),
    ],
)
def test_what_the_signature_covers(run: Path, old: str, new: str, own: bool) -> None:
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new))
    assert _is_own(run) == own


def test_another_key_does_not_count(run: Path, home: Path) -> None:
    (home / "key").write_bytes(bytes(32))
    assert not _is_own(run)
    write_config(run, SETTINGS)
    assert _is_own(run)


@pytest.mark.parametrize("content", [b"", b"0" * 64, b"\xff" * 10_000])
def test_a_signature_that_is_none(run: Path, content: bytes) -> None:
    (run / SIGNATURE).write_bytes(content)
    assert not _is_own(run)


def test_a_signature_that_is_no_file(run: Path) -> None:
    (run / SIGNATURE).unlink()
    assert not _is_own(run)
    os.mkfifo(run / SIGNATURE)  # to open it would be to wait for ever
    assert not _is_own(run)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o622])
def test_a_key_that_others_could_read_is_replaced(run: Path, home: Path, mode: int) -> None:
    before = (home / "key").read_bytes()
    (home / "key").chmod(mode)
    assert not _is_own(run)
    sign(run, SETTINGS)
    assert _is_own(run) and (home / "key").read_bytes() != before
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600


def test_a_key_that_somebody_placed_there(run: Path, home: Path, tmp_path: Path) -> None:
    (home / "key").rename(tmp_path / "planted")
    (home / "key").symlink_to(tmp_path / "planted")
    assert not _is_own(run)
    (home / "key").unlink()
    shutil.copy(tmp_path / "planted", home / "key")
    (home / "key").chmod(0o600)
    assert _is_own(run)
    home.chmod(0o777)  # anybody could have put it there
    assert not _is_own(run)
    sign(run, SETTINGS)
    assert not _is_own(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["key", ""])
def test_a_key_of_another_user(run: Path, home: Path, name: str) -> None:
    os.chown(home / name, 65534, 65534)
    assert not _is_own(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into another user's folder")
def test_nothing_is_made_in_another_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under sudo: the user could not use the folder afterwards."""
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs" / ".config"))
    write_config(tmp_path, SETTINGS)
    assert not _is_own(tmp_path) and os.listdir(tmp_path / "theirs") == []


def test_without_a_place_for_a_key_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))  # no folder can be made there
    write_config(tmp_path, SETTINGS)
    assert not _is_own(tmp_path) and not (tmp_path / SIGNATURE).exists()

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert key_path() is None
    write_config(tmp_path, SETTINGS)
    assert not _is_own(tmp_path)


def test_where_the_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for unusable in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CONFIG_HOME", unusable)
        assert key_path() == Path.home() / ".config" / "shoal" / "key"


def test_runs_that_start_at_once_share_a_key(tmp_path: Path) -> None:
    runs = [tmp_path / str(number) for number in range(8)]
    for folder in runs:
        folder.mkdir()
    ready = threading.Barrier(len(runs))

    def start(folder: Path) -> None:
        ready.wait()
        write_config(folder, SETTINGS)

    threads = [threading.Thread(target=start, args=(folder,)) for folder in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(_is_own, runs))
