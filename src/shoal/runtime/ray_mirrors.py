"""Mirrors: the role at home that fetches new rows from all outposts, and tells them what is new. Ray carries it.

Each outpost has a courier, a Ray actor on its node. Several fetches are on the way to it at a time; each brings an
order along and waits there until there is enough to send. What actors wait for is told at once: by the next fetch if
all of them wait, or else by a call of its own.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.errors import RunInUse
from shoal.loops.courier import HomeFolder, LinkStart, NodeFolder, Order, Parcel
from shoal.loops.plan import Plan
from shoal.loops.reports import LinkReport, MirrorReport
from shoal.loops.run_paths import RunPaths
from shoal.loops.weights import Weights
from shoal.replay.compression import Codec
from shoal.runtime.run_folder import RunFolder

IN_FLIGHT = 2
"""Fetches on the way to one courier: while one parcel travels, the next is packed."""
FETCH_SECONDS = 0.25
SILENT_SECONDS = 5.0
"""Without an answer for so long, an outpost is silent: the supervisor looks whether its node is lost."""
HUNG_SECONDS = 15.0
"""A courier that is silent for so long is replaced: it hangs, or Ray has lost an answer on a cut link."""
START_SECONDS = 40.0
"""A new courier's process may take so long to start, on a busy machine."""
REPORT_SECONDS = 1.0
"""While an outpost is silent, the supervisor is told so often."""
DRAIN_SECONDS = 10.0
"""After the end, outposts have so long to send what is left."""
WEIGHT_BYTES_PER_SECOND = 40e6
"""For each outpost, where nobody waits for weights: rows need the link, too."""
_WAIT, _HURRY = 0.02, 0.001
_LOCK_SECONDS = 15.0


class Place(NamedTuple):
    """Where an outpost is."""

    node: str
    """Ray's id."""
    path: Path
    """Its folder there."""


class Courier:
    """An outpost's side, in a process on its node."""

    def __init__(self) -> None:
        self._folder: NodeFolder | None = None
        self._held: Any = None

    def open(self, path: Path, start: LinkStart) -> Codec:
        """Opens the outpost's folder, and keeps it from being freed or used by another run. Returns the codec of its
        rows.
        """
        deadline = time.monotonic() + _LOCK_SECONDS
        while self._held is None:
            try:
                self._held = RunFolder(path).lock()
            except RunInUse:  # the courier before this one is being ended
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._folder = NodeFolder(RunPaths(path, path), start)
        return self._folder.codec

    def fetch(self, order: Order, weights: Weights | None, seconds: float) -> Parcel:
        """Obeys, then waits until there is something worth sending."""
        assert self._folder is not None, "open comes first"
        self._folder.deliver(order, weights)
        return self._folder.fetch(seconds)

    @ray.method(concurrency_group="urgent")
    def deliver(self, order: Order, weights: Weights | None) -> int:
        """Obeys at once; returns the version of the weights here."""
        assert self._folder is not None, "open comes first"
        return self._folder.deliver(order, weights)


class _Link:
    """Home's end of the way to one courier."""

    def __init__(self, number: int, place: Place, actors: tuple[int, ...], home: HomeFolder) -> None:
        self.number, self.place, self.actors, self._home = number, place, actors, home
        self.restarts, self.failures, self.begin_at = -1, 0, 0.0
        self.answered, self.met, self.told_at = time.monotonic(), False, -math.inf
        self.behind = self.lost_before = self.lost = 0
        self.waits, self.closed, self.rate = False, False, 0.0
        self.courier: Any = None
        self.codec: Codec | None = None
        self.hardly_shrinks = False
        self.idle = self.ordered = 0
        self._counts()
        self.begin()

    def _counts(self) -> None:
        self.rows = self.nbytes = self.calls = 0
        self.counted_at = time.monotonic()
        self.lag = 0.0

    def begin(self) -> None:
        """Gives the outpost a courier, unless it has one, and begins where the mirrors end."""
        if self.courier is None:
            affinity = NodeAffinitySchedulingStrategy(self.place.node, soft=False)
            made = cast(Any, ray).remote(num_cpus=0, concurrency_groups={"urgent": 1})(Courier)
            self.courier = made.options(scheduling_strategy=affinity, enable_task_events=False).remote()
            self.restarts += 1
            self.calls += 1
        self.fetches: deque[Any] = deque([self.courier.open.remote(self.place.path, self._home.start(self.actors))])
        self.opening, self.told = True, self._home.urgent(self.actors)
        self.urgent: Any = None
        self.version, self.weights_at, self.began = 0, 0.0, time.monotonic()
        self.ordered_at = self.began
        self.begin_at = math.inf
        self.lost_before, self.lost = self.lost_before + self.lost, 0
        self.calls += 1

    def fail(self, *, gone: bool = True) -> bool:
        """Its courier is gone: another one begins a little later, in case its node is gone, too. If it is only out of
        reach, the same one begins again, unless that lasts. Returns whether it is another one.
        """
        gone = gone or self.silent > HUNG_SECONDS
        if gone:
            self.end()
        self.failures += 1
        self.fetches.clear()
        self.opening, self.urgent = True, None
        self.begin_at = time.monotonic() + min(5.0 if gone else 1.0, 0.1 * 4**self.failures)
        return gone

    @property
    def silent(self) -> float:
        """Seconds since it answered, if that is too long, or if its couriers die one after the other."""
        since = time.monotonic() - self.answered
        return since if since > (SILENT_SECONDS if self.met else START_SECONDS) or self.failures > 1 else 0.0

    @property
    def hangs(self) -> bool:
        """Whether its courier should be replaced."""
        waited = time.monotonic() - max(self.began, self.answered)
        return self.begin_at == math.inf and waited > (START_SECONDS if self.opening else HUNG_SECONDS)

    @property
    def is_news(self) -> bool:
        """Whether the supervisor should be told now that it is silent."""
        return self.silent > 0 and time.monotonic() - self.told_at > REPORT_SECONDS

    def ask(self, board: _Weights) -> None:
        """Keeps fetches on the way."""
        if time.monotonic() >= self.begin_at:
            self.begin()
        while not self.opening and len(self.fetches) < self._wanted:
            self.fetches.append(self.courier.fetch.remote(*self._order(board), FETCH_SECONDS))
            self.calls += 1

    @property
    def _wanted(self) -> int:
        """How many fetches should be on the way."""
        if not self._home.hurries or not self.waits or self._home.stop:
            return IN_FLIGHT
        if self.idle != self.ordered or time.monotonic() - self.ordered_at > FETCH_SECONDS:
            return 1  # what actors wait for must not queue behind a second one
        # All actors wait, and home has all that they wrote: the next fetch brings them what they wait for.
        return int(self._home.is_urgent(self.told, self._home.urgent(self.actors)))

    def hurry(self, board: _Weights, *, stop: bool = False) -> None:
        """Tells the outpost at once what its actors wait for."""
        if self.opening or self.urgent is not None:
            return
        wait = self.waits and self._home.hurries and bool(self.fetches)
        if stop or (wait and self._home.is_urgent(self.told, self._home.urgent(self.actors))):
            self.urgent = self.courier.deliver.remote(*self._order(board))
            self.calls += 1

    def take(self, reference: Any) -> str | None:
        """Takes an answer, which has arrived. Returns what the user should know about it.

        Raises:
            RayError: the courier is gone.
        """
        if reference is self.urgent:
            self.urgent, self.version = None, ray.get(reference)
            return None
        answer = ray.get(self.fetches.popleft())
        now = time.monotonic()
        if self.opening:
            self.opening, self.met, self.answered = False, True, now
            before, self.codec = self.codec, answer
            if before == answer or self._home.codecs == ("none",):
                return None
            plain = "as they are: `pip install 'shoal[compress]'` on every node makes them smaller"
            return f"images of outpost {self.number} travel {plain if answer == 'none' else f'with {answer}'}"
        self.lag, self.answered, self.failures = max(self.lag, now - self.answered), now, 0
        parcel: Parcel = answer
        self._home.take(parcel)
        self.rows += sum(chunk.rows for chunk in parcel.chunks.values())
        self.nbytes += parcel.data.nbytes
        self.behind, self.lost, self.waits, self.closed = parcel.behind, parcel.lost, parcel.waits, parcel.closed
        self.idle = parcel.idle
        self.version = max(self.version, parcel.version)
        if self.hardly_shrinks or parcel.codec == self.codec or not parcel.nbytes:
            return None
        self.hardly_shrinks = True
        return f"images of outpost {self.number} hardly shrink; those travel as they are"

    def report(self) -> LinkReport:
        """Since the last report."""
        lost = self.lost_before + self.lost
        rate = self.rows / max(1e-9, self.answered - self.counted_at) if self.rows else self.rate
        told = LinkReport(
            self.rows, self.nbytes, self.calls, self.behind, lost, self.restarts, self.lag, round(self.silent, 1), rate
        )
        self.rate = rate
        self.told_at = time.monotonic()
        self._counts()
        return told

    def end(self) -> None:
        """Ends the courier."""
        with contextlib.suppress(RayError):
            if self.courier is not None:
                ray.kill(self.courier)
        self.courier = None

    def _order(self, board: _Weights) -> tuple[Order, Any]:
        now = time.monotonic()
        horizon, self.ordered_at = min(1.0, now - self.ordered_at), now
        self.told = self._home.urgent(self.actors)
        order = self._home.order(self.actors, horizon)
        self.ordered = order.number
        pause = 0.0 if self._home.hurries else board.nbytes / WEIGHT_BYTES_PER_SECOND
        if order.version <= self.version or now - self.weights_at < pause:
            return order, None
        # Again and again until the outpost has them: an order may overtake the one before, and Ray sends them once.
        version, reference = board.newest()
        self.weights_at = now
        return order._replace(version=version), reference


class _Weights:
    """The newest weights as one object for all couriers."""

    def __init__(self, home: HomeFolder) -> None:
        self._home, self._version = home, 0
        self._reference: Any = None
        self.nbytes = home.weights()[1].nbytes

    def newest(self) -> tuple[int, Any]:
        """Their version, and a reference to them."""
        if self._home.version != self._version:
            self._version, vector = self._home.weights()
            self._reference = ray.put(vector)
        return self._version, self._reference


class Mirrors:
    """The role."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._home = plan, HomeFolder(plan)
        self._weights = _Weights(self._home)
        self._links: dict[int, _Link] = {}
        self._notes: list[str] = []

    def run(self, *, seconds: float, outposts: Mapping[int, Place]) -> MirrorReport:
        """Keeps all folders in step for so long; after the end until the outposts have sent everything. Returns early
        when an outpost is silent, every `REPORT_SECONDS`.
        """
        began = time.monotonic()
        deadline = began + seconds
        self._follow(outposts)
        stopping = False
        while (now := time.monotonic()) < deadline:
            if self._home.stop and not stopping:
                stopping, deadline = True, now + DRAIN_SECONDS
                for link in self._links.values():
                    link.hurry(self._weights, stop=True)
            self._work()
            if stopping and all(link.closed or link.silent for link in self._links.values()):
                break
            if not stopping and any(link.is_news for link in self._links.values()):
                break
        links = {number: link.report() for number, link in self._links.items()}
        notes, self._notes = tuple(self._notes), []
        return MirrorReport(time.monotonic() - began, links, notes)

    @property
    def stopping(self) -> bool:
        return self._home.stop

    def end(self) -> None:
        """Ends the couriers."""
        for link in self._links.values():
            link.end()

    def _work(self) -> None:
        links = self._links.values()
        for link in links:
            if link.hangs:
                self._notes.append(f"the courier of outpost {link.number} does not answer; another one begins")
                link.fail()
            link.ask(self._weights)
            link.hurry(self._weights)
        heads = ((reference, link) for link in links for reference in (*list(link.fetches)[:1], link.urgent))
        waiting = {reference: link for reference, link in heads if reference is not None}
        hurries = self._home.hurries and any(link.waits for link in links)
        if not waiting:
            time.sleep(_HURRY if hurries else _WAIT)
            return
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=_HURRY if hurries else _WAIT)
        for reference in done:
            link = waiting[reference]
            try:
                if told := link.take(reference):
                    self._notes.append(told)
            except RayTaskError as error:
                if not isinstance(error.cause, RunInUse):  # the courier before it, which hangs, cannot be ended yet
                    raise cast(BaseException, error.cause) from error
                link.fail()
            except RayError as error:
                another = link.fail(gone=not isinstance(error, ActorUnavailableError))
                what = "has ended; another one begins" if another else "was out of reach; the link begins again"
                self._notes.append(f"the courier of outpost {link.number} {what}")

    def _follow(self, outposts: Mapping[int, Place]) -> None:
        """Begins where outposts are now."""
        for number, place in outposts.items():
            link = self._links.get(number)
            if link is None or link.place != place:
                if link is not None:
                    link.end()
                self._links[number] = _Link(number, place, self._plan.outposts[number], self._home)
