"""How files are written: never through a link, whole or not at all; folders that are private."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.damages import Damage, as_folder, as_pipe, cut, empty, name_of, nested

from shoal.errors import UnsafePath
from shoal.files import atomic_write, is_own_folder, make_private, open_file, read_json, read_object, refuse_link


@pytest.mark.parametrize("mode", ["r", "r+b", "a", "w", "x+b"])
def test_links_are_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "precious").write_text("mine")
    for target in ("precious", "nowhere"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        with pytest.raises((UnsafePath, FileExistsError), match=r"link is a link to|File exists"):
            open_file(tmp_path / "link", mode)
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", ["r", "r+b", "a", "w"])
def test_pipes_are_refused_at_once(tmp_path: Path, mode: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafePath, match="pipe is not an ordinary file"):
        open_file(tmp_path / "pipe", mode)


def test_documents_spell_paths_as_this_process_does(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'{"path": "/caf\xe9"}')
    assert read_json(tmp_path / "file") == {"path": os.fsdecode(b"/caf\xe9")} == read_object(tmp_path / "file")
    (tmp_path / "list").write_text("[1]")
    assert read_json(tmp_path / "list") == [1] and read_object(tmp_path / "list") == {}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")
    assert read_object(tmp_path / "none") == {}


def _grown(path: Path) -> None:
    os.truncate(path, 2**40)  # a hole: it takes no space


def _linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


@pytest.mark.parametrize("damage", [empty, cut, nested, as_folder, as_pipe, _grown, _linked], ids=name_of)
def test_documents_that_are_none(tmp_path: Path, damage: Damage) -> None:
    (tmp_path / "file").write_text('{"a": 1}')
    damage(tmp_path / "file")
    with pytest.raises(ValueError):
        read_json(tmp_path / "file")
    assert read_object(tmp_path / "file") == {}


@pytest.mark.parametrize("value", ["!!bool maybe", "!!int ''", "!!int x", "!!timestamp x", "!!binary é", "{", "*a"])
def test_yaml_that_is_none(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(f"replay: {{keep: {value}}}")
    assert read_object(tmp_path / "config.yaml") == {}


def test_ordinary_files_are_as_ever(tmp_path: Path) -> None:
    with open_file(tmp_path / "file", "a", encoding="utf-8") as file:
        file.write("ä")
    with open_file(tmp_path / "file", "r+b") as file:
        assert file.read() == "ä".encode()
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none", "r")


def test_an_atomic_write_replaces_links_and_leftovers(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("summary.json", ".summary.json.tmp"):
        (tmp_path / name).symlink_to(precious)
    for content in (b"one", b"two"):
        atomic_write(tmp_path / "summary.json", content)
        assert (tmp_path / "summary.json").read_bytes() == content
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious", "summary.json"]


def test_private_folders(tmp_path: Path) -> None:
    new, readable, writable, link = (tmp_path / name for name in ("deep/new", "readable", "writable", "link"))
    readable.mkdir(mode=0o755)
    writable.mkdir()
    writable.chmod(0o775)
    link.symlink_to(readable)
    assert is_own_folder(readable) and not any(map(is_own_folder, (new, writable, link)))
    assert [make_private(folder) for folder in (new, new, readable, writable, link)] == [True, True, True, False, False]
    assert {folder.stat().st_mode & 0o777 for folder in (new, readable)} == {0o700}
    refuse_link(readable)
    with pytest.raises(UnsafePath, match="link is a link to"):
        refuse_link(link)
