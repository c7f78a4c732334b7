"""The Ray runtime: one process per role, watched and started again when it dies.

Ray starts, places and watches; experience, weights and counts go over shared memory, so a run makes a few Ray calls
per second whatever its speed.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from dataclasses import dataclass
from typing import Any, cast

import psutil
import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.envs import describe_env
from shoal.errors import PlacementError, ShoalError
from shoal.files import atomic_write
from shoal.loops.assembly import RunPaths, choose_device, inference_device
from shoal.replay import LedgerWord
from shoal.replay.ledger import HALT, WIND_DOWN
from shoal.runtime.ray_cluster import Cluster, cluster
from shoal.runtime.ray_hosts import Host, Role, pid_words
from shoal.runtime.run_folder import RunFolder, Status
from shoal.runtime.signals import StopSignals
from shoal.runtime.supervisor import Supervisor

POLL_SECONDS = 0.1
PLACEMENT_SECONDS = 30.0
FINISH_SECONDS = 20.0
SILENCE_SECONDS = 120.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class _Seat:
    """A role, the process it has now, and what it is doing."""

    role: Role
    index: int
    number: int
    """Its place in the fleet."""
    host: Any = None
    work: Any = None
    built: bool = False
    """Whether its process is up and holds the role."""
    due: float = math.inf
    """When its work should be done, or the evaluator's next step; long after that it hangs."""
    silent: bool = False
    """Whether it hangs, as far as one can see."""

    @property
    def name(self) -> str:
        return f"actor {self.index}" if self.role == "actor" else self.role


def run_on_ray(supervisor: Supervisor, places: RunPaths, folder: RunFolder, signals: StopSignals) -> Status:
    """Runs until the supervisor says how it ended."""
    with cluster(supervisor) as found:
        signals.install()  # Ray has put its own handlers in place
        return _Fleet(supervisor, places, folder, signals, found).run()


class _Fleet:
    """All roles of a run."""

    def __init__(
        self, supervisor: Supervisor, places: RunPaths, folder: RunFolder, signals: StopSignals, cluster: Cluster
    ) -> None:
        self._signals, self._cluster = signals, cluster
        self._supervisor, self._settings, self._ledger = supervisor, supervisor.settings, supervisor.ledger
        self._places, self._folder = places, folder
        self._text = self._settings.model_dump_json()
        self._actors = [_Seat("actor", index, index) for index in range(self._settings.actors)]
        self._learner = _Seat("learner", 0, self._settings.actors)
        self._evaluator = _Seat("evaluator", 0, self._settings.actors + 1)
        self._trainers = [*self._actors, self._learner]
        self._seats = [*self._trainers, self._evaluator]
        spec = describe_env(self._settings.env)
        devices = [(self._learner, choose_device(self._settings.learner.device, spec))]
        if self._settings.actor.inference == "served":
            server = _Seat("inference", 0, len(self._seats))
            self._trainers.append(server)
            self._seats.append(server)
            devices.append((server, inference_device(self._settings, spec)))
        self._processes: dict[str, psutil.Process] = {}
        self._evaluated = self._ledger[LedgerWord.EVALUATED]
        self._pid_words = pid_words(places, self._settings)
        self._gpu_users = [seat for seat, device in devices if device.type == "cuda"]
        self._needs, self._group = self._reserve()

    def run(self) -> Status:
        """The supervision loop."""
        outcome: Status | None = None
        recorded = time.monotonic()
        try:
            for seat in self._trainers:
                self._start(seat)
                self._submit(seat)
            while outcome is None:
                self._collect(POLL_SECONDS)
                if self._evaluator.work is None and self._supervisor.take_evaluation_turn():
                    self._evaluate()
                self._supervisor.tick()
                if time.monotonic() - recorded >= self._supervisor.report_seconds:
                    recorded = time.monotonic()
                    self._supervisor.record()
                outcome = self._supervisor.outcome()
            if outcome == "finished":
                outcome = self._wind_down() or outcome
            return outcome
        finally:
            self._stop()
            self._supervisor.record()

    def _reserve(self) -> tuple[list[dict[str, float]], PlacementGroup]:
        """Room for every role on this node: shared memory does not reach further. Does not wait for ever for it."""
        node = self._cluster.node
        total = node["Resources"]
        gpus = min(len(self._gpu_users), int(total.get("GPU", 0)))
        each = gpus / len(self._gpu_users) if gpus else 0.0  # two roles may share one
        pin = {f"node:{node['NodeManagerAddress']}": 0.001}
        needs = [{"CPU": 1.0, **({"GPU": each} if each and seat in self._gpu_users else {})} for seat in self._seats]
        wanted = f"{len(needs)} CPUs{f' and {gpus} GPU' if gpus else ''} on this node"
        if total.get("CPU", 0) < len(needs):
            raise PlacementError(
                f"This run's {len(needs)} roles need {wanted}, which has {total.get('CPU', 0):g} CPUs for Ray. "
                "Use fewer actors, or start Ray with more: `ray.init(num_cpus=…)`, `ray start --num-cpus=…`."
            )
        group = placement_group([{**need, **pin} for need in needs], strategy="PACK")
        if not ray.wait([group.ready()], timeout=PLACEMENT_SECONDS)[0]:
            remove_placement_group(group)
            free = ray.available_resources().get("CPU", 0)
            raise PlacementError(
                f"Ray could not place this run's {len(needs)} roles within {PLACEMENT_SECONDS:.0f} s. They need "
                f"{wanted}, which has {total.get('CPU', 0):g} CPUs; of the whole cluster {free:g} CPUs are free. "
                "Use fewer actors, or free some."
            )
        return needs, group

    def _start(self, seat: _Seat) -> None:
        """Gives a role a process."""
        self._require_ray(now=True)
        self._pid_words[seat.number] = 0
        need = self._needs[seat.number]
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=seat.number)
        host = cast(Any, Host).options(num_cpus=need["CPU"], num_gpus=need.get("GPU", 0), scheduling_strategy=place)
        which = (seat.role, seat.index, seat.number, self._text)
        folders = (str(self._places.replay), str(self._places.checkpoints))
        seat.host, seat.work, seat.built = host.remote(*which, *folders), None, False
        self._supervisor.ray_calls += 1

    def _require_ray(self, *, now: bool = False) -> None:
        """Ends the run when Ray cannot watch it any more. Roles still answer for a while, and can be told to save."""
        if self._cluster.lost is None and (died := self._cluster.died(now=now)):
            raise ShoalError(
                f"Ray's {died} has died, often because the machine has too little memory, and the run cannot go on "
                f"without it. Go on where it stopped: `shoal resume {self._folder.path}`."
            )

    def _submit(self, seat: _Seat) -> None:
        """Asks a role for its next bounded piece of work."""
        if seat.role == "evaluator":
            bounds = {"episodes": self._settings.evaluation.episodes, "seconds": self._supervisor.evaluation_seconds}
            bounds["final"] = self._ledger.stop
        else:
            bounds = {"seconds": self._supervisor.report_seconds_of(seat.role)}
        seat.work = seat.host.run.remote(**bounds)
        seat.due = time.monotonic() + (0.0 if seat.role == "evaluator" else bounds["seconds"])
        seat.silent = False
        self._supervisor.ray_calls += 1

    def _evaluate(self) -> None:
        if self._evaluator.host is None:  # started when first needed: the others start faster without it
            self._start(self._evaluator)
        self._submit(self._evaluator)

    def _collect(self, timeout: float) -> None:
        """Takes in what is done, restarts what died, asks for more unless the run is ending."""
        self._require_ray()
        self._note_processes()
        self._note_silence()
        working = {seat.work: seat for seat in self._seats if seat.work is not None}
        done, _ = ray.wait(list(working), num_returns=len(working), timeout=timeout) if working else ([], [])
        for reference in done:
            seat = working[reference]
            seat.work = None
            try:
                report = ray.get(reference)
            except RayActorError as death:
                self._restart(seat, death)
                continue
            except RayTaskError as failure:
                seat.host = None
                raise _cause(seat.name, failure, self._folder) from failure
            getattr(self._supervisor, "evaluation" if seat.role == "evaluator" else seat.role)(report)
            if seat.role != "evaluator" and not self._ledger.stop:
                self._submit(seat)

    def _restart(self, seat: _Seat, death: RayActorError) -> None:
        if self._ledger.stop:
            seat.host = None
            return
        self._require_ray(now=True)  # roles die with their raylet, and none can be started again then
        self._supervisor.restarted(seat.name, "its process ended")
        self._start(seat)
        self._submit(seat)

    def _note_processes(self) -> None:
        """Says in the run folder which process each role has."""
        for seat in self._seats:
            if seat.host is not None and not seat.built and (pid := self._pid_words[seat.number]):
                seat.built = True
                with contextlib.suppress(psutil.NoSuchProcess):  # it has died since
                    self._processes[seat.name] = psutil.Process(pid)
                    pids = {name: process.pid for name, process in self._processes.items()}
                    self._folder.write_json("processes.json", pids)

    def _note_silence(self) -> None:
        """An environment may hang, and its actor with it: that looks like a slow one, but the user should know."""
        if (evaluated := self._ledger[LedgerWord.EVALUATED]) != self._evaluated:
            self._evaluated = evaluated
            self._evaluator.due, self._evaluator.silent = time.monotonic(), False
        for seat in self._seats:
            if seat.work is not None and not seat.silent and time.monotonic() > seat.due + SILENCE_SECONDS:
                seat.silent = True
                late = f"has not answered for {SILENCE_SECONDS:.0f} s: does its environment hang?"
                process = self._processes.get(seat.name) if seat.built else None
                where = "its process is starting" if process is None else f"process {process.pid}"
                self._supervisor.note(f"{seat.name} ({where}) {late}")

    def _wind_down(self) -> Status | None:
        """Ends training, which cuts an evaluation under way, then judges the final weights."""
        self._ledger[LedgerWord.STOP] = WIND_DOWN
        self._drain(FINISH_SECONDS)
        self._supervisor.doing = "judging the final weights"
        begun = False
        while not self._ledger.halt:
            if self._evaluator.work is None:
                if begun or not self._supervisor.final_evaluation_due:
                    break
                begun = True
                self._evaluate()
            if self._evaluator.silent:
                self._supervisor.note("the final weights are not judged: the evaluator does not answer")
                break
            self._collect(POLL_SECONDS)
            self._supervisor.tick()
        if begun and self._evaluator.host is None:
            self._supervisor.note("the final weights are not judged: the evaluator's process ended")
        self._supervisor.doing = ""
        return self._supervisor.outcome()

    def _drain(self, seconds: float) -> None:
        """Waits until all but the evaluator have ended; those that are still being built hold nothing."""
        deadline, asked = time.monotonic() + seconds, False
        while True:
            if not asked and self._learner.built and self._learner.host is not None and self._learner.work is None:
                self._submit(self._learner)  # its last piece of work may have ended before the run did: let it save
                asked = True
            if not any(seat.work is not None and seat.built for seat in self._trainers):
                break
            if time.monotonic() > deadline or self._signals.hurry:
                break
            self._collect(POLL_SECONDS)
            self._supervisor.tick()

    def _stop(self) -> None:
        """Lets every role end what it holds, then ends its process."""
        self._ledger[LedgerWord.STOP] = HALT
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
        for seat in self._seats:
            if seat.host is not None:
                ray.kill(seat.host)
        remove_placement_group(self._group)


def _cause(name: str, failure: RayTaskError, folder: RunFolder) -> ShoalError:
    """The role's own error, as it was raised; the traceback goes to a file."""
    cause = failure.cause
    if isinstance(cause, ShoalError):
        return type(cause)(f"{name}: {cause}") if type(cause).__init__ is Exception.__init__ else cause
    file = folder.path / "error.txt"
    atomic_write(file, f"{_COLOURS.sub('', str(failure))}\n".encode(errors="replace"))
    reason = f"{type(cause).__name__}: {_COLOURS.sub('', str(cause))}"
    return ShoalError(f"{name} failed: {reason} (the traceback is in {file})")
