"""Parts of a run's own Ray that need no Ray."""

from __future__ import annotations

import os
import resource
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from shoal.runtime import ray_cluster


def test_a_service_listens_until_its_socket_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert ray_cluster.listens(address)
    assert ray_cluster.listens(address) is False


def find_cluster(raylet: socket.socket, gcs_server: socket.socket, own: bool) -> ray_cluster.Cluster:
    host, port = raylet.getsockname()
    node = {"NodeManagerAddress": host, "NodeManagerPort": port}
    return ray_cluster.Cluster(node, f"127.0.0.1:{gcs_server.getsockname()[1]}", own)


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    """A service that lives and answers nobody: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as clients:
        for _ in range(8):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server


@pytest.mark.slow
def test_a_service_that_cannot_be_reached_for_a_moment_is_not_dead(
    busy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "RETURN_SECONDS", 600.0)
    assert ray_cluster.listens(busy.getsockname()) is None
    with socket.create_server(("127.0.0.1", 0)) as gcs_server:
        found = find_cluster(busy, gcs_server, own=True)
        assert found.died(now=True) is None and found.died() is None
        monkeypatch.setattr(ray_cluster, "RETURN_SECONDS", 1.0)  # each look takes as long
        assert found.died() == "raylet"


@pytest.mark.parametrize("own", [True, False])
def test_a_service_that_is_gone_is_dead_at_once_unless_somebody_may_start_it_again(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "LOOK_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as raylet, socket.create_server(("127.0.0.1", 0)) as gcs_server:
        found = find_cluster(raylet, gcs_server, own)
        assert found.died() is None and found.died(now=True) is None
        gcs_server.close()
        assert found.died() == ("gcs_server" if own else None)
        assert found.died(now=True) == "gcs_server"


def test_a_lack_of_file_handles_is_not_taken_for_a_dead_service() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            assert ray_cluster.listens(address)
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
