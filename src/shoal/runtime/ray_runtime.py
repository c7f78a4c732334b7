"""The Ray runtime: one process per role, watched and started again when it dies.

Ray starts, places and watches; experience, weights and counts go over shared memory, so a run makes a few Ray calls
per second whatever its speed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.exceptions import RayActorError, RayTaskError

from shoal.errors import PlacementError, ShoalError
from shoal.loops.assembly import Places
from shoal.replay import Entry
from shoal.replay.ledger import HALT, WIND_DOWN
from shoal.runtime.ray_hosts import Host, Role
from shoal.runtime.run_folder import RunFolder, Status
from shoal.runtime.supervisor import Supervisor

POLL_SECONDS = 0.1
PLACEMENT_SECONDS = 30.0
FINISH_SECONDS = 20.0
OBJECT_STORE_BYTES = 100 * 2**20
"""Data does not go through it."""


@dataclass
class _Seat:
    """A role, the process it has now, and what it is doing."""

    role: Role
    index: int
    host: Any = None
    work: Any = None
    ready: Any = None
    asked: float = 0.0

    @property
    def name(self) -> str:
        return f"actor {self.index}" if self.role == "actor" else self.role


def run_on_ray(supervisor: Supervisor, places: Places, folder: RunFolder) -> Status:
    """Runs until the supervisor says how it ended."""
    with _cluster(supervisor):
        return _Fleet(supervisor, places, folder).run()


@contextmanager
def _cluster(supervisor: Supervisor) -> Iterator[None]:
    """A Ray on this machine only, or the one at `address`."""
    settings = supervisor.settings
    if settings.address:
        ray.init(address=settings.address, logging_level=logging.ERROR, log_to_driver=False)
    else:
        roles, cores = settings.actors + 2, os.cpu_count() or 1
        if roles > cores:
            supervisor.note(f"{roles} roles share {cores} cores: it works, each runs slower.")
        ray.init(
            num_cpus=max(roles, cores),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    try:
        yield
    finally:
        ray.shutdown()


class _Fleet:
    """All roles of a run."""

    def __init__(self, supervisor: Supervisor, places: Places, folder: RunFolder) -> None:
        self._supervisor, self._settings, self._ledger = supervisor, supervisor.settings, supervisor.ledger
        self._places, self._folder = places, folder
        self._text = self._settings.model_dump_json()
        self._node = ray.get_runtime_context().get_node_id()
        self._actors = [_Seat("actor", index) for index in range(self._settings.actors)]
        self._learner = _Seat("learner", 0)
        self._evaluator = _Seat("evaluator", 0)
        self._pids: dict[str, int] = {}

    def run(self) -> Status:
        """The supervision loop."""
        for seat in (*self._actors, self._learner):
            self._start(seat)
            self._submit(seat)
        outcome: Status | None = None
        recorded = time.monotonic()
        try:
            while outcome is None:
                self._collect(POLL_SECONDS)
                if self._evaluator.work is None and self._supervisor.take_evaluation_turn():
                    self._evaluate()
                self._supervisor.tick()
                if time.monotonic() - recorded >= self._settings.report_seconds:
                    recorded = time.monotonic()
                    self._supervisor.record()
                outcome = self._supervisor.outcome()
            if outcome == "finished":
                outcome = self._wind_down() or outcome
            self._supervisor.record()
            return outcome
        finally:
            self._stop(save=True)

    def _start(self, seat: _Seat) -> None:
        """Gives a role a process, on this node: shared memory does not reach further."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        wants_gpu = seat.role == "learner" and self._settings.learner.device != "cpu"
        gpus = 1 if wants_gpu and ray.cluster_resources().get("GPU", 0) >= 1 else 0
        here = NodeAffinitySchedulingStrategy(self._node, soft=False)
        host = cast(Any, Host).options(num_cpus=1, num_gpus=gpus, scheduling_strategy=here, max_concurrency=1)
        folders = (str(self._places.replay), str(self._places.checkpoints))
        seat.host = host.remote(seat.role, seat.index, self._text, *folders)
        seat.ready, seat.asked, seat.work = seat.host.pid.remote(), time.monotonic(), None
        self._supervisor.ray_calls += 2

    def _submit(self, seat: _Seat) -> None:
        """Asks a role for its next bounded piece of work."""
        judging = seat.role == "evaluator"
        bounds = (
            {"episodes": self._settings.evaluation.episodes} if judging else {"seconds": self._settings.report_seconds}
        )
        seat.work = seat.host.run.remote(**bounds)
        self._supervisor.ray_calls += 1

    def _evaluate(self) -> None:
        if self._evaluator.host is None:  # started when first needed: the others start faster without it
            self._start(self._evaluator)
        self._submit(self._evaluator)

    @property
    def _seats(self) -> list[_Seat]:
        return [*self._actors, self._learner, self._evaluator]

    def _collect(self, timeout: float) -> None:
        """Takes in what is done, restarts what died, asks for more unless the run is ending."""
        self._check_placement()
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
                raise _cause(seat, failure) from failure
            getattr(self._supervisor, "evaluation" if seat.role == "evaluator" else seat.role)(report)
            if seat.role != "evaluator" and not self._ledger.stop:
                self._submit(seat)

    def _restart(self, seat: _Seat, death: RayActorError) -> None:
        if self._ledger.stop:
            seat.host = None
            return
        cause = getattr(death, "cause", None)
        if isinstance(cause, RayTaskError):  # its constructor raised: it would raise again
            raise _cause(seat, cause) from death
        self._supervisor.restarted(seat.name, "its process ended")
        self._start(seat)
        self._submit(seat)

    def _check_placement(self) -> None:
        """Notes the process of every role that is up; refuses to wait for ever for one that cannot be placed."""
        for seat in self._seats:
            if seat.ready is None:
                continue
            if ray.wait([seat.ready], timeout=0)[0]:
                try:
                    self._pids[seat.name] = ray.get(seat.ready)
                    self._folder.write_json("processes.json", self._pids)
                except (RayActorError, RayTaskError):
                    pass  # its work fails in the same way, and is looked at there
                seat.ready = None
            elif time.monotonic() - seat.asked > PLACEMENT_SECONDS and ray.available_resources().get("CPU", 0.0) < 1:
                total, roles = ray.cluster_resources().get("CPU", 0.0), len(self._actors) + 2
                raise PlacementError(
                    f"The cluster could not place {seat.name} within {PLACEMENT_SECONDS:.0f} s: it needs 1 CPU on this "
                    f"node, 0 of the cluster's {total:g} are free, and this run has {roles} roles. "
                    "Use fewer actors or free some CPUs."
                )

    def _wind_down(self) -> Status | None:
        """Ends training, then judges the final weights."""
        self._ledger[Entry.STOP] = WIND_DOWN
        self._drain(FINISH_SECONDS)
        if self._supervisor.final_evaluation_due:
            self._evaluate()
            while self._evaluator.work is not None and not self._ledger.halt:
                self._collect(POLL_SECONDS)
                self._supervisor.tick()
        return self._supervisor.outcome()

    def _drain(self, seconds: float) -> None:
        """Waits for the work at hand of actors and learner; roles that are still being built hold nothing."""
        deadline = time.monotonic() + seconds
        trainers = (*self._actors, self._learner)
        while any(s.work is not None and s.ready is None for s in trainers) and time.monotonic() < deadline:
            self._collect(POLL_SECONDS)
            self._supervisor.tick()

    def _stop(self, *, save: bool) -> None:
        """Lets every role finish what it holds, then ends its process."""
        self._ledger[Entry.STOP] = HALT
        deadline = time.monotonic() + FINISH_SECONDS
        try:
            self._drain(FINISH_SECONDS)
            ended = [
                seat.host.finish.remote(save=save and seat.role == "learner")
                for seat in self._seats
                if seat.host is not None and seat.ready is None
            ]
            self._supervisor.ray_calls += len(ended)
            if ended:
                ray.wait(ended, num_returns=len(ended), timeout=max(1.0, deadline - time.monotonic()))
        except (RayActorError, ShoalError):
            pass  # it is ending anyway
        for seat in self._seats:
            if seat.host is not None:
                ray.kill(seat.host)


def _cause(seat: _Seat, failure: RayTaskError) -> ShoalError:
    """The role's own error, as it was raised."""
    cause = failure.cause
    if isinstance(cause, ShoalError):
        return type(cause)(f"{seat.name}: {cause}") if type(cause).__init__ is Exception.__init__ else cause
    return ShoalError(f"{seat.name} failed: {failure}")
