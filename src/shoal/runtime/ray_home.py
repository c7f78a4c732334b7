"""Finds or starts a run's home on a Ray cluster: a process on the node of the learner."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import PlacementError, RunInUse, ShoalError, on_failure
from shoal.loops.plan import Plan
from shoal.runtime.home import Home
from shoal.runtime.placement import Node, choose_home
from shoal.runtime.ray_cluster import Cluster, cluster
from shoal.runtime.ray_nodes import PLACEMENT_SECONDS
from shoal.runtime.ray_tasks import alive_nodes
from shoal.runtime.roster import count_beside

NAMESPACE = "shoal"
START_SECONDS = 60.0
"""A process there loads torch first, from a cold disk perhaps."""
_LOOK_SECONDS = 1.0


@contextmanager
def elsewhere(plan: Plan, folder: Path) -> Iterator[tuple[Home, Node] | None]:
    """A new home for a run, if it is another node than this one; None: it is this node.

    Raises:
        PlacementError: the cluster cannot be joined, or no node has what is needed.
        RunInUse: the run is going on.
    """
    with cluster(plan.settings.address, 0, lambda text: None) as found:
        _require_free_name(folder, found)
        node = _choose(plan, found)
        if node is None:
            yield None
            return
        place = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"name": name_of(folder), "namespace": NAMESPACE, "lifetime": "detached", "max_concurrency": 8}
        options |= {"num_cpus": 0, "scheduling_strategy": place, "enable_task_events": False}
        actor: Any = ray.remote(Home).options(**options).remote(own_process=True)
        home = _Calls(actor, found, f"on node {node.name}")
        with on_failure(lambda: ray.kill(actor)):
            home.wait(START_SECONDS)
        yield cast(Home, home), node


@contextmanager
def running(address: str | None, folder: Path) -> Iterator[Home | None]:
    """The home of a run that is going on, or that waits for somebody to take its result; None: there is none."""
    with cluster(address or "auto", 0, lambda text: None) as found:
        try:
            actor = ray.get_actor(name_of(folder), NAMESPACE)
        except ValueError:
            yield None
            return
        yield cast(Home, _Calls(actor, found, "on another node"))


def _require_free_name(folder: Path, found: Cluster) -> None:
    """Ends what is left of an earlier execution of the run; refuses one that is going on."""
    with suppress(ValueError):  # there is none
        actor = ray.get_actor(name_of(folder), NAMESPACE)
        over = True
        with suppress(ShoalError):  # it leaves just now
            over = cast(Home, _Calls(actor, found, "on another node")).is_over()
        if not over:
            raise RunInUse(
                f"The run {folder} goes on on another node, or its files wait there. Look on, or fetch them, "
                f"with `shoal attach {folder}`; `shoal stop {folder}` stops it."
            )
        ray.kill(actor)
        time.sleep(_LOOK_SECONDS)  # until the name is free


def name_of(folder: Path) -> str:
    """The run's name on the cluster. Two folders may have one name."""
    return f"{folder.name}-{zlib.crc32(str(folder).encode()):08x}"


def _choose(plan: Plan, found: Cluster) -> Node | None:
    """The home, or None for this node: always in a cluster of one. Waits for a node that others use now."""
    here, deadline = found.node["NodeID"], time.monotonic() + PLACEMENT_SECONDS
    while True:
        free, all_of = alive_nodes(here), {node["NodeID"]: node["Resources"] for node in ray.nodes()}
        total = [
            replace(node, cpus=all_of[node.id].get("CPU", 0.0), gpus=all_of[node.id].get("GPU", 0.0)) for node in free
        ]
        if len(free) == 1:
            return None
        gpu = plan.needs_gpu or (plan.likes_gpu and any(node.gpus for node in total))
        choose = partial(choose_home, roles=count_beside(plan.settings), gpu=gpu)
        try:
            home = choose(free)
            return None if home.here else home
        except PlacementError:
            if time.monotonic() > deadline or not _fits(choose, total):
                raise
            time.sleep(_LOOK_SECONDS)


def _fits(choose: Callable[[Sequence[Node]], Node], nodes: Sequence[Node]) -> bool:
    try:
        return bool(choose(nodes))
    except PlacementError:
        return False


class _Calls:
    """The methods of a home, each as a Ray call that ends when the home does."""

    def __init__(self, actor: Any, found: Cluster, where: str) -> None:
        self._actor, self._cluster, self._where = actor, found, where

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        return self._result(getattr(self._actor, name).remote(*arguments, **named), float("inf"))

    def wait(self, seconds: float) -> None:
        """Until the process is there.

        Raises:
            PlacementError: it is not, in time.
        """
        self._result(self._actor.look.remote(0), seconds)

    def _result(self, reference: Any, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        try:
            while not ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
                if died := self._cluster.died():
                    raise ShoalError(f"Ray's {died} has died here. The run may go on {self._where}: see `ray status`.")
                if time.monotonic() > deadline:
                    raise PlacementError(f"No process could be started {self._where} within {seconds:.0f} s.")
            return ray.get(reference)
        except RayTaskError as error:
            raise ShoalError(f"{type(error.cause).__name__} {self._where}: {error.cause}") from error
        except RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
            reason = (
                " ".join(dict.fromkeys((lines[0], lines[-1].partition(" Some common")[0][:300])))
                if lines
                else type(error).__name__
            )
            raise ShoalError(
                f"The process that supervises the run {self._where} has ended: {reason} Is the same Shoal "
                "installed there? A run that had begun can be continued with `shoal resume`."
            ) from error
