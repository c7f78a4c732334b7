"""Mailbox: one actor's observations to the inference server, and its actions back, over shared memory.

There is one request and one answer at a time, with a counter each. The actor writes its request, then raises `asked`.
The server copies it, acts, writes the answer and the version of the weights, then raises `answered` to the number it
read. Neither writes what the other may be reading: a waiting actor does not ask again, and the server answers only what
was asked. So there is no lock, and either may die at any moment. A restarted server finds the unanswered request. A
restarted actor may overwrite a request that is being copied: the answer to it has an older number than the actor waits
for, and the server sees the new request next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.replay import Column
from shoal.replay.counters import Counters, fence, map_file
from shoal.replay.reserve import reserve_file
from shoal.types import Array

SPINS = 20
"""Looks that only yield the core, before the first sleep."""
SHORTEST_SLEEP, LONGEST_SLEEP = 50e-6, 200e-6
"""Seconds between two looks after that; an answer takes a few of them."""


def pause(looks: int) -> None:
    """Waits before the next look at a counter, longer after more `looks` without a change."""
    if looks < SPINS:
        time.sleep(0)
    else:
        time.sleep(SHORTEST_SLEEP if looks < 2 * SPINS else LONGEST_SLEEP)


class _Word(IntEnum):
    ASKED = 0
    """Number of the newest request (actor)."""
    ANSWERED = 1
    """Number of the newest answer (server)."""
    VERSION = 2
    """Version of the weights behind it (server)."""


@dataclass(frozen=True)
class Layout:
    """What a mailbox holds for each of its lanes."""

    lanes: int
    obs: Column
    """An observation as the policy sees it."""
    answer: tuple[Column, ...]
    """The action and what the policy records."""

    @property
    def record(self) -> np.dtype[np.void]:
        """All of it, as one record: the file's content."""
        columns = (self.obs, Column("first", "bool"), *self.answer)
        return np.dtype([(one.name, one.dtype, (self.lanes, *one.shape)) for one in columns], align=True)


class Mailbox:
    """The shared memory of one actor and the server."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Args:
        path: a file that `create` made; counters lie beside it.
        layout: what it holds.
        """
        self._words = Counters(path.with_suffix(".words"), writable=True)
        mapped = map_file(path, layout.record.itemsize, writable=True)
        record: Array = np.ndarray((), layout.record, buffer=mapped)
        self.lanes = layout.lanes
        self.obs, self.first = record["obs"], record["first"]
        self.answer = {column.name: record[column.name] for column in layout.answer}

    @staticmethod
    def create(path: Path, layout: Layout) -> None:
        """An empty mailbox, in the place of one that an earlier execution left."""
        words = path.with_suffix(".words")
        for old in (path, words):  # not emptied: a process that was left over may have it mapped
            old.unlink(missing_ok=True)
        reserve_file(path, layout.record.itemsize)
        Counters.create(words)

    # ---- the actor's side

    def ask(self, obs: Array, first: npt.NDArray[np.bool_]) -> int:
        """Writes a request; returns its number."""
        number = self._words[_Word.ASKED] + 1
        self.obs[:] = obs
        self.first[:] = first
        fence()
        self._words[_Word.ASKED] = number
        return number

    def has_answer(self, number: int) -> bool:
        """Whether a request was answered; if so, `answer` and `version` do not change until the next `ask`."""
        if self._words[_Word.ANSWERED] < number:
            return False
        fence()
        return True

    @property
    def version(self) -> int:
        """Version of the weights behind the newest answer."""
        return self._words[_Word.VERSION]

    # ---- the server's side

    def request(self) -> int | None:
        """The number of the pending request, if there is one."""
        asked = self._words[_Word.ASKED]
        if asked == self._words[_Word.ANSWERED]:
            return None
        fence()
        return asked

    def reply(self, number: int, answer: Mapping[str, Array], version: int) -> None:
        """Answers a request.

        Args:
            number: of the request.
            answer: column name to [N, ...] values.
            version: of the weights.
        """
        for name, column in self.answer.items():
            column[:] = answer[name]
        self._words[_Word.VERSION] = version
        fence()
        self._words[_Word.ANSWERED] = number

    @property
    def answered(self) -> int:
        """How many requests were answered."""
        return self._words[_Word.ANSWERED]
