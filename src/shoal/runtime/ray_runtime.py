"""The Ray runtime: one process per role, watched, and restarted when it dies.

Ray starts, places and watches processes. Experience, weights and counts go over shared memory, so a run makes a few
Ray calls per second, however fast it is.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import psutil
import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from shoal.errors import PlacementError, ShoalError
from shoal.loops.reports import LinkReport, MirrorReport
from shoal.runtime.fleet import supervise
from shoal.runtime.placement import gpu_shares
from shoal.runtime.ray_cluster import cluster
from shoal.runtime.ray_hosts import Host, pid_words, role_error, without_settings
from shoal.runtime.ray_newcomers import CALM_SECONDS, Newcomers
from shoal.runtime.ray_nodes import Nodes
from shoal.runtime.roster import Bounds, RosterEntry, count_roles
from shoal.runtime.run_folder import RunFolder, Status
from shoal.runtime.signals import StopSignals
from shoal.runtime.supervisor import Supervisor

POLL_SECONDS = 0.1
FINISH_SECONDS = 20.0
SILENCE_SECONDS = 120.0
UNSEEN_SECONDS = 10.0
"""A process that Ray cannot reach for so long is started again: a link may be mended before."""
MOVE_ATTEMPTS = 3


@dataclass
class _RoleProcess:
    """A role, the process it has now, and what it is doing."""

    entry: RosterEntry
    index: int
    """Which of its kind."""
    name: str
    number: int
    """Which of all."""
    outpost: int | None = None
    """Where it is; None: at home."""
    bundle: int = 0
    """Which of all that are there."""
    host: Any = None
    work: Any = None
    bounds: Bounds = field(default_factory=dict)
    """Of its current piece of work, or of its last."""
    built: bool = False
    """Whether its process is up and holds the role."""
    ended: bool = False
    """Whether the role has saved and closed what it held."""
    due: float = math.inf
    """When its work should be done; long after that it hangs."""
    pulse: int = 0
    silent: bool = False
    """Whether it hangs, as far as one can see."""
    unseen_since: float = math.inf
    """Since when Ray cannot reach its process, which may be alive."""
    ask_at: float = 0.0
    """When it can be given work again."""


def run_on_ray(
    supervisor: Supervisor,
    roster: Sequence[RosterEntry],
    folder: RunFolder,
    signals: StopSignals,
    joined: Nodes | None = None,
) -> Status:
    """Runs until the supervisor says how it ended. `joined`: a cluster's nodes; without them, on a Ray of its own."""
    try:
        with contextlib.ExitStack() as stack:
            if joined is None:
                found = stack.enter_context(cluster(None, count_roles(roster), supervisor.note))
                joined = Nodes(found, supervisor.plan)
            signals.install()  # Ray has installed its own handlers
            return supervise(supervisor, _RayFleet(supervisor, roster, folder, signals, joined))
    except SystemExit:  # Ray's answer to a SIGTERM that arrives while it starts
        supervisor.interrupt()
        return "interrupted"


class _RayFleet:
    """A process for every role."""

    def __init__(
        self,
        supervisor: Supervisor,
        roster: Sequence[RosterEntry],
        folder: RunFolder,
        signals: StopSignals,
        nodes: Nodes,
    ) -> None:
        self._supervisor, self._plan, self._ledger = supervisor, supervisor.plan, supervisor.ledger
        self._folder, self._signals, self._nodes, self._cluster = folder, signals, nodes, nodes.cluster
        named = [(entry, index, name) for entry in roster for index, name in enumerate(entry.names)]
        self._all = [_RoleProcess(*one, number, one[0].outpost(one[1])) for number, one in enumerate(named)]
        self._processes: dict[str, psutil.Process] = {}
        self._pid_words = pid_words(self._plan.paths)
        self._links: Mapping[int, LinkReport] = {}
        nodes.reserve(self._needs())
        if nodes.crowded:
            supervisor.note("the cluster has too few free cores for this run: roles share them")
        for note in (*nodes.told, *nodes.open(self._plan, folder.path, len(self._all))):
            supervisor.note(note)
        self._note_places()
        self._newcomers: Newcomers | None = None
        if supervisor.settings.actors_join and supervisor.settings.address:
            self._newcomers = Newcomers(nodes, self._plan, folder.path, len(self._all), supervisor.note)

    def work(self, *, trains: bool) -> None:
        if trains:
            self._collect()
            left = self._supervisor.seconds_left
            soon_over = left is not None and left < CALM_SECONDS
            if self._newcomers is not None and not soon_over and (actors := self._newcomers.look()):
                self._supervisor.actors_next = actors
                self._supervisor.interrupt()
        self._assign(trains)

    def end_training(self) -> None:
        self._drain(FINISH_SECONDS)

    def evaluate(self) -> None:
        begun: list[_RoleProcess] = []
        while not self._ledger.halt:
            begun += self._assign(trains=False)
            busy = [one for one in self._all if not one.entry.trains and one.work is not None]
            if silent := [one.name for one in busy if one.silent]:
                self._supervisor.note(f"the final weights are not evaluated: the {silent[0]} does not answer")
            if silent or not busy:
                break
            self._collect()
            self._supervisor.tick()
        for one in begun:
            if one.host is None:
                self._supervisor.note(f"the final weights are not evaluated: the {one.name}'s process ended")

    def end(self) -> None:
        deadline, failed = time.monotonic() + FINISH_SECONDS, True
        while failed and time.monotonic() < deadline:  # one role's error must not cost another its last checkpoint
            try:
                self._drain(deadline - time.monotonic())
                failed = False
            except (RayActorError, ShoalError) as error:
                self._supervisor.note(f"while ending: {error}")
        if self._cluster.lost is not None:  # Ray cannot end them any more
            for process in self._processes.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            return
        for one in self._all:
            if one.host is not None:
                ray.kill(one.host)
        self._nodes.release()

    def _needs(self) -> dict[int | None, list[dict[str, float]]]:
        """What each role reserves, by site: a core, and for some a GPU or a part of one."""
        gpus = int(self._cluster.node["Resources"].get("GPU", 0))
        left = iter(gpu_shares([one.entry.trains for one in self._all if one.entry.gpu], gpus)[1])
        needs: dict[int | None, list[dict[str, float]]] = {None: []}
        for one in self._all:
            there = needs.setdefault(one.outpost, [])
            one.bundle = len(there)
            share = next(left, 0.0) if one.entry.gpu else 0.0
            there.append({"CPU": one.entry.cpus, **({"GPU": share} if share else {})})
        return needs

    def _assign(self, trains: bool) -> list[_RoleProcess]:
        """Gives their next pieces of work to roles that are idle; returns those that got one."""
        given = []
        for one in self._all:
            idle = one.work is None and time.monotonic() > one.ask_at
            if idle and one.entry.trains == trains and not (trains and self._ledger.stop):
                bounds = one.entry.next_piece(self._supervisor)
                if bounds is not None:
                    if one.host is None:
                        self._start(one)
                    self._submit(one, bounds)
                    given.append(one)
        return given

    def _start(self, one: _RoleProcess) -> None:
        """Gives a role a process."""
        self._require_ray(now=True)
        self._pid_words[one.number] = 0
        host = cast(Any, Host).options(**self._nodes.options(one.outpost, one.bundle))
        plan = self._nodes.plan_for(self._plan, one.outpost)
        one.host = host.remote(one.entry.build, *without_settings(plan), one.index, one.number)
        one.built = one.ended = False
        one.unseen_since = math.inf
        self._supervisor.ray_calls += 1

    def _submit(self, one: _RoleProcess, bounds: Bounds) -> None:
        """Asks a role for a bounded piece of work."""
        one.work, one.bounds, one.silent = one.host.run.remote(dict(bounds)), bounds, False
        one.due = time.monotonic() + (bounds["seconds"] if one.entry.pulse is None else 0.0)
        self._supervisor.ray_calls += 1

    def _require_ray(self, *, now: bool = False) -> None:
        """Stops the run when Ray cannot watch it any more. Roles still answer for a while, and can be told to save."""
        if self._cluster.lost is None and (died := self._cluster.died(now=now)):
            raise ShoalError(
                f"Ray's {died} has died, often because the machine has too little memory, and the run cannot go on "
                f"without it. Continue with `shoal resume {self._folder.path}`."
            )

    def _collect(self) -> None:
        """Waits a moment for reports and takes them; restarts roles that died, unless the run is ending."""
        self._require_ray()
        self._note_processes()
        self._note_silence()
        working = {one.work: one for one in self._all if one.work is not None}
        done = ray.wait(list(working), num_returns=len(working), timeout=POLL_SECONDS)[0] if working else []
        for reference in done:
            one = working[reference]
            one.work = None
            try:
                report, one.ended = ray.get(reference)
                one.unseen_since = math.inf
            except RayActorError as error:
                now = time.monotonic()
                if isinstance(error, ActorUnavailableError) and now - one.unseen_since < UNSEEN_SECONDS:
                    one.unseen_since, one.ask_at = min(one.unseen_since, now), now + 1.0
                elif self._ledger.stop:
                    one.host = None
                elif one.host is not None:  # not one that was left behind on a lost node, in this very look
                    self._restart(one)
                continue
            except RayTaskError as failure:
                one.host = None
                raise role_error(one.name, failure, self._folder) from failure
            one.built = one.built or one.outpost is not None
            self._supervisor.take(one.name, report)
            if isinstance(report, MirrorReport):
                self._heed(one, report)

    def _heed(self, mirrors: _RoleProcess, report: MirrorReport) -> None:
        """Acts on what the mirrors say of the outposts."""
        self._supervisor.ray_calls += sum(link.calls for link in report.links.values())
        self._note_places(report)
        self._links = report.links
        if not self._ledger.stop:
            self._submit(mirrors, mirrors.entry.next_piece(self._supervisor) or {})  # a move takes seconds
            for outpost, link in report.links.items():
                if link.silent:
                    self._judge(outpost, link.silent)
                elif self._nodes.may_spread(outpost):
                    lost = f"rows that it has not sent are lost, about {link.unsent(0.0):,}"
                    self._supervisor.note(f"outpost {outpost}: {self._relocate(outpost)}; {lost}")

    def _judge(self, outpost: int, silent: float) -> None:
        """An outpost is silent, or a role of it has died: is its node lost?"""
        site = self._nodes.site(outpost)
        if not self._nodes.is_lost(outpost, silent):
            if silent:
                self._supervisor.note(f"node {site.node.name} has not sent anything for {silent:.0f} s", recurs=True)
            return
        why = f"silent for {silent:.0f} s" if silent else "it is gone"
        if outpost in self._links:
            why += f"; rows that it had not sent are lost, about {self._links[outpost].unsent(silent):,}"
        lost = f"node {site.node.name}"
        self._supervisor.restarted(lost, why, self._relocate(outpost))

    def _relocate(self, outpost: int) -> str:
        """Moves an outpost to another node, where its roles start with their next pieces of work; says where."""
        for one in self._all:
            if one.outpost == outpost and one.host is not None:
                ray.kill(one.host)
                one.host = one.work = None
        for attempt in range(MOVE_ATTEMPTS):
            said = self._nodes.move(outpost)
            try:
                for note in self._nodes.open(self._plan, self._folder.path, len(self._all), outpost):
                    self._supervisor.note(note)
                break
            except PlacementError:  # that node has died, too
                if self._ledger.stop:  # a resumed run makes its folder
                    return said
                if attempt == MOVE_ATTEMPTS - 1:
                    raise
        self._note_places()
        return said

    def _note_places(self, report: MirrorReport | None = None) -> None:
        """Tells the mirrors, and whoever looks into the run folder, where the outposts are."""
        self._supervisor.outposts = self._nodes.places
        if self._nodes.outposts:
            self._folder.write_json("nodes.json", self._nodes.described(self._all, report))

    def _restart(self, one: _RoleProcess) -> None:
        self._require_ray(now=True)  # roles die with their raylet, and none can be started then
        if one.outpost is not None and self._nodes.is_lost(one.outpost, 0.0):
            self._judge(one.outpost, 0.0)
            return
        self._supervisor.restarted(one.name, "its process ended")
        ray.kill(one.host)  # Ray may only have lost sight of it, and two must not do one role's work
        self._start(one)
        self._submit(one, one.bounds)

    def _note_processes(self) -> None:
        """Writes into the run folder which process each role has."""
        for one in self._all:
            if one.host is not None and not one.built and (pid := self._pid_words[one.number]):  # of those at home
                one.built = True
                with contextlib.suppress(psutil.NoSuchProcess):  # it has died since
                    self._processes[one.name] = psutil.Process(pid)
                    pids = {name: process.pid for name, process in self._processes.items()}
                    self._folder.write_json("processes.json", pids)

    def _note_silence(self) -> None:
        """An environment may hang, and its role with it: that looks like a slow one, but the user should know."""
        for one in self._all:
            if one.entry.pulse is not None and (pulse := self._ledger[one.entry.pulse]) != one.pulse:
                one.pulse, one.due, one.silent = pulse, time.monotonic(), False
            if one.work is not None and not one.silent and time.monotonic() > one.due + SILENCE_SECONDS:
                one.silent = True
                late = f"has not answered for {SILENCE_SECONDS:.0f} s: does its environment hang?"
                process = self._processes.get(one.name) if one.built else None
                where = "its process is starting" if process is None else f"process {process.pid}"
                self._supervisor.note(f"{one.name} ({where}) {late}")

    def _drain(self, seconds: float) -> None:
        """Waits until the roles that train have ended. Those still being built hold nothing."""
        deadline = time.monotonic() + seconds
        while True:
            holding = [one for one in self._all if one.entry.trains and one.built and one.host is not None]
            for one in holding:
                if one.work is None and not one.ended:  # its last piece of work was done before the run stopped
                    self._submit(one, one.bounds)
            if all(one.ended for one in holding) or time.monotonic() > deadline or self._signals.hurry:
                break
            self._collect()
            self._supervisor.tick()
