"""Joins a group of runs that share replay on a Ray cluster; see `create_distributed_registry(address=...)`.

This process is connected to Ray only until its node's agent runs. A process that stays connected ends with the cluster.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray._private import services
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from shoal.errors import ConfigError, PlacementError
from shoal.sharing.process import ProcessId
from shoal.sharing.ray_link import start_agent
from shoal.sharing.shared_buffer import require_name

START_SECONDS, CONNECT_SECONDS = 60.0, 5.0
_ATTEMPTS = 3
"""An agent that nobody used may end while it is asked."""


def join_group(name: str, address: str, node: str | None, sizes: Mapping[str, Any]) -> Path:
    """The folder of this machine's registry of a group; see `create_distributed_registry`."""
    require_name("name", name)
    with _connected(address):
        here = _find_node(node)
        for attempt in range(_ATTEMPTS):
            try:
                agent = start_agent(name, here, sizes, detached=True)
                path = Path(ray.get(agent.join.remote(ProcessId.current()), timeout=START_SECONDS))
                break
            except GetTimeoutError:
                raise PlacementError(
                    f"The group's process on node {here[:8]} did not start in {START_SECONDS:.0f} s. Can Python "
                    "there import shoal (`python -c 'import shoal.sharing'`), and does `ray status` show the node?"
                ) from None
            except RayActorError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise PlacementError(
                        f"The group's process on node {here[:8]} died: {str(error).strip()}"
                    ) from error
    if not os.access(path / "registry.json", os.R_OK):
        raise ConfigError(
            f"The registry of {name!r} is {path}, which this process cannot read: Ray's node {here[:8]} runs as "
            "another user, in another container or on another machine. Start Ray here as the user that runs this "
            "program, or name this machine's node with node=..."
        )
    return path


def connect(address: str, otherwise: str) -> None:
    """Connects this process to a running cluster.

    Args:
        address: of the cluster.
        otherwise: what the user can do if there is none.

    Raises:
        PlacementError: nobody is there.
    """
    try:
        # Asked first: Ray would try for five minutes.
        if found := services.canonicalize_bootstrap_address(address):
            host, _, port = found.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = str(error).strip().splitlines()[0].removesuffix(".")
        raise PlacementError(
            f"Cannot join the Ray cluster at {address!r}: {reason}. Is it running (`ray status`)? If it has a token: "
            f"is it on this machine, and RAY_AUTH_MODE=token set? {otherwise}"
        ) from error


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """A connection to the cluster, closed afterwards if it was opened here."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"address = {address!r} is of a machine outside the cluster: run this on one of its machines."
        )
    if ray.is_initialized():
        yield
        return
    here = threading.current_thread() is threading.main_thread()
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)} if here else {}
    try:
        connect(address, "Leave address and name out to share on this machine alone.")
        yield
    finally:
        with suppress(RayError):
            ray.shutdown()
        for number, handler in handlers.items():  # Ray installs its own
            signal.signal(number, handler)


def _find_node(node: str | None) -> str:
    """Ray's id of this machine's node."""
    if node is None:
        return str(ray.get_runtime_context().get_node_id())
    living = {one["NodeID"]: one["NodeName"] for one in ray.nodes() if one["Alive"]}
    found = [known for known, name in living.items() if node in (known, name)]
    if len(found) != 1:
        known = ", ".join(f"{one[:8]} ({name})" for one, name in living.items())
        raise ConfigError(f"node = {node!r} is the id or name of {len(found)} living nodes of the cluster: {known}.")
    return str(found[0])
