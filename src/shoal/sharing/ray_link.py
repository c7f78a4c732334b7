"""LinkAgent: a process per node and group that joins the registries of all nodes.

It serves the rows of its node's runs to the agents of the other nodes, and keeps mirrors of theirs here. Agents ask
each other twice a second; what travels goes through Ray's object store, at most 16 MiB per answer. An agent that is
killed is restarted by Ray, and continues where it was: its mirrors know how far they have come.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import ReplayError
from shoal.replay.storage import sharing_folder
from shoal.sharing.mirrored_peers import MirroredPeers
from shoal.sharing.offers import Delivery, Offers, Wanted
from shoal.sharing.process import ProcessId
from shoal.sharing.registry import Registry, create_distributed_registry

NAMESPACE = "shoal"
PERIOD_SECONDS = 0.5
DISCOVER_SECONDS = 2.0
"""Time between two searches for agents of other nodes."""


class LinkAgent:
    """The agent of one node. It ends with the registry: when asked to, or when nobody uses it any more."""

    def __init__(self, group: str, node: str, sizes: Mapping[str, Any]) -> None:
        """Args:
        group: the group's name.
        node: Ray's id of this node.
        sizes: arguments of `create_distributed_registry`, for a registry that does not exist yet.
        """
        self._group, self._node = group, node
        path = sharing_folder(f"group-{group}-{node[:8]}")
        self._registry = create_distributed_registry(path=path, **sizes)
        self._registry.take_over()
        self._offers = Offers(Registry(path))
        self._mirrors = MirroredPeers(Registry(path))
        self._members: set[ProcessId] = set()
        self._used = time.monotonic()
        self._agents: dict[str, Any] = {}
        self._flights: dict[Any, str] = {}  # answers that are on their way, and whose
        self._discovered = -DISCOVER_SECONDS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-link", daemon=True)
        self._thread.start()

    def join(self, member: ProcessId) -> Path:
        """The registry's folder. The agent stays at least as long as this member."""
        self._members.add(member)
        return self._registry.path

    def deliver(self, wanted: Mapping[str, Wanted]) -> Delivery:
        """For the agent of another node: see `Offers.deliver`."""
        return self._offers.deliver(wanted)

    def stop(self) -> None:
        """Removes the registry with all buffers. The agent does nothing any more."""
        self._over.set()
        self._thread.join()
        self._registry.stop()

    def _run(self) -> None:
        """Exchanges rows until the registry is not used any more."""
        more = False
        while not self._over.wait(0.0 if more else PERIOD_SECONDS):
            if not self._in_use():
                self._registry.stop()
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
                return
            try:
                more = self._exchange()
                self._mirrors.drop_silent()
            except (OSError, ReplayError):  # somebody removes the registry just now: the next look ends this agent
                more = False

    def _in_use(self) -> bool:
        """Whether a member lives, or a run of this node had rows until lately."""
        if not self._registry.exists:
            return False
        now = time.monotonic()
        own = any(not entry.origin for entry in self._registry.entries())
        if own or any(member.lives for member in list(self._members)):
            self._used = now
        return now - self._used <= self._registry.stale_seconds

    def _exchange(self) -> bool:
        """Asks all nodes that have answered, and takes what has come. True when there is more to come at once."""
        if time.monotonic() - self._discovered >= DISCOVER_SECONDS:
            self._discovered = time.monotonic()
            self._agents = agents_of(self._group, known=self._agents, without=self._node)
        for node, agent in self._agents.items():
            if node not in self._flights.values():
                self._flights[agent.deliver.remote(self._mirrors.wanted(node))] = node
        more = False
        ready, _ = ray.wait(list(self._flights), num_returns=len(self._flights), timeout=PERIOD_SECONDS)
        for answer in ready:
            node = self._flights.pop(answer)
            try:
                delivery = ray.get(answer)
            except RayError:  # its node is dead, or its agent is being restarted: it is asked again
                self._agents.pop(node, None)
                continue
            self._mirrors.take(node, delivery)
            more |= delivery.more
        return more


def agents_of(group: str, known: Mapping[str, Any], without: str = "") -> dict[str, Any]:
    """The agents of a group's nodes, by node.

    Args:
        group: its name.
        known: those that need not be looked up again.
        without: a node to leave out.
    """
    found = {}
    for one in ray.util.list_named_actors(all_namespaces=True):
        kind, _, node = one["name"].rpartition(":")
        if one["namespace"] == NAMESPACE and kind == f"link:{group}" and node != without:
            with contextlib.suppress(ValueError):  # it has just ended
                found[node] = known.get(node) or ray.get_actor(one["name"], NAMESPACE)
    return found


def start_agent(group: str, node: str, sizes: Mapping[str, Any], *, detached: bool) -> Any:
    """The agent of a node; started if there is none.

    Args:
        group: the group's name.
        node: Ray's id of the node.
        sizes: of a new registry.
        detached: whether it outlives this process, and ends by itself.
    """
    options: dict[str, Any] = {"lifetime": "detached"} if detached else {}
    agent: Any = ray.remote(LinkAgent).options(
        enable_task_events=False,
        name=f"link:{group}:{node}",
        namespace=NAMESPACE,
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        **options,
    )
    return agent.remote(group, node, dict(sizes))
