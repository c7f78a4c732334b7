"""Where the roles of a run go on a cluster (pure).

The learner goes where the GPU is, and what must read its memory (supervisor, evaluator, mirrors) beside it: that node
is *home*. Actors fill the other nodes first: their shards survive the death of home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import PlacementError

GPU_BESIDE = 0.1
"""Part of a GPU for a role that works beside training."""


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, as far as placement needs to know it."""

    id: str
    """Ray's."""
    address: str
    cpus: float
    """Free for this run."""
    gpus: float = 0.0
    here: bool = False
    """Whether this process runs on it."""

    @property
    def name(self) -> str:
        """What users know it by."""
        return f"{self.address} ({self.id[:6]})"


def choose_home(nodes: Sequence[Node], roles: int, *, gpu: bool) -> Node:
    """The node for the learner and all that stays beside it.

    Args:
        nodes: all that are alive.
        roles: how many stay there; each takes a core.
        gpu: whether the learner computes on one.

    Raises:
        PlacementError: no node has what is needed.
    """
    fitting = [node for node in nodes if node.cpus >= roles and (node.gpus > 0 or not gpu)]
    if not fitting:
        free = ", ".join(f"{node.name} has {node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes)
        needed = f"{roles} free CPUs{' and a GPU' if gpu else ''} on one node"
        raise PlacementError(
            f"The learner and what stays beside it need {needed}; of the cluster's nodes {free} free. Free some, start "
            f"Ray with more (`ray start --num-cpus=…{' --num-gpus=…' if gpu else ''}`), or join a larger node."
        )
    return max(fitting, key=lambda node: (node.here, node.cpus))


def choose_refuge(nodes: Sequence[Node], roles: int) -> Node:
    """Where an outpost goes when its node is lost: where it fits, away from home if it can be; or else to most room."""
    if not nodes:
        raise PlacementError("All nodes of the cluster are lost, this one too as far as Ray knows.")
    return max(nodes, key=lambda node: (node.cpus >= roles, not node.here, node.cpus))


def place_actors(nodes: Sequence[Node], home: Node, beside: int, actors: int, servers: int = 0) -> list[Node]:
    """The node of each actor: other nodes first, by their free cores, then home.

    Args:
        nodes: all that are alive.
        home: where the learner is.
        beside: cores that the roles at home take.
        actors: how many there are.
        servers: cores that inference takes on each node with actors, home included.

    Raises:
        PlacementError: there are too few cores.
    """
    room = {node: max(0, int(node.cpus) - (beside if node == home else 0) - servers) for node in nodes}
    if sum(room.values()) < actors:
        free = ", ".join(f"{node.name} {int(node.cpus)}" for node in nodes)
        raise PlacementError(
            f"{actors} actors and {beside} other roles need {actors + beside} CPUs"
            f"{', and an inference server on each node one more' if servers else ''}; free on the cluster are {free}. "
            f"Use at most {max(0, sum(room.values()))} actors, `--actors auto`, or join more nodes."
        )
    places = []
    for _ in range(actors):
        others = [node for node in nodes if node != home and room[node] > 0]
        chosen = max(others, key=lambda node: room[node]) if others else home
        room[chosen] -= 1
        places.append(chosen)
    return places


def crowd_actors(nodes: Sequence[Node], home: Node, actors: int) -> list[Node]:
    """The node of each actor where cores are too few: a resumed run cannot have fewer actors."""
    others = sorted((node for node in nodes if node != home), key=lambda node: -node.cpus) or [home]
    return [others[actor % len(others)] for actor in range(actors)]


def share_of_core(free: float, roles: float) -> float:
    """Of a core for each of so many roles, in hundredths; at most a whole one."""
    return min(1.0, int(100 * free / max(1.0, roles)) / 100)


def spread_runs(nodes: Sequence[Node], runs: int) -> list[Node]:
    """The node of each of several equal runs: always the one with the most free cores left, this one among equals."""
    free = {node.id: node.cpus for node in nodes}
    chosen = []
    for _ in range(runs):
        chosen.append(max(nodes, key=lambda node: (free[node.id], node.here)))
        free[chosen[-1].id] -= 1
    return chosen


def gpu_shares(trains: Sequence[bool], gpus: int) -> tuple[int, list[float]]:
    """How roles share GPUs.

    Args:
        trains: for each role that computes on one, whether it trains; others work now and then and take a small part.
        gpus: how many there are.

    Returns:
        How many GPUs are used, and the part of one that each role gets; nothing if there are none.
    """
    used = min(max(sum(trains), 1), gpus) if trains else 0
    if not used:
        return 0, []
    beside = 0.0 if all(trains) else GPU_BESIDE
    return used, [used / sum(trains) - beside if one else beside for one in trains]
