"""`shoal share` on a cluster: a host process per node starts that node's runs, as the launcher does on one machine.

Link agents join the registries of the nodes. Everything ends with the launcher: when it dies, Ray ends the hosts, and
runs that have lost their host save and stop.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import ConfigError, PlacementError, ShoalError, explained
from shoal.files import read_file
from shoal.runtime.copies import Folder, Stamp, update_copy
from shoal.runtime.placement import Node, spread_runs
from shoal.runtime.ray_cluster import Cluster
from shoal.runtime.ray_tasks import alive_nodes
from shoal.sharing import Registry
from shoal.sharing.launcher import HURRY_SECONDS, Ended, PlannedRun, Wish, launch
from shoal.sharing.live_table import RunRow
from shoal.sharing.process import ProcessId
from shoal.sharing.ray_link import start_agent

Plan = Callable[[Sequence[Any], Path, Registry | None], list[PlannedRun]]
"""From candidates, the launch's folder and the registry to runs; called on the node where they run."""
MARK = ".launch"
"""A file in the launch's folder, by which nodes see whether they have the same storage."""
POLL_SECONDS, START_SECONDS = 0.3, 120.0
_LOST = -9
_WAIT = "while wait $run; code=$?; kill -0 $run 2>/dev/null; do :; done; exit $code"
_SHELTER = ("sh", "-c", f'trap "kill -TERM \\$run" TERM; "$@" & run=$!; {_WAIT}', "sh")
"""A shell between host and run. When Ray ends a host, it kills the children of the host; the run then notices that its
parent is gone, saves and stops.
"""


class Progress(NamedTuple):
    """What a host has to say."""

    rows: Sequence[RunRow]
    ended: Sequence[Ended]
    """Since the last time."""
    over: bool
    error: str


class RunHost:
    """Starts the runs of one node and watches them."""

    def __init__(self) -> None:
        self._wish, self._error = Wish.GO, ""
        self._rows: Sequence[RunRow] = ()
        self._ended: list[Ended] = []
        self._told = 0
        self._thread: threading.Thread | None = None

    def process(self) -> ProcessId:
        """This one."""
        return ProcessId.current()

    def start(
        self, plan: Plan, candidates: Sequence[Any], folder: Path, mark: str, registry: Path | None
    ) -> tuple[list[PlannedRun], bool]:
        """Starts the runs; returns them, and whether the folder is on storage that the launcher sees."""
        shared = (folder / MARK).is_file() and read_file(folder / MARK).decode() == mark
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{explained(error)} Choose an --out that every node can write to.") from error
        runs = plan(candidates, folder, None if registry is None else Registry(registry))
        self._rows = [RunRow(run.name, run.algorithm, "starting", run.reads, run.target_steps) for run in runs]
        runs = [
            replace(run, command=(*_SHELTER, *run.command), environment=_as_outside_ray(run.environment))
            for run in runs
        ]
        self._thread = threading.Thread(target=self._launch, args=(runs,), daemon=True)
        self._thread.start()
        return [replace(run, environment={}) for run in runs], shared

    def _launch(self, runs: Sequence[PlannedRun]) -> None:
        def show(rows: Sequence[RunRow]) -> None:
            self._rows = rows

        def ended(one: Ended) -> None:
            self._ended.append(replace(one, run=replace(one.run, environment={})))

        try:
            launch(runs, show, lambda: self._wish, ended)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def poll(self, wish: Wish) -> Progress:
        """The state of the runs.

        Args:
            wish: what the user wants now.
        """
        self._wish = wish
        over = self._thread is not None and not self._thread.is_alive()
        news, self._told = self._ended[self._told :], len(self._ended)
        return Progress(self._rows, news, over, self._error)

    def stamps(self, folder: Path) -> dict[str, Stamp]:
        """What is in a run's folder."""
        return Folder(folder).stamps()

    def read(self, folder: Path, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        """A piece of a file in it."""
        return Folder(folder).read(name, offset)

    def remove(self, folder: Path) -> None:
        """Removes a run's folder, after it was fetched."""
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Elsewhere:
    """A run's folder on the node of its host."""

    host: Any
    folder: Path

    def stamps(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = ray.get(self.host.stamps.remote(self.folder))
        return found

    def read(self, name: str, offset: int) -> tuple[bytes, Stamp] | None:
        found: tuple[bytes, Stamp] | None = ray.get(self.host.read.remote(self.folder, name, offset))
        return found


@dataclass
class _NodeRuns:
    """The runs of one node, as the launcher sees them."""

    node: Node
    candidates: list[Any]
    host: Any
    runs: Sequence[PlannedRun] = ()
    shared: bool = True
    rows: Sequence[RunRow] = ()
    ended: set[str] = field(default_factory=set)
    over: bool = False
    asked: Any = None


def place_runs(found: Cluster, count: int) -> list[Node]:
    """The node of each run."""
    return spread_runs(alive_nodes(found.node["NodeID"]), count)


def launch_on_cluster(
    found: Cluster,
    placed: Sequence[tuple[Any, Node]],
    plan: Plan,
    folder: Path,
    sizes: Mapping[str, Any] | None,
    show: Callable[[Sequence[RunRow]], None],
    wish: Callable[[], Wish],
    on_end: Callable[[Ended], None],
) -> list[Ended]:
    """As `launch`, with runs on several nodes.

    Args:
        found: the cluster.
        placed: what `plan` makes runs of, and their nodes.
        plan: makes runs, on their node.
        folder: of the launch. Where a node does not see it, runs are written there and fetched when they have ended.
        sizes: of the registries; None when nothing is shared.
        show: takes the state of all runs, several times a second.
        wish: what the user wants now.
        on_end: told about every run when it has ended.
    """
    group = mark = f"share-{uuid.uuid4().hex[:12]}"
    (folder / MARK).write_text(mark)
    nodes: dict[str, _NodeRuns] = {}
    agents: list[Any] = []
    ended: list[Ended] = []
    try:
        for candidate, node in placed:
            if node.id not in nodes:
                cores = min(int(node.cpus), sum(there.id == node.id for _, there in placed))
                nodes[node.id] = _NodeRuns(node, [], _host(node, cores))
            nodes[node.id].candidates.append(candidate)
        if sizes is not None:
            agents = [start_agent(group, node, sizes, detached=False) for node in nodes]
        for one, agent in zip(nodes.values(), agents or [None] * len(nodes), strict=True):
            _start(one, plan, folder, mark, agent)
        while not all(one.over for one in nodes.values()):
            _require_ray(found)
            for end in _poll(list(nodes.values()), wish()):
                ended.append(end)
                on_end(end)
            rows = {row.name: row for one in nodes.values() for row in one.rows}
            show([rows[candidate.name] for candidate, _ in placed if candidate.name in rows])
        return ended
    finally:
        if found.lost is None:
            _end([one for one in nodes.values() if not one.over], agents)
        (folder / MARK).unlink(missing_ok=True)


def _host(node: Node, cores: int) -> Any:
    where = NodeAffinitySchedulingStrategy(node.id, soft=False)
    host: Any = ray.remote(RunHost).options(num_cpus=cores, scheduling_strategy=where, enable_task_events=False)
    return host.remote()


def _start(one: _NodeRuns, plan: Plan, folder: Path, mark: str, agent: Any) -> None:
    try:
        registry = None
        if agent is not None:
            member = ray.get(one.host.process.remote(), timeout=START_SECONDS)
            registry = ray.get(agent.join.remote(member), timeout=START_SECONDS)
        asked = one.host.start.remote(plan, one.candidates, folder, mark, registry)
        one.runs, one.shared = ray.get(asked, timeout=START_SECONDS)
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, ShoalError) else error
        raise PlacementError(f"Node {one.node.name} cannot start its runs: {cause}") from error
    except RayError as error:  # also when nothing was heard in time
        raise PlacementError(
            f"Node {one.node.name} cannot start its runs: {str(error).strip() or type(error).__name__}. Can Python "
            "there import shoal, and does `ray status` show the node?"
        ) from error


def _poll(nodes: Sequence[_NodeRuns], wish: Wish) -> Iterator[Ended]:
    """Asks all hosts, and yields the runs that have ended since. Takes POLL_SECONDS."""
    for one in nodes:
        if not one.over and one.asked is None:
            one.asked = one.host.poll.remote(wish)
    began, waiting = time.monotonic(), [one.asked for one in nodes if one.asked is not None]
    ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
    for one in nodes:
        if one.asked is None or not ray.wait([one.asked], timeout=0)[0]:
            continue
        answer, one.asked = one.asked, None
        try:
            said: Progress = ray.get(answer)
            if said.error:
                raise ShoalError(f"The launcher on node {one.node.name} failed: {said.error}")
            yield from _ended(one, said)
        except RayError:
            yield from _lose(one, stopped=wish is not Wish.GO)
    time.sleep(max(0.0, began + POLL_SECONDS - time.monotonic()))


def _ended(one: _NodeRuns, said: Progress) -> Iterator[Ended]:
    for end in said.ended:
        if not one.shared:
            update_copy(_Elsewhere(one.host, end.run.folder), Folder(end.run.folder))
            one.host.remove.remote(end.run.folder)
        one.ended.add(end.run.name)
        yield end
    one.rows, one.over = said.rows, said.over


def _lose(one: _NodeRuns, stopped: bool) -> Iterator[Ended]:
    """The runs of a node, or a host, that died."""
    one.over = True
    lost = [run for run in one.runs if run.name not in one.ended]
    names = {run.name for run in lost}
    one.rows = [replace(row, state="failed") if row.name in names else row for row in one.rows]
    where = "" if one.shared else f"; what it has written is in {one.runs[0].folder.parent} there" if one.runs else ""
    for run in lost:
        yield Ended(run, _LOST, stopped, why=f"its node {one.node.name}, or Ray's process there, died{where}")


def _end(nodes: Sequence[_NodeRuns], agents: Sequence[Any]) -> None:
    """Ends runs that are left after an error, and the registries with their agents."""
    until = time.monotonic() + 2 * HURRY_SECONDS
    while nodes and time.monotonic() < until:
        list(_poll(nodes, Wish.HURRY))
        nodes = [one for one in nodes if not one.over]
    stopped = [agent.stop.remote() for agent in agents]
    if stopped:
        ray.wait(stopped, num_returns=len(stopped), timeout=HURRY_SECONDS + 5)
    for actor in [*(one.host for one in nodes), *agents]:
        ray.kill(actor)


def _require_ray(found: Cluster) -> None:
    if service := found.died():
        raise ShoalError(
            f"Ray's {service} died, so the runs cannot be watched any more. They save and stop as soon as Ray's "
            "processes on their nodes have ended."
        )


def _as_outside_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what Ray tells its own processes: a run may start a Ray of its own, and may use all GPUs."""
    kept = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    return {name: value for name, value in kept.items() if (name, value) != ("CUDA_VISIBLE_DEVICES", "")}
