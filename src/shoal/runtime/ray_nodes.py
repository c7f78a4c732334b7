"""The nodes of a cluster that a run uses: which actors are where, what is reserved there, and where they go when a
node is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from shoal.errors import PlacementError
from shoal.files import read_object
from shoal.loops.counts import Counts, total
from shoal.loops.plan import Plan
from shoal.loops.preparation import Start, where_it_stopped
from shoal.loops.reports import MirrorReport
from shoal.loops.run_paths import RunPaths
from shoal.loops.weights import WeightBoard
from shoal.runtime.outposts import FoundOutpost, find_outposts, free_outposts, open_outpost
from shoal.runtime.placement import Node, choose_home, choose_refuge, crowd_actors, place_actors, share_of_core
from shoal.runtime.ray_cluster import Cluster, cluster, listens
from shoal.runtime.ray_hosts import with_settings, without_settings
from shoal.runtime.ray_mirrors import Place
from shoal.runtime.ray_tasks import TASK_SECONDS, alive_nodes, answers_of, as_node, ask_nodes, raylet_of, task_on

PLACEMENT_SECONDS = 30.0
MOVE_SECONDS = 20.0
"""For the same, while the run waits for it."""
LOOK_SECONDS = 0.5
LOST_SECONDS = 10.0
"""A node that cannot be reached for so long is lost; a link may be mended before."""


@dataclass
class Site:
    """Home or an outpost: a node, a folder and what is reserved for the roles there."""

    node: Node
    actors: tuple[int, ...] = ()
    found: FoundOutpost | None = None
    """What an earlier execution left there."""
    path: Path | None = None
    """The outpost's folder."""
    group: PlacementGroup | None = None
    needs: list[dict[str, float]] = field(default_factory=list)
    """What each of its roles reserves."""
    moves: int = 0
    """How often it lost its node."""

    @property
    def is_crowded(self) -> bool:
        """Whether the roles of this outpost share cores."""
        return any(need["CPU"] != 1 for need in self.needs)


class RoleProcess(Protocol):
    """What is shown of a role."""

    name: str
    outpost: int | None


class Nodes:
    """Home, which is this node, and the outposts."""

    def __init__(self, found: Cluster, plan: Plan, run: Path | None = None, mark: str | None = None) -> None:
        """Args:
        found: the Ray to use.
        plan: the run's plan; without an address everything is at home.
        run: the run's folder.
        mark: of the run's replay, if it has had one: then its outposts are looked for.
        """
        self.cluster = found
        self.home = Site(as_node(found.node, found.node["Resources"], here=True))
        self.outposts: list[Site] = []
        self.crowded = False
        """Whether roles share cores: a resumed run found too few."""
        self.avoided = set(plan.avoided)
        """Nodes that cannot take actors."""
        self.mark, self._run, self._requested = mark or "", run or Path(), plan.settings.replay.path
        if plan.settings.address:
            self._spread(plan)
        self.plan = replace(plan, outposts=tuple(site.actors for site in self.outposts))

    def _spread(self, plan: Plan) -> None:
        """Decides where actors are: where their shards are, or else by free cores.

        A resumed run waits for cores: Ray frees those of an execution whose node was lost only when it notices. If they
        stay too few, roles share them.
        """
        deadline = time.monotonic() + PLACEMENT_SECONDS
        nodes = self._usable
        if len(nodes) == 1 and not self.mark:
            return
        asked = ask_nodes(nodes, find_outposts, self.mark, self._run, self._requested) if self.mark else []
        found = [(node.id, one) for node, ones in asked for one in ones if not self._is_copy_of(one.run)]
        while True:
            try:
                return self._place(plan, found)
            except PlacementError:
                if not self.mark:
                    raise
            self.crowded = time.monotonic() > deadline
            time.sleep(LOOK_SECONDS)

    def _place(self, plan: Plan, found: Sequence[tuple[str, FoundOutpost]]) -> None:
        nodes, left = self._usable, set(range(plan.settings.actors))
        by_id = {node.id: node for node in nodes}
        self.home.node, self.outposts = by_id[self.cluster.node["NodeID"]], []
        room, served = {node.id: node.cpus for node in nodes}, plan.settings.actor.inference == "served"
        for name, one in sorted(found, key=lambda pair: -pair[1].epoch):
            actors = tuple(sorted(one.starts))
            if left.issuperset(actors) and name in by_id:
                left -= set(actors)
                room[name] -= len(actors) + served
                self.outposts.append(Site(by_id[name], actors, one, one.path))
        free = [replace(node, cpus=room[node.id]) for node in nodes]
        home, beside = next(node for node in free if node.here), plan.settings.learners + 1
        if self.crowded:
            placed = crowd_actors(free, home, len(left))
        else:
            fits = all(node.cpus >= 0 for node in free)
            choose_home([home] if fits else [], beside, gpu=False)
            placed = place_actors(free, home, beside, len(left), servers=served)
        for node in dict.fromkeys(placed):
            if not node.here:
                actors = tuple(actor for actor, place in zip(sorted(left), placed, strict=True) if place == node)
                self.outposts.append(Site(node, actors))

    @property
    def _usable(self) -> list[Node]:
        return [node for node in alive_nodes(self.cluster.node["NodeID"]) if node.id not in self.avoided]

    def _is_copy_of(self, run: Path) -> bool:
        """Whether this run is a copy of the one that signed an outpost, and not that one, moved."""
        return run != self._run and read_object(run / "replay.json").get("mark") == self.mark

    @property
    def starts(self) -> dict[int, Start]:
        """Where mirrors of shards that outposts still hold begin, by actor."""
        return {actor: start for site in self.outposts if site.found for actor, start in site.found.starts.items()}

    @property
    def recovered(self) -> Counts:
        """What the shards of found outposts count."""
        return total([site.found.counts for site in self.outposts if site.found])

    @property
    def places(self) -> dict[int, Place]:
        """Where the outposts are, by number."""
        return {
            number: Place(site.node.id, site.path) for number, site in enumerate(self.outposts) if site.path is not None
        }

    def site(self, outpost: int | None) -> Site:
        """Home, or an outpost."""
        return self.home if outpost is None else self.outposts[outpost]

    def plan_for(self, plan: Plan, outpost: int | None) -> Plan:
        """The plan of a role there."""
        if outpost is None:
            return plan
        path = self.outposts[outpost].path
        assert path is not None, "open comes first"
        return replace(plan.at(RunPaths(path, plan.paths.checkpoints)), outpost=outpost)

    @property
    def told(self) -> Iterator[str]:
        """Where the outposts are, in words."""
        for number, site in enumerate(self.outposts):
            actors = f"actor{'s' * (len(site.actors) > 1)} {' '.join(map(str, site.actors))}"
            yield f"outpost {number} on node {site.node.name}: {actors}"

    # ---- reservations

    def reserve(self, needs: Mapping[int | None, list[dict[str, float]]]) -> None:
        """Reserves what the roles need: by outpost, None for home; one entry for each role.

        Raises:
            PlacementError: a node is too small, or has no room within `PLACEMENT_SECONDS`.
        """
        if self.crowded:
            self._share(needs)
        total = self.cluster.node["Resources"]
        wanted = sum(need["CPU"] for need in needs[None])
        if total.get("CPU", 0) < wanted:
            raise PlacementError(
                f"This run's {len(needs[None])} roles need {wanted:g} CPUs on this node, which has "
                f"{total.get('CPU', 0):g} CPUs for Ray. "
                "Use fewer actors, or start Ray with more: `ray.init(num_cpus=…)`, `ray start --num-cpus=…`."
            )
        for outpost, each in needs.items():
            site = self.site(outpost)
            site.needs, site.group = each, _reserve(site.node, each)
        deadline = time.monotonic() + PLACEMENT_SECONDS
        for outpost, each in needs.items():
            site = self.site(outpost)
            if not site.group or ray.wait([site.group.ready()], timeout=max(0.1, deadline - time.monotonic()))[0]:
                continue
            self.release()
            cpus, gpus = sum(need["CPU"] for need in each), sum(need.get("GPU", 0) for need in each)
            free = available_resources_per_node().get(site.node.id, {}).get("CPU", 0)
            raise PlacementError(
                f"Ray could not place this run's {len(each)} roles on node {site.node.name} within "
                f"{PLACEMENT_SECONDS:.0f} s. They need {cpus:g} CPUs{f' and {gpus:g} GPU' if gpus else ''}; of the "
                f"node's {site.node.cpus:g} CPUs {free:g} are free. Use fewer actors, or free some."
            )

    def _share(self, needs: Mapping[int | None, list[dict[str, float]]]) -> None:
        """Lowers what roles reserve to what their nodes have."""
        for node in {self.site(outpost).node.id: self.site(outpost).node for outpost in needs}.values():
            there = [need for outpost, each in needs.items() if self.site(outpost).node.id == node.id for need in each]
            free = available_resources_per_node().get(node.id, {}).get("CPU", 0.0)
            share = share_of_core(free, sum(need["CPU"] for need in there))
            for need in there:
                need["CPU"] *= share

    def options(self, outpost: int | None, bundle: int) -> dict[str, Any]:
        """How Ray places the process of a role: the n-th of its site."""
        site = self.site(outpost)
        need = site.needs[bundle]
        place: Any = NodeAffinitySchedulingStrategy(site.node.id, soft=False)
        if site.group is not None and need["CPU"]:
            index = sum(bool(one["CPU"]) for one in site.needs[:bundle])
            place = PlacementGroupSchedulingStrategy(site.group, placement_group_bundle_index=index)
        return {"num_cpus": need["CPU"], "num_gpus": need.get("GPU", 0), "scheduling_strategy": place}

    def release(self) -> None:
        """Gives back what is reserved. A Ray that has died would not answer."""
        for site in (self.home, *self.outposts):
            if site.group is not None and self.cluster.lost is None:
                with suppress(RayError):
                    remove_placement_group(site.group)
                site.group = None

    # ---- folders

    def open(self, plan: Plan, folder: Path, roles: int, outpost: int | None = None) -> list[str]:
        """Makes the folders of the outposts, or of one that has moved; returns notes.

        Raises:
            PlacementError: a node does not answer.
            ShoalError: its folder cannot be made.
        """
        asked, version = {}, WeightBoard.open(plan.paths.board).version
        for number in range(len(self.outposts)) if outpost is None else [outpost]:
            site = self.outposts[number]
            starts = {actor: where_it_stopped(plan, actor) for actor in site.actors}
            given = (*without_settings(replace(plan, outpost=number)), folder, self.mark, roles, starts, version)
            asked[task_on(site.node.id, _open_outpost).remote(*given, site.path)] = site
        notes = []
        seconds = TASK_SECONDS if outpost is None else MOVE_SECONDS
        where = {task: site.node for task, site in asked.items()}
        for task, (path, told) in answers_of(where, "made the folder of its actors", seconds).items():
            asked[task].path = path
            notes += told
        return notes

    def described(self, roles: Sequence[RoleProcess], report: MirrorReport | None) -> dict[str, Any]:
        """Who is where, and how the links are doing: for `nodes.json`."""
        sites = []
        for number in (None, *range(len(self.outposts))):
            site, link = self.site(number), report.links.get(number) if report and number is not None else None
            told: dict[str, Any] = {"outpost": number, "node": site.node.id, "address": site.node.address}
            if link is not None and report is not None:
                told |= {
                    "rows_per_second": link.rows / report.seconds,
                    "mb_per_second": link.nbytes / 1e6 / report.seconds,
                }
                told |= {"rows_behind": link.behind, "rows_lost": link.lost, "lag_seconds": link.lag}
                told |= {"calls_per_second": link.calls / report.seconds, "courier_restarts": link.restarts}
            told |= {"roles": [one.name for one in roles if one.outpost == number]}
            sites.append(told | {"path": None if site.path is None else str(site.path), "moves": site.moves})
        return {"written": time.time(), "sites": sites}

    def free(self) -> None:
        """Removes the outposts' folders from all nodes: the run is complete."""
        with suppress(RayError):
            if self.outposts:
                ask_nodes(alive_nodes(self.home.node.id), free_outposts, self.mark, self._run, self._requested)

    # ---- lost nodes

    def is_lost(self, outpost: int, silent: float) -> bool:
        """Whether an outpost's node is lost, after so many seconds of silence."""
        node = next((one for one in ray.nodes() if one["NodeID"] == self.outposts[outpost].node.id), None)
        if node is None or not node["Alive"]:
            return True
        sign = listens(raylet_of(node))
        return sign is False or (sign is None and silent > LOST_SECONDS)

    def may_spread(self, outpost: int) -> bool:
        """Whether an outpost whose roles share cores would fit on another node: one has joined, or has become free."""
        site = self.outposts[outpost]
        return site.is_crowded and any(node.cpus >= len(site.needs) for node in self._others(site))

    def _others(self, site: Site) -> list[Node]:
        return [node for node in self._usable if node.id != site.node.id]

    def move(self, outpost: int) -> str:
        """Chooses another node for an outpost; returns what it means. Its folder must be made again: see `open`."""
        site = self.outposts[outpost]
        if site.group is not None:
            with suppress(RayError):
                remove_placement_group(site.group)
        if site.path is not None:  # its node may be alive: nothing there is of use any more
            task_on(site.node.id, free_outposts).remote(self.mark, self._run, self._requested, site.path)
        site.node, site.path, site.found = choose_refuge(self._others(site), len(site.needs)), None, None
        site.moves += 1
        share = share_of_core(site.node.cpus, len(site.needs))
        site.needs = [{"CPU": share} for _ in site.needs]
        site.group = _reserve(site.node, site.needs) if share else None
        where = f"its actors go on on {site.node.name}"
        return where if share == 1 else f"{where}, where {len(site.needs)} roles share {int(site.node.cpus)} free cores"


@contextmanager
def join_nodes(plan: Plan, run: Path, mark: str | None, note: Callable[[str], None]) -> Iterator[Nodes]:
    """Joins the cluster at the run's address, and decides where its actors are."""
    with cluster(plan.settings.address, 0, note) as found:
        yield Nodes(found, plan, run, mark)


def _reserve(node: Node, needs: Sequence[Mapping[str, float]]) -> PlacementGroup | None:
    """Bundles on this node, for those that need anything."""
    bundles = [dict(need) for need in needs if need["CPU"]]
    if not bundles:
        return None
    group: PlacementGroup = placement_group(
        bundles, strategy="PACK", bundle_label_selector=[{"ray.io/node-id": node.id}] * len(bundles)
    )
    return group


def _open_outpost(plan: Plan, settings: dict[str, Any], *rest: Any) -> tuple[Path, list[str]]:
    return open_outpost(with_settings(plan, settings), *rest)
