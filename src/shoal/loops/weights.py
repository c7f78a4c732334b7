"""WeightBoard: the newest weights, versioned, on shared memory.

Two slots and two counters. The learner announces the version it is about to write (`claim`), fills the idle slot, then
publishes it (`version`). A reader copies the published slot and looks at `claim` again: two or more ahead means its
slot was being written, and it reads again. Readers compare one counter between steps (nanoseconds) and copy only when
it changed.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from shoal.errors import CorruptShard
from shoal.replay.counters import Counters, fence, map_file
from shoal.replay.reserve import reserve_file

Weights = npt.NDArray[np.float32]
LARGEST_VERSION = 2**32 - 1
"""The largest that the shards' column `weights_version` can hold."""


def board_bytes(size: int) -> int:
    """Bytes of a board for this number of weights."""
    return max(1, size) * 8


class _Word(IntEnum):
    CLAIM = 0
    VERSION = 1


class WeightBoard:
    """One learner publishes, any number of policies read."""

    def __init__(self, path: Path, size: int) -> None:
        """Args:
        path: a file that `create` made; counters lie beside it.
        size: number of weights.

        Raises:
            CorruptShard: it is damaged, or was made for another network.
        """
        try:
            mapped = map_file(path, board_bytes(size), writable=True)
        except CorruptShard as error:
            raise CorruptShard(f"{error} It is damaged, or another network wrote it: this one has {size}.") from error
        self.size = size
        self._path, self._words = path, Counters(path.with_suffix(".words"), writable=True)
        self._slots: Weights = np.ndarray((2, max(1, size)), np.float32, buffer=mapped)

    @staticmethod
    def open(path: Path) -> WeightBoard:
        """A board of whatever size it has. (For a network, give its size: a damaged board is found then.)"""
        return WeightBoard(path, path.stat().st_size // 8)

    @staticmethod
    def create(path: Path, size: int) -> WeightBoard:
        """An empty board, its memory reserved. There must be none."""
        reserve_file(path, board_bytes(size))
        Counters.create(path.with_suffix(".words"))
        return WeightBoard(path, size)

    def check(self) -> None:
        """Raises CorruptShard for content that no learner can have published. Call it while no learner runs."""
        claim, version = self._words[_Word.CLAIM], self.version
        # A learner that is killed while it publishes leaves a claim of one more.
        if not version <= claim <= version + 1 <= LARGEST_VERSION:
            raise CorruptShard(f"{self._words.path} has version {version} and {claim}: it is damaged.")
        if version and not np.isfinite(self._slots[version % 2]).all():
            raise CorruptShard(f"{self._path.name} holds weights that are not finite: it is damaged.")

    @property
    def version(self) -> int:
        """The newest version; 0 when nothing was published yet."""
        return self._words[_Word.VERSION]

    def publish(self, weights: Weights, version: int | None = None) -> int:
        """Publishes weights; returns their version: the next one, or that of the board which this one repeats."""
        version = self.version + 1 if version is None else version
        self._words[_Word.CLAIM] = version
        fence(weights.nbytes)
        self._slots[version % 2, : len(weights)] = weights
        fence()
        self._words[_Word.VERSION] = version
        return version

    def read(self, out: Weights) -> int:
        """Copies the newest weights; returns their version. 0: nothing was published yet, nothing is copied."""
        while (version := self.version) > 0:
            fence()
            out[:] = self._slots[version % 2, : len(out)]
            fence()
            if self._words[_Word.CLAIM] <= version + 1:
                return version
        return 0


def _weights_of(module: nn.Module) -> list[torch.Tensor]:
    return [tensor for tensor in module.state_dict(keep_vars=True).values() if tensor.is_floating_point()]


def count_weights(module: nn.Module) -> int:
    """How many numbers of a network are published: its weights and buffers."""
    return sum(tensor.numel() for tensor in _weights_of(module))


class BoardModule:
    """A network whose weights are published on a board or taken from there, as one vector in the order of its state
    dict.
    """

    def __init__(self, module: nn.Module, path: Path, *, in_place: bool = False) -> None:
        """Args:
        module: the network, on its final device.
        path: of the board.
        in_place: on the CPU, the network's weights are views of the vector that is read: no second copy is made.
            Nothing else may flatten it.
        """
        self._tensors = _weights_of(module)
        sizes = [tensor.numel() for tensor in self._tensors]
        self.board = WeightBoard(path, sum(sizes))
        self.version = 0
        """Of the weights that were taken last; 0 when none were."""
        self._vector: Weights = np.empty(sum(sizes), np.float32)
        pieces = torch.from_numpy(self._vector).split(sizes)
        self._parts = [piece.view(tensor.shape) for piece, tensor in zip(pieces, self._tensors, strict=True)]
        self._in_place = in_place and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in self._tensors)
        if self._in_place:
            for part, tensor in zip(self._parts, self._tensors, strict=True):
                part.copy_(tensor.detach())
                tensor.data = part

    @staticmethod
    def create(module: nn.Module, path: Path) -> BoardModule:
        """Makes a board for this network, empty, and opens it. There must be none."""
        WeightBoard.create(path, count_weights(module))
        return BoardModule(module, path)

    def publish(self) -> None:
        """Puts the network's weights on the board."""
        for part, tensor in zip(self._parts, self._tensors, strict=True):
            part.copy_(tensor.detach())
        self.board.publish(self._vector)

    def refresh(self) -> int:
        """Takes the newest weights if they are newer than the last ones; returns their version."""
        if self.board.version != self.version:
            self.version = self.board.read(self._vector)
            if not self._in_place:
                with torch.no_grad():
                    for part, tensor in zip(self._parts, self._tensors, strict=True):
                        tensor.copy_(part)
        return self.version
