"""GradientBoard: one worker's gradients for the process that applies them, on shared memory.

    board = GradientBoard.create(path, size)            board = GradientBoard(path)      # in the other process
    board.push(vector, rows, version)                   if push := board.take(): ...; board.settle(applied=1)

Two slots and counters, as on the weight board. The writer announces the push it is about to write (`claim`), fills the
idle slot, then publishes it (`pushed`). The reader copies the newest slot and looks at `claim` again: two or more ahead
means that the slot was being written, and it reads again. So there is no lock, no vector is torn, and either process
may be killed at any moment.

Nothing is lost unseen: pushed = applied + dropped + waiting. A push that a newer one replaced, that was refused, or
that died with its reader is dropped: what was taken counts as dropped until `settle` says that it was applied.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError, CorruptShard
from shoal.replay.counters import LARGEST_COUNT, Counters, fence, map_file
from shoal.replay.reserve import reserve_file

Vector = npt.NDArray[np.float32]


class _Word(IntEnum):
    CLAIM = 0
    """Number of the push that is being written, or was last (writer)."""
    PUSHED = 1
    """Number of the newest complete push (writer)."""
    TAKEN = 2
    """Number of the newest push that was taken (reader)."""
    APPLIED = 3
    """How many were applied (reader)."""
    SETTLED = 4
    """Number of the newest push whose fate is decided (reader)."""


class Push(NamedTuple):
    """One gradient."""

    vector: Vector
    rows: int
    """How many steps it is the mean of."""
    version: int
    """Of the weights it was computed with."""


class PushCounts(NamedTuple):
    """pushed = applied + dropped + waiting."""

    pushed: int
    applied: int
    dropped: int
    """Replaced before they were taken, or taken and not applied."""
    waiting: int
    """1 if the newest push was not taken yet."""


_HEADS = 32
"""Bytes of the rows and versions of both slots."""


def gradient_board_bytes(size: int) -> int:
    """Bytes of a board for vectors of this size."""
    return _HEADS + 8 * size


class GradientBoard:
    """One process pushes, one takes."""

    def __init__(self, path: Path) -> None:
        """Args:
        path: a file that `create` made; counters lie beside it.

        Raises:
            CorruptShard: it is missing or damaged.
        """
        nbytes = path.stat().st_size if path.is_file() else 0
        self.size = max(0, nbytes - _HEADS) // 8
        """Of the vectors."""
        if nbytes != gradient_board_bytes(self.size):
            raise CorruptShard(f"{path} is missing, or no board of gradients: it has {nbytes} bytes.")
        self._path, self._words = path, Counters(path.with_suffix(".words"), writable=True)
        mapped = map_file(path, nbytes, writable=True)
        self._heads: npt.NDArray[np.uint64] = np.ndarray((2, 2), np.uint64, buffer=mapped)
        self._vectors: Vector = np.ndarray((2, self.size), np.float32, buffer=mapped, offset=_HEADS)

    @staticmethod
    def create(path: Path, size: int) -> GradientBoard:
        """An empty board for vectors of this size, its memory reserved. There must be none."""
        if path.suffix not in ("", ".bin"):  # the counters of `g.0` and `g.1` would be one file
            raise ConfigError(f"A board's name may end in .bin or have no ending, got {path.name!r}: use g_0, say.")
        reserve_file(path, gradient_board_bytes(size))
        Counters.create(path.with_suffix(".words"))
        return GradientBoard(path)

    def check(self) -> None:
        """Raises CorruptShard for content that nobody can have pushed. Call it while nobody pushes or takes."""
        words = self._words
        claim, pushed, taken, applied, settled = (words[word] for word in _Word)
        # A writer that is killed while it pushes leaves a claim of one more.
        if not (applied <= taken and settled <= taken <= pushed <= claim <= pushed + 1 <= LARGEST_COUNT):
            raise CorruptShard(f"{words.path} has {[words[word] for word in _Word]}: it is damaged.")
        if pushed > taken and not np.isfinite(self._vectors[pushed % 2]).all():
            raise CorruptShard(f"{self._path.name} holds a gradient that is not finite: it is damaged.")

    # ---- the writer's side

    def push(self, vector: Vector, rows: int, version: int, number: int | None = None) -> None:
        """Leaves a gradient for the reader, in place of one that it has not taken yet. `number`: of the push which this
        one repeats; by default it is the next one.
        """
        number = self.pushed + 1 if number is None else number
        self._words[_Word.CLAIM] = number
        fence(vector.nbytes)
        self._heads[number % 2], self._vectors[number % 2] = (rows, version), vector
        fence()
        self._words[_Word.PUSHED] = number

    @property
    def settled(self) -> bool:
        """Whether the fate of all pushes is decided. A writer that waits for it before it goes on replaces none, and
        finds the weights that its last one led to.
        """
        return self._words[_Word.SETTLED] == self.pushed

    # ---- the reader's side

    def take(self) -> Push | None:
        """The newest push, copied; None when it was taken already."""
        if (found := self.newer_than(self._words[_Word.TAKEN])) is None:
            return None
        self._words[_Word.TAKEN], push = found
        return push

    def settle(self, applied: int) -> None:
        """Decides the fate of all that was taken: so many of it were applied since the last call, the rest dropped."""
        self._words.add(_Word.APPLIED, applied)
        fence()
        self._words[_Word.SETTLED] = self._words[_Word.TAKEN]

    # ---- for a board that repeats one on another node

    def newer_than(self, number: int) -> tuple[int, Push] | None:
        """The newest push and its number, if that is larger; it counts as taken when its reader says so."""
        while (newest := self.pushed) > number:
            fence()
            rows, version = self._heads[newest % 2].tolist()
            push = Push(self._vectors[newest % 2].copy(), rows, version)
            fence()
            if self._words[_Word.CLAIM] <= newest + 1:
                return newest, push
        return None

    @property
    def fates(self) -> tuple[int, ...]:
        """What the reader has said: taken, applied, settled."""
        return tuple(self._words[word] for word in (_Word.TAKEN, _Word.APPLIED, _Word.SETTLED))

    def repeat(self, fates: tuple[int, ...]) -> None:
        """Says what the reader of the other board has said."""
        for word, value in zip((_Word.TAKEN, _Word.APPLIED, _Word.SETTLED), fates, strict=True):
            self._words[word] = value

    def resume(self, pushed: int, *fates: int) -> None:
        """Counts on from another board, for a new one."""
        self._words[_Word.CLAIM] = self._words[_Word.PUSHED] = pushed
        self.repeat((pushed, fates[1], pushed))  # what was on the way is lost, and nobody waits for it

    # ---- what became of them

    @property
    def pushed(self) -> int:
        """How many there were, ever."""
        return self._words[_Word.PUSHED]

    @property
    def counts(self) -> PushCounts:
        """What became of them."""
        applied, taken = self._words[_Word.APPLIED], self._words[_Word.TAKEN]
        pushed = self.pushed  # after the others, which are never ahead of it
        waiting = int(pushed > taken)
        return PushCounts(pushed, applied, pushed - waiting - applied, waiting)
