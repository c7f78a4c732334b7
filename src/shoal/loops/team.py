"""Learners: several learners of one run as one group, which loses members and takes them back.

Each learner has a few words in a file on shared memory, which only it writes. They say who takes part; gloo carries
the numbers, over TCP on this machine's loopback. Learners that have a GPU each exchange what is there by NCCL.

A *generation* is a group of processes that are connected. Its number is the sum of all EPOCH words: a learner raises
its own when its process starts and when an exchange has failed. So any death ends the generation, and all that are left
wait for the next one, which begins when everybody has JOINED with the same number. The member with the most updates
then sends its state to the others. Only if nobody holds any, does the first one read the checkpoint.

An update is a *turn*. Who has a batch announces it; who has none does so after some patience, and takes part with an
empty share. (With rollouts it waits: members that once made an update apart would never meet again.) All make the turn
when all have announced it, so nobody waits in an exchange for somebody who has stopped: one who has announced a turn
leaves only if another one has left.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms.exchanged import MeanGradient
from shoal.algorithms.interface import LearnerState
from shoal.errors import ConfigError
from shoal.loops.gpu_exchange import GpuExchange, gpu_number
from shoal.replay import Ledger, LedgerWord
from shoal.replay.counters import Counters

CONNECT_SECONDS = 5.0
"""A member that died while a generation began is noticed after this."""
EXCHANGE_SECONDS = 300.0
"""A member that is silent for so long has hung. One that dies is noticed at once."""
PATIENCE_SECONDS = 1.0
"""After so long, an update is made without those who have no batch."""
POLL_SECONDS = 5e-5


class Word(IntEnum):
    """The words of each learner."""

    EPOCH = 0
    JOINED = 1
    """The generation it wants to be in."""
    HOLDS = 2
    """Updates behind the state it holds, and one; 0: none."""
    TURN = 3
    """Generation and number of the update that it has announced."""
    LEFT = 4
    """The generation that it has left for good."""
    DRAWN = 5
    """Rows that it has drawn."""
    LACKS = 6
    """Inserts up to which no actor is to wait, because it has too little to draw from."""


STRIDE = 8
"""Words of each learner."""


class MemberLost(Exception):
    """Another learner has died or hung: `join` again."""


class Learners:
    """One member of a group of learners. An `Exchange`, once `join` has returned True."""

    def __init__(
        self,
        path: Path,
        rank: int,
        ranks: int,
        patience: float = PATIENCE_SECONDS,
        device: torch.device | None = None,
    ) -> None:
        """Args:
        path: a file that `create` made; the handle that all members share.
        rank: which of them this is.
        ranks: how many there are.
        patience: seconds after which a member without a batch takes part in an update all the same.
        device: where this member computes; GPUs exchange directly if each member has its own.
        """
        if not 0 <= rank < ranks:
            raise ConfigError(f"rank = {rank} must lie between 0 and {ranks - 1}: there are {ranks} learners.")
        self.rank, self.ranks, self._path, self._patience = rank, ranks, path, patience
        self.words = Counters(path, writable=True, count=ranks * STRIDE).words
        self.seconds = 0.0
        """Spent in exchanges, so far."""
        self.notes: tuple[str, ...] = ()
        """For the user; who passes them on empties it."""
        self._group: Any = None
        self._device = device
        self._gpus: GpuExchange | None = None
        self._refused = 0
        """Generations in a row that NCCL did not connect, though nobody had died as far as is known."""
        self._generation = self._turn = 0
        self._announced = False
        self._asked_at: float | None = None
        self.set(Word.HOLDS, 0)
        self.set(Word.LEFT, 0)
        self.set(Word.EPOCH, self.of(rank, Word.EPOCH) + 1)

    @staticmethod
    def create(path: Path, ranks: int) -> None:
        """Makes the file, anew. Once, before the members start."""
        for old in (path, *path.parent.glob(f"{path.stem}.[0-9]*")):
            old.unlink(missing_ok=True)
        Counters.create(path, ranks * STRIDE)

    def of(self, rank: int, word: Word) -> int:
        """A word of any member."""
        return self.words[rank * STRIDE + word]

    def set(self, word: Word, value: int) -> None:
        """Sets a word of this member."""
        self.words[self.rank * STRIDE + word] = value

    def all(self, word: Word) -> list[int]:
        """A word of every member."""
        return [self.of(rank, word) for rank in range(self.ranks)]

    # Generations.

    @property
    def joined(self) -> bool:
        """Whether the group is whole, as far as is known."""
        return self._generation > 0

    def join(self) -> bool:
        """Forms the next generation if all members have come for it; else returns False: ask again a little later."""
        generation = sum(self.all(Word.EPOCH))
        self.set(Word.JOINED, generation)
        if any(joined != generation for joined in self.all(Word.JOINED)):
            return False
        try:
            self._group, store = _connect(self._path.with_suffix(f".{generation}"), self.rank, self.ranks)
            self._gpus = self._connect_gpus(store, generation)
        except RuntimeError:
            self.fail()
            return False
        self._generation, self._turn, self._announced, self._asked_at = generation, 0, False, None
        return True

    def _connect_gpus(self, store: Any, generation: int) -> GpuExchange | None:
        """If every member has a GPU, and another one than the rest."""
        numbers = torch.zeros(self.ranks, dtype=torch.int64)
        numbers[self.rank] = gpu_number(self._device)
        _finish(self._group.allreduce([numbers]))
        if self._device is None or 0 in numbers or len(set(numbers.tolist())) < self.ranks:
            return None
        lost = partial(self._lost, generation)
        try:
            made = GpuExchange(store, self.rank, self.ranks, self._device, lost, EXCHANGE_SECONDS)
        except RuntimeError as error:
            self._refused = 0 if lost() else self._refused + 1
            # The first time, a member may have died and not be back yet. After the second, there is gloo.
            if self._refused > 1:
                self._device, reason = None, str(error).partition("\n")[0]
                self.notes += (f"NCCL could not connect the GPUs ({reason}): learners exchange through the host.",)
            raise
        self._refused = 0
        return made

    def _lost(self, generation: int) -> bool:
        """Whether a member of the generation has died."""
        return sum(self.all(Word.EPOCH)) != generation

    def fail(self) -> None:
        """Ends the generation: an exchange has failed."""
        if self._generation == sum(self.all(Word.EPOCH)) or not self.joined:
            self.set(Word.EPOCH, self.of(self.rank, Word.EPOCH) + 1)
        self._leave()

    def _leave(self) -> None:
        self._generation, self._group, self._gpus = 0, None, None

    @property
    def leader(self) -> int:
        """The member whose state the others take over when a generation begins."""
        held = self.all(Word.HOLDS)
        return held.index(max(held))

    @property
    def all_new(self) -> bool:
        """Whether nobody holds a state."""
        return not any(self.all(Word.HOLDS))

    def copy_state(self, own: LearnerState) -> LearnerState:
        """The leader's state, of its own shapes. Every member calls it when a generation has begun."""
        leader = self.leader
        text = json.dumps(own.scalars).encode()
        length = self._sent_by(leader, torch.tensor([len(text)]))
        told = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == leader:
            told.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        told = self._sent_by(leader, told)
        tensors = {name: self._sent_by(leader, own.tensors[name].detach()) for name in sorted(own.tensors)}
        return LearnerState(tensors, json.loads(bytes(told.tolist())))

    def holds(self, updates: int) -> None:
        """Says how many updates are behind this member's state."""
        self.set(Word.HOLDS, updates + 1)

    def holds_another(self) -> None:
        """One more update is behind it."""
        self.set(Word.HOLDS, self.of(self.rank, Word.HOLDS) + 1)

    # Turns.

    def may_update(self, has_batch: bool) -> bool:
        """Whether all have come for the next update; then it must be made. Else ask again a little later.

        Raises:
            MemberLost: the generation has ended.
        """
        if self._lost(self._generation):
            self._leave()
            raise MemberLost
        mark = (self._generation << 32) + self._turn + 1
        announced = self.all(Word.TURN)
        if not self._announced and not has_batch and mark in announced:
            self._asked_at = self._asked_at or time.monotonic()
        waited = self._asked_at is not None and time.monotonic() - self._asked_at > self._patience
        if not self._announced and (has_batch or waited):
            self._announced, announced[self.rank] = True, mark
            self.set(Word.TURN, mark)
        if any(one != mark for one in announced):
            return False
        self._turn, self._announced, self._asked_at = self._turn + 1, False, None
        return True

    def may_leave(self) -> bool:
        """Whether nobody needs this member for an update that was announced; then it has left for good."""
        gone = any(left and left == self._generation for left in self.all(Word.LEFT))
        if self._announced and not gone and sum(self.all(Word.EPOCH)) == self._generation:
            return False
        self.set(Word.LEFT, max(1, self._generation))
        return True

    # Exchanges.

    def total(self, vector: Tensor) -> Tensor:
        """Replaces a tensor by its sum over all members, and returns it.

        Raises:
            MemberLost: another member has died or hung.
        """
        with self._exchanging():
            if self._gpus is not None and vector.device.type == "cuda":
                return self._gpus.total(vector)
            host = vector if vector.device.type == "cpu" else vector.cpu()
            _finish(self._group.allreduce([host]))
        return vector if host is vector else vector.copy_(host)

    def mean_gradients(self, module: nn.Module, rows: int) -> None:
        """Replaces the gradients of a module, means over this member's `rows`, by the mean over the rows of all. For
        training loops of one's own; members without a batch call it too, with rows = 0.
        """
        parameters = [one for one in module.parameters() if one.requires_grad]
        own = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters])
        mean = MeanGradient(self, own, 0)(own, rows)
        parts = mean.split([one.numel() for one in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def _sent_by(self, rank: int, tensor: Tensor) -> Tensor:
        """A copy on the CPU of a tensor that this member has."""
        host = tensor.cpu().contiguous().clone()
        with self._exchanging():
            _finish(self._group.broadcast([host], _broadcast_from(rank)))
        return host

    @contextlib.contextmanager
    def _exchanging(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            self.fail()
            raise MemberLost(str(error)) from error
        finally:
            self.seconds += time.perf_counter() - began


class RankLedger(Ledger):
    """A run's ledger, for one of several learners. What they write together is written by the first of them, from words
    that each has for itself; so every word still has one writer.
    """

    def __init__(self, folder: Path, shards: Sequence[Path], team: Learners) -> None:
        super().__init__(folder, shards)
        self._team = team
        self._before = self[LedgerWord.SAMPLES] - sum(team.all(Word.DRAWN))

    def __setitem__(self, entry: LedgerWord, value: int) -> None:
        if entry is LedgerWord.GRANT:
            self._team.set(Word.LACKS, value)
        else:
            super().__setitem__(entry, value)

    def add(self, entry: LedgerWord, amount: int) -> None:
        if entry is not LedgerWord.SAMPLES:
            return super().add(entry, amount)
        self._team.set(Word.DRAWN, self._team.of(self._team.rank, Word.DRAWN) + amount)
        if self._team.rank == 0:
            super().__setitem__(entry, self._before + sum(self._team.all(Word.DRAWN)))
            super().__setitem__(LedgerWord.GRANT, max(self._team.all(Word.LACKS)))


def _connect(path: Path, rank: int, ranks: int) -> tuple[Any, Any]:
    """A gloo group whose members meet in a file: nothing listens on an address that other machines reach. And the store
    in that file.
    """
    from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=CONNECT_SECONDS)
    store = FileStore(str(path), ranks)
    group = ProcessGroupGloo(store, rank, ranks, options)
    group._set_default_timeout(timedelta(seconds=EXCHANGE_SECONDS))
    for old in path.parent.glob(f"{path.stem}.[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int(old.suffix[1:]) < int(path.suffix[1:]):
                old.unlink()
    return group, store


def _finish(work: Any) -> None:
    work.wait(timedelta(seconds=EXCHANGE_SECONDS))


def _broadcast_from(rank: int) -> object:
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = rank
    return options
