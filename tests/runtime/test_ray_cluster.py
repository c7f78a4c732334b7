"""Parts of a run's own Ray that need no Ray."""

from __future__ import annotations

import os
import resource
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.runtime import ray_cluster


def test_a_service_listens_until_its_socket_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert ray_cluster._listens(address)
    assert not ray_cluster._listens(address)


def test_a_lack_of_file_handles_is_not_taken_for_a_dead_service() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            assert ray_cluster._listens(address)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_folder_is_private_and_short_whatever_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    folder = ray_cluster._private_folder()
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        session = folder / "r" / "session_2026-12-31_23-59-59_999999_4194304" / "sockets" / "plasma_store"
        assert len(os.fsencode(session)) <= 103  # a Mac's limit
    finally:
        folder.rmdir()


def test_no_place_for_the_folder_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(ShoalError, match="none can be made in /no/such/folder: No such file"):
        ray_cluster._private_folder()
