"""Which Ray a run uses: its own, which only this user can reach on this machine, or one that is running already."""

from __future__ import annotations

import errno
import logging
import math
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 lets any other program starve the roles

import ray
from ray._private import ray_constants, services, worker

from shoal.errors import PlacementError, ShoalError
from shoal.runtime.watchdog import remove_folder, watched
from shoal.sharing.ray_join import connect

OBJECT_STORE_BYTES = 100 * 2**20
"""Small: experience and weights do not go through it."""
LOOK_SECONDS = 1.0
RETURN_SECONDS = 5.0
"""The owner of a cluster may restart its head; nobody restarts a Ray of our own. Also how long a service may be
unreachable without being dead.
"""
SHUTDOWN_SECONDS = 30.0
LONGEST_BASE = 20
"""Longest path, in bytes, of a folder for Ray's sessions: a socket's path has at most 103, and Ray and we add 81."""
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class Cluster:
    """The Ray this process is connected to, and whether it is alive.

    When one of Ray's services has died, Ray's own calls hang, or end the process after a minute. So we ask the
    operating system whether anyone still listens on the service's port.
    """

    def __init__(self, node: dict[str, Any], gcs_address: str, own: bool) -> None:
        """Args:
        node: this node, as Ray describes it.
        gcs_address: host and port of gcs_server.
        own: whether this run started it.
        """
        self.node = node
        self.lost: str | None = None
        """The service that has died, if any."""
        gcs_host, _, gcs_port = gcs_address.rpartition(":")
        self._services = {
            "raylet": (node["NodeManagerAddress"], node["NodeManagerPort"]),
            "gcs_server": (gcs_host.strip("[]"), int(gcs_port)),
        }
        self._own = own
        self._looked, self._silent_since = time.monotonic(), math.inf

    def died(self, *, now: bool = False) -> str | None:
        """The name of a service that has died, or None. Looks once per second.

        Args:
            now: look at once, and do not wait for a dead service to come back.
        """
        time_now = time.monotonic()
        if now or time_now - self._looked >= LOOK_SECONDS:
            self._looked = time_now
            signs = {name: listens(address) for name, address in self._services.items()}
            silent = [name for name, listens in signs.items() if not listens]
            gone = [name for name in silent if signs[name] is False]
            self._silent_since = min(self._silent_since, time_now) if silent else math.inf
            if gone and (now or self._own):
                self.lost = gone[0]
            elif time_now - self._silent_since >= RETURN_SECONDS:
                self.lost = silent[0]
        return self.lost


@contextmanager
def cluster(address: str | None, processes: int, note: Callable[[str], None]) -> Iterator[Cluster]:
    """The Ray this process is connected to already, the one at `address`, or a new one on this machine only. Stops
    only what it started.

    Args:
        address: of a running one.
        processes: that will share a new one.
        note: tells the user something.
    """
    if ray.is_initialized():
        _require_connection_to(address)
        yield _connected(own=False)
        return
    with ExitStack() as stack:
        if not address:
            folder = _private_folder()
            stack.callback(remove_folder, folder)
            stack.enter_context(watched(os.getpid(), folder))
            stack.enter_context(_own_token(folder))
        found = None
        try:
            with _without_ray_messages():
                if address:
                    remedy = "Leave --address out to use this machine alone; a run that names one: address=null."
                    connect(address, remedy)
                else:
                    _start(processes, note, folder)
            found = _connected(own=not address)
            yield found
        finally:
            _shutdown(found)


@contextmanager
def _without_ray_messages() -> Iterator[None]:
    """Connects without the thread that prints what Ray's services say: pages of their logs for each process or node
    that dies, between our own notes on it. `log_to_driver` has no say in this.
    """
    module: Any = worker
    prints, module.listen_error_messages = module.listen_error_messages, lambda *_: None
    try:
        yield
    finally:
        module.listen_error_messages = prints


def _connected(own: bool) -> Cluster:
    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return Cluster(node, context.gcs_address, own)


def _start(processes: int, note: Callable[[str], None], folder: Path) -> None:
    cores = os.cpu_count() or 1
    if processes > cores:
        note(f"{processes} roles share {cores} cores: it works, each runs slower.")
    # Unless it is told that there is only one node, Ray replaces 127.0.0.1 by this machine's outer address and listens
    # on all interfaces.
    many_nodes, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(
            "local",  # not one that RAY_ADDRESS or an earlier `ray start` names
            num_cpus=max(processes, cores),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder / "r"),  # inside: Ray makes it writable for everybody
        )
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = many_nodes


def _require_connection_to(address: str | None) -> None:
    """Refuses another address than that of the Ray this process is connected to: a process has one at a time."""
    connected = ray.get_runtime_context().gcs_address
    if address in (None, "auto", connected):
        return
    with suppress(ValueError):  # no address at all
        if services.canonicalize_bootstrap_address(address) == connected:  # `localhost` for this machine's outer one
            return
    raise PlacementError(
        f"address = {address!r}, but this process is connected to the Ray at {connected!r} already. Leave address out "
        "to train there, or call `ray.shutdown()` first."
    )


def _shutdown(found: Cluster | None) -> None:
    if found is None or found.lost is None:
        ray.shutdown()
        return
    # Ray waits for its dead services; we do not wait longer than this.
    thread = threading.Thread(target=ray.shutdown, daemon=True)
    thread.start()
    thread.join(SHUTDOWN_SECONDS)


def _private_folder() -> Path:
    """A folder for Ray's sockets, logs and token that only this user can enter, with a short path."""
    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > LONGEST_BASE:
        base = "/tmp"
    try:
        return Path(tempfile.mkdtemp(prefix="shoal-", dir=base))
    except OSError as error:
        raise ShoalError(
            f"Ray needs a folder for its sockets, and none can be made in {base}: {error.strerror}. Set TMPDIR to a "
            f"folder that you can write to, with a path of at most {LONGEST_BASE} bytes, or use --runtime inline."
        ) from error


@contextmanager
def _own_token(folder: Path) -> Iterator[None]:
    """Requires a token to use this Ray, which only this user can read. Ray's default, ~/.ray/auth_token, is readable
    by everyone.
    """
    before = {name: os.environ.pop(name, None) for name in _TOKEN_VARIABLES}
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    _read_token_variables()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _read_token_variables()


def _read_token_variables() -> None:
    """Makes Ray read them again; it did so when it was imported."""
    core: Any = ray._raylet
    core.Config.initialize("")
    core.AuthenticationTokenLoader.instance().reset_cache()


def listens(address: tuple[str, int]) -> bool | None:
    """Whether anyone listens there; None if that is unknown now: no free ports, too little memory, too busy."""
    try:
        socket.create_connection(address, timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE) or None  # our own lack of file handles may last
    return True
