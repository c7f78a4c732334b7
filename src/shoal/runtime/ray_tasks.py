"""The nodes of a cluster as Ray knows them, and functions that it calls there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import PlacementError, ShoalError
from shoal.runtime.placement import Node
from shoal.runtime.ray_cluster import cluster, listens

TASK_SECONDS = 60.0
"""For a task on another node, whose process may have to import torch first."""


def alive_nodes(here: str) -> list[Node]:
    """The cluster's nodes with what is free on each; `here`: the id of this one. Ray needs some time to notice that one
    is gone; whether it answers can be seen at once.
    """
    free = available_resources_per_node()
    alive = [node for node in ray.nodes() if node["Alive"] and (node["NodeID"] == here or listens(raylet_of(node)))]
    return [as_node(node, free.get(node["NodeID"], {}), here=node["NodeID"] == here) for node in alive]


def count_free_cores(address: str) -> tuple[int, int]:
    """The free cores of a cluster, and its nodes."""
    with cluster(address, 0, lambda text: None) as found:
        nodes = alive_nodes(found.node["NodeID"])
        return sum(int(node.cpus) for node in nodes), len(nodes)


def raylet_of(node: Mapping[str, Any]) -> tuple[str, int]:
    """Where a node's raylet listens."""
    return node["NodeManagerAddress"], node["NodeManagerPort"]


def as_node(node: Mapping[str, Any], resources: Mapping[str, float], *, here: bool) -> Node:
    """A node with the resources that count."""
    address, cpus, gpus = node["NodeManagerAddress"], resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    return Node(node["NodeID"], address, cpus, gpus, here=here)


def task_on(node: str, function: Callable[..., Any]) -> Any:
    """A task on a node."""
    task: Any = ray.remote(function)
    affinity = NodeAffinitySchedulingStrategy(node, soft=False)
    return task.options(num_cpus=0, max_retries=0, scheduling_strategy=affinity, enable_task_events=False)


def ask_nodes(nodes: Sequence[Node], function: Callable[..., Any], *given: Any) -> list[tuple[Node, Any]]:
    """Calls a function on nodes. One that does not answer in time is left out."""
    asked = {task_on(node.id, function).remote(*given): node for node in nodes}
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=TASK_SECONDS)
    for reference in late:
        ray.cancel(reference, force=True)
    answers = []
    for reference in done:
        with suppress(RayError):
            answers.append((asked[reference], ray.get(reference)))
    return answers


def answers_of(asked: Mapping[Any, Node], done: str, seconds: float) -> dict[Any, Any]:
    """The results of tasks on nodes, which should have `done` something within so many seconds."""
    deadline, answers = time.monotonic() + seconds, {}
    for reference, node in asked.items():
        try:
            answers[reference] = ray.get(reference, timeout=max(0.1, deadline - time.monotonic()))
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ShoalError) else ShoalError(repr(error.cause))
            raise type(cause)(f"On node {node.name}: {cause}") from error
        except RayError as error:
            raise PlacementError(f"Node {node.name} has not {done} within {seconds:.0f} s.") from error
    return answers
