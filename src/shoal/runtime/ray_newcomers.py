"""Nodes that join a cluster while a run goes on, and how many actors they can take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.envs import describe_env
from shoal.errors import PlacementError
from shoal.loops.plan import Plan
from shoal.loops.preparation import needed_bytes
from shoal.replay.compression import readable
from shoal.replay.storage import available, choose_folder, gib
from shoal.runtime.growth import most_actors
from shoal.runtime.placement import Node
from shoal.runtime.ray_hosts import with_settings, without_settings
from shoal.runtime.ray_nodes import Nodes
from shoal.runtime.ray_tasks import alive_nodes, task_on
from shoal.runtime.replay_folder import ON_DISK

LOOK_SECONDS = 3.0
SETTLE_SECONDS = 10.0
"""Others may join together with a node, and the run should stop once for all of them."""
CALM_SECONDS = 30.0
"""A run works at least so long before it stops for newcomers."""


class Newcomers:
    """Looks for free cores. A node that joins while a run is stopped gets some of its actors, and may have more room:
    so nodes that the run uses are looked at, too.
    """

    def __init__(self, nodes: Nodes, plan: Plan, run: Path, roles: int, note: Callable[[str], None]) -> None:
        """Args:
        nodes: those that the run uses.
        plan: its plan, with its folders.
        run: its folder.
        roles: how many it has.
        note: tells the user something.
        """
        self._nodes, self._plan, self._run, self._roles, self._note = nodes, plan, run, roles, note
        self._began = self._looked = self._newest = time.monotonic()
        self._asked: dict[str, Any] = {}
        """What nodes were asked: whether they can take more actors."""
        self._refused: set[str] = set()
        self._served = int(plan.settings.actor.inference == "served")

    def look(self) -> int:
        """How many actors the run should have, now that nodes have joined; 0: no more, or not yet."""
        now = time.monotonic()
        crowded = any(site.is_crowded for site in self._nodes.outposts)  # its roles move to a newcomer first
        if crowded or now - self._looked < LOOK_SECONDS:
            return 0
        self._looked = now
        left_out = self._nodes.avoided | self._refused
        alive = [node for node in alive_nodes(self._nodes.home.node.id) if node.id not in left_out]
        found = [node for node in alive if self._room(node) > 0]
        for node in found:
            if node.id not in self._asked:
                self._asked[node.id], self._newest = self._ask(node), now
        calm = now - self._began > CALM_SECONDS and now - self._newest > SETTLE_SECONDS
        able = [node for node in found if calm and self._is_able(node)]
        before, room = self._plan.settings.actors, sum(map(self._room, able))
        actors = before if self._nodes.crowded else most_actors(self._plan, room)
        relieves = self._nodes.crowded and bool(self._plan.actors_here) and room >= self._lacking
        if not room or not (actors > before or relieves) or not self._fits_at_home(actors, able):
            return 0
        names = ", ".join(node.name for node in able)
        self._note(f"free cores on {names}: the run stops for a moment, and goes on with {actors} actors")
        return actors

    @property
    def _lacking(self) -> int:
        """Cores that the roles at home do not have, if they share them."""
        shares = [need["CPU"] for need in self._nodes.home.needs if need["CPU"]]
        return round(len(shares) - sum(shares))

    def _room(self, node: Node) -> int:
        return int(node.cpus) - self._served

    def _ask(self, node: Node) -> Any:
        """Has a node try what its actors would need; the answer comes later."""
        first, room = self._plan.settings.actors, self._room(node)
        actors = tuple(range(first, first + room))
        more = replace(self._plan.with_actors(first + room), outposts=(actors,), outpost=0)
        return task_on(node.id, _try_out).remote(*without_settings(more), self._run, self._roles + room)

    def _is_able(self, node: Node) -> bool:
        reference = self._asked[node.id]
        if not ray.wait([reference], timeout=0)[0]:
            return False
        try:
            ray.get(reference)
            return True
        except RayTaskError as error:
            self._refuse([node], str(error.cause))
        except RayError:  # it is gone again; if it comes back, it has another name
            self._leave_out([node])
        return False

    def _leave_out(self, nodes: list[Node]) -> None:
        self._refused |= {node.id for node in nodes}
        self._nodes.avoided |= self._refused - {site.node.id for site in (self._nodes.home, *self._nodes.outposts)}

    def _refuse(self, nodes: list[Node], why: str) -> None:
        self._leave_out(nodes)
        self._note(f"{', '.join(node.name for node in nodes)} could take more actors, and gets none: {why}")

    def _fits_at_home(self, actors: int, able: list[Node]) -> bool:
        """Whether home has memory for the mirrors of the new actors."""
        more = self._plan.with_actors(actors)
        needed = needed_bytes(more, self._roles) - needed_bytes(self._plan, self._roles)
        free = available(self._plan.paths.replay)
        if needed > free:
            self._refuse(able, f"their steps need {gib(needed)} beside the learner, which has {gib(free)} free")
        return needed <= free


def _try_out(plan: Plan, settings: dict[str, Any], run: Path, roles: int) -> None:
    """Refuses what would only fail when the run has stopped for it. Called on the newcomer."""
    plan = with_settings(plan, settings)
    if (found := describe_env(plan.settings.env)) != plan.spec:
        raise PlacementError(f"its {found.env_id} has other spaces than the run's: are other versions installed there?")
    readable(plan.settings.replay.compress if plan.spec.sees_images else "none")
    choose_folder(f"{run.name}-room", needed_bytes(plan, roles), plan.settings.replay.path, run / ON_DISK).rmdir()
