"""Courier: keeps another node's folder in step with home's, the learner's.

Every node that takes part has the folder that a single machine has: shards, ledger, weight board. Roles do not know
which node they are on. On a further node, the shards of its own actors are real; of the other shards there is a header
alone, for the counts. At home there is a mirror of every further node's shard.

    node: `NodeFolder`                                   home: `HomeFolder`
    parcel = node.fetch(seconds)     ── new rows, gradients ──▶   home.take(parcel)
    node.deliver(order)              ◀── weights, counts ───      order = home.order(actors)

Neither side keeps what the other needs to go on: a courier or the home's side may die and begin again, from the heads
of the mirrors.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.loops.gradient_board import GradientBoard
from shoal.loops.plan import Plan, make_limiter
from shoal.loops.run_paths import RunPaths
from shoal.loops.weights import WeightBoard, Weights
from shoal.replay import Header, Ledger, LedgerWord, ShardReader
from shoal.replay.compression import Codec, Packer, decompress, readable
from shoal.replay.counters import Counters
from shoal.replay.mirror import Bytes, Chunk, MirrorWriter, RowTaker

PARCEL_BYTES = 8 * 2**20
PARCEL_STEPS = 400
"""Environment steps that are worth a call of their own: two or three calls per thousand steps."""
HURRY_SECONDS = 0.01
"""How long a new row waits if some actors wait for the learner, and the others still work. Where the learner waits for
all of them it waits for the last one.
"""
STOPPED_SECONDS = 0.02
LOOK_SECONDS, CALM_LOOK_SECONDS = 0.001, 0.005
"""Between two looks at the shards, where actors wait for an answer and where they do not: each takes a little of a core
that actors could use.
"""
AHEAD_SECONDS = 0.5
"""A row waits up to a quarter of a second for its parcel, and news as long: what actors write meanwhile is on the way.
With half of it, Ape-X on CartPole made 3,800 steps a second instead of 5,300.
"""
RATE_SECONDS = 0.5
"""The shortest time over which the learner's draws are measured."""
_COUNTED = (Header.HEAD, Header.STEPS, Header.EPISODES)
"""Words of a shard that other nodes know."""
_GRANTED = (Header.CURSOR, Header.GRANT)
"""Words of a shard that its reader writes."""

Words = npt.NDArray[np.uint64]


class Order(NamedTuple):
    """What home tells a node."""

    number: int
    """Orders may overtake each other: an older one is ignored."""
    ledger: Words
    counted: Words
    """[actors, 3] of all shards."""
    granted: Words
    """[own actors, 2]"""
    fates: Words
    """[own actors, 3] of gradients; empty where none are pushed."""
    version: int
    """Of the newest weights."""


class SentPush(NamedTuple):
    """A gradient of one actor; see `GradientBoard`."""

    actor: int
    number: int
    vector: Weights
    rows: int
    version: int


class LinkStart(NamedTuple):
    """What home tells a node first."""

    actors: int
    """Of the whole run."""
    positions: dict[int, int]
    """The actors of this node, and the first row of each that home does not have."""
    pushes: dict[int, int]
    """The newest gradient of each that home has; empty where none are pushed."""
    hurries: bool
    """Whether actors wait for an answer to what they wrote: a queue, a barrier, gradients."""
    for_all: bool
    """Whether the answer comes only when all actors have written: a barrier."""
    codecs: tuple[Codec, ...]
    """That rows on the way may have, best first."""


class Parcel(NamedTuple):
    """What a node tells home."""

    chunks: dict[int, Chunk]
    """New rows by actor."""
    data: Bytes
    """Their columns, one chunk after the other, compressed by the codec."""
    codec: Codec
    nbytes: int
    """Of the data before."""
    pushes: tuple[SentPush, ...]
    behind: int
    """Rows that did not fit."""
    lost: int
    """Rows that were overwritten before they could be sent, since this courier began."""
    waits: bool
    """Whether an actor waits for the learner."""
    idle: int
    """Number of the order that all actors have obeyed, waiting for the next one with nothing left to send; else 0."""
    closed: bool
    """Whether all shards are closed, and everything is sent."""
    version: int
    """Of the weights on the node."""


class NodeFolder:
    """A further node's side."""

    def __init__(self, paths: RunPaths, start: LinkStart) -> None:
        """Args:
        paths: with the folder of this node.
        start: what home says when it begins.
        """
        positions, shards = start.positions, [paths.shard(actor) for actor in range(start.actors)]
        self._actors = sorted(positions)
        self._takers = {actor: RowTaker(ShardReader(shards[actor]), positions[actor]) for actor in positions}
        for actor, taker in self._takers.items():
            if taker.behind < 0:
                raise ReplayError(f"{taker.reader.path} has {taker.reader.head} rows; home has {positions[actor]}.")
        self._boards = {actor: GradientBoard(paths.gradients(actor)) for actor in start.pushes}
        self._pushed = dict(start.pushes)
        self._headers = [Counters(shard / "header.bin", writable=True) for shard in shards]
        self._ledger = Ledger(paths.replay, ())
        self._weights = WeightBoard.open(paths.board)
        self._heart, self._obeyed, self._lock = 0, 0, threading.Lock()
        self._buffer = np.empty(PARCEL_BYTES, np.uint8)
        row = max(taker.row_bytes for taker in self._takers.values())
        if row > len(self._buffer):
            self._buffer = np.empty(row, np.uint8)
        lanes = next(iter(self._takers.values())).reader.lanes
        self._fits = max(1, len(self._buffer) // row)
        self._full = max(1, min(PARCEL_STEPS // lanes, self._fits))
        self._hurries, self._for_all, self._packer = start.hurries, start.for_all, Packer(start.codecs)
        self.codec = self._packer.codec
        """Of rows that are worth it."""

    @property
    def version(self) -> int:
        """Of the weights on this node's board."""
        return self._weights.version

    def deliver(self, order: Order, weights: Weights | None) -> int:
        """Writes what home says into this node's folder: weights first, so that no actor is let go with old ones.
        Returns the version of the weights here.
        """
        with self._lock:
            if weights is not None and order.version > self.version:
                self._weights.publish(weights, order.version)
            if order.number > self._obeyed:
                self._obeyed = order.number
                self._obey(order)
        return self.version

    def _obey(self, order: Order) -> None:
        own = {actor: row for row, actor in enumerate(self._actors)}
        for actor, header in enumerate(self._headers):
            row = own.get(actor)
            words, values = (_COUNTED, order.counted[actor]) if row is None else (_GRANTED, order.granted[row])
            for word, value in zip(words, values.tolist(), strict=True):
                header[word] = value
        for row, fates in enumerate(order.fates.tolist()):
            self._boards[self._actors[row]].repeat(tuple(fates))
        for entry in LedgerWord:
            if entry is not LedgerWord.HEARTBEAT:
                self._ledger[entry] = int(order.ledger[entry])
        if (heart := int(order.ledger[LedgerWord.HEARTBEAT])) != self._heart:  # home's clock may differ from ours
            self._heart, self._ledger[LedgerWord.HEARTBEAT] = heart, time.time_ns()

    def fetch(self, seconds: float) -> Parcel:
        """What home does not have yet. Waits up to `seconds` until it is worth a parcel."""
        deadline = time.monotonic() + seconds
        since: float | None = None
        while (now := time.monotonic()) < deadline:
            behind = sum(taker.behind for taker in self._takers.values())
            waiting = [bool(taker.reader.header[Header.WAITS]) for taker in self._takers.values()]
            news = behind > 0 or any(board.pushed > self._pushed[actor] for actor, board in self._boards.items())
            since = (since or now) if news else None
            hurry = self._hurries and news and any(waiting)
            late = not self._for_all and now - (since or now) > HURRY_SECONDS
            if behind >= (self._fits if self._for_all else self._full) or (hurry and (all(waiting) or late)):
                break
            if self._ledger.stop:
                time.sleep(STOPPED_SECONDS)  # actors are ending: not a call for each of their rows
                break
            time.sleep(LOOK_SECONDS if self._hurries else CALM_LOOK_SECONDS)
        return self._pack()

    def _pack(self) -> Parcel:
        obeyed = self._obeyed
        chunks: dict[int, Chunk] = {}
        used = 0
        # The furthest behind first: if a parcel is full, another actor is first in the next.
        for actor, taker in sorted(self._takers.items(), key=lambda item: -item[1].behind):
            if taker.changed:
                chunk = taker.take(self._buffer[used:])
                used += chunk.rows * taker.row_bytes
                chunks[actor] = chunk
        pushes = []
        for actor, board in self._boards.items():
            if found := board.newer_than(self._pushed[actor]):
                self._pushed[actor] = found[0]
                pushes.append(SentPush(actor, found[0], found[1].vector, found[1].rows, found[1].version))
        takers = self._takers.values()
        behind = sum(taker.behind for taker in takers)
        closed = all(taker.reader.header[Header.CLOSED] and not taker.changed for taker in takers)
        waits = [bool(taker.reader.header[Header.WAITS]) for taker in takers]
        idle = obeyed if all(waits) and not any(taker.behind for taker in takers) else 0
        lost = sum(taker.lost for taker in takers)
        packed, told = self._packer.pack(self._buffer[:used]), (any(waits), idle, closed, self.version)
        return Parcel(chunks, *packed, used, tuple(pushes), behind, lost, *told)


class HomeFolder:
    """Home's side, for all further nodes together."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._ledger = plan, Ledger(plan.paths.replay, plan.shards)
        self._headers = [Counters(shard / "header.bin", writable=False) for shard in plan.shards]
        self._boards: dict[int, GradientBoard] = {}
        if plan.pushes is not None:
            self._boards = {actor: GradientBoard(plan.paths.gradients(actor)) for actor in range(len(plan.shards))}
        self._weights = WeightBoard.open(plan.paths.board)
        self._vector: Weights = np.empty(self._weights.size, np.float32)
        self._mirrors: dict[int, MirrorWriter] = {}
        self._samples: deque[tuple[float, int]] = deque(maxlen=32)
        self._orders = itertools.count(time.time_ns())  # a later process of this kind gives later orders
        ratio, parcels = plan.settings.replay.samples_per_insert or 0.0, 2 * len(plan.outposts)
        self._on_the_way = ratio * parcels * PARCEL_STEPS
        self._limiter = make_limiter(plan.settings) if ratio else None
        self._tolerance = int(plan.settings.tolerance) if ratio else 0
        self.hurries = plan.queue_rows is not None or plan.pushes is not None
        self.codecs = readable(plan.settings.replay.compress if plan.spec.sees_images else "none")
        rollout = plan.settings.replay.rollout
        self._for_all = rollout is not None and rollout.share == 1.0
        self._queue_steps = 0 if rollout else (plan.queue_rows or 0) * plan.settings.env.lanes

    def start(self, actors: Sequence[int]) -> LinkStart:
        """Begins with the node of these actors, also again."""
        for actor in actors:
            self._mirrors[actor] = MirrorWriter(self._plan.shards[actor])
        pushes = {actor: self._boards[actor].pushed for actor in actors} if self._boards else {}
        positions = {actor: self._mirrors[actor].head for actor in actors}
        return LinkStart(len(self._headers), positions, pushes, self.hurries, self._for_all, self.codecs)

    def take(self, parcel: Parcel) -> None:
        """Appends new rows to their mirrors, and puts gradients on their boards."""
        begin, data = 0, decompress(parcel.data, parcel.codec, parcel.nbytes)
        for actor, chunk in parcel.chunks.items():
            begin += self._mirrors[actor].append(chunk, data[begin:])
        for push in parcel.pushes:
            self._boards[push.actor].push(push.vector, push.rows, push.version, push.number)

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self._weights.version

    def weights(self) -> tuple[int, Weights]:
        """The newest weights, and their version."""
        return self._weights.read(self._vector), self._vector

    def order(self, actors: Sequence[int], horizon: float = 0.0) -> Order:
        """What to tell the node of these actors.

        Args:
            actors: of the node.
            horizon: seconds until it is told again. The learner's draws are told as they will be then, and as if it
                had drawn what is on the way: otherwise actors and learner would wait for each other's news.
        """
        # Grants before weights: a node never lets an actor go with weights older than its grant.
        granted = self._words(actors, _GRANTED)
        fates = [self._boards[actor].fates for actor in actors] if self._boards else []
        version, words = self._weights.version, self._ledger.words
        if self._limiter is not None:
            # After a resume without home's replay, mirrors fill while draws are counted already: no actor may take that
            # for a learner that is far ahead.
            due = max(0, int(self._limiter.error(self._ledger.inserts, 0)))
            words[LedgerWord.SAMPLES] = min(words[LedgerWord.SAMPLES], due + self._tolerance)
        rate = self._sampling_rate(words[LedgerWord.SAMPLES])
        words[LedgerWord.SAMPLES] += round(rate * horizon + min(rate * AHEAD_SECONDS, self._on_the_way))
        counted = self._words(range(len(self._headers)), _COUNTED)
        number = next(self._orders)
        return Order(number, np.array(words, np.uint64), counted, granted, np.array(fates, np.uint64), version)

    def urgent(self, actors: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """What waiting actors wait for: it changes when they may go on."""
        granted = tuple(self._headers[actor][word] for actor in actors for word in _GRANTED)
        return granted, *((self._boards[actor].fates for actor in actors) if self._boards else ())

    def is_urgent(self, told: tuple[tuple[int, ...], ...], now: tuple[tuple[int, ...], ...]) -> bool:
        """Whether what is `now` is worth a call, if waiting actors were `told` that: gradients were judged, a grant
        was raised, or the learner has taken half of their queue, or two parcels.
        """
        if told[1:] != now[1:] or any(new > old for old, new in zip(told[0][1::2], now[0][1::2], strict=True)):
            return True
        taken = (sum(now[0][::2]) - sum(told[0][::2])) * self._plan.settings.env.lanes
        queued = self._queue_steps * len(now[0]) // 2
        return bool(queued) and taken >= min(2 * PARCEL_STEPS, queued // 2)

    @property
    def stop(self) -> bool:
        """Whether training must stop."""
        return self._ledger.stop

    def _words(self, actors: Sequence[int], words: Sequence[Header]) -> Words:
        rows = [[self._headers[actor][word] for word in words] for actor in actors]
        return np.array(rows, np.uint64).reshape(len(rows), len(words))

    def _sampling_rate(self, samples: int) -> float:
        """Rows that the learner draws per second, over the last second or so."""
        now, seen = time.monotonic(), self._samples
        while seen and now - seen[0][0] > 2.0:
            seen.popleft()
        # Over a shorter time, one batch between two orders would look like millions of rows a second.
        rate = (samples - seen[0][1]) / (now - seen[0][0]) if seen and now - seen[0][0] > RATE_SECONDS else 0.0
        if not seen or now - seen[-1][0] > 0.1:
            seen.append((now, samples))
        return max(0.0, rate)
