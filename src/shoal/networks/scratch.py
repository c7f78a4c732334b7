"""Memory that hidden layers are computed in."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

SIZES_KEPT = 8
"""A policy server sees batches of many sizes; what it kept for each would add up."""
_ROW = 16
"""Rows begin at a multiple of so many numbers: 64 bytes, a line of the cache."""

Sizes = tuple[int, int, tuple[int, ...], torch.dtype, torch.device]
"""Members of an ensemble, rows of a batch, widths of the hidden layers; and of what kind."""


class Block(NamedTuple):
    """Room for the output of one hidden layer."""

    values: Tensor
    """[M, B, width]"""
    extended: Tensor
    """[M, B, width + 1]: the same, and a last column of ones, which the next layer's biases are multiplied with."""
    whole: Tensor
    """[M, B, more]: to the end of each row, and so without gaps."""


class Scratch:
    """Blocks that are reused, and so stay in the processor's cache; new memory would miss it at every line.

    The caller owns the blocks it takes until it gives them back. Blocks that are never given back are freed as usual.
    """

    def __init__(self) -> None:
        self._free: defaultdict[Sizes, list[list[Block]]] = defaultdict(list)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()  # a copy of a network has memory of its own

    def take(self, sizes: Sizes) -> list[Block]:
        """One for each width, with any values."""
        try:
            return self._free[sizes].pop()
        except IndexError:
            if len(self._free) > SIZES_KEPT:
                self._free.clear()
            return make_blocks(sizes)

    def give(self, sizes: Sizes, blocks: list[Block]) -> None:
        """Back, to be overwritten by the next one."""
        self._free[sizes].append(blocks)


def make_blocks(sizes: Sizes, ones: bool = True) -> list[Block]:
    """New ones, which nobody else will have; without `ones` for what needs `values` only."""
    members, rows, widths, dtype, device = sizes
    blocks = []
    with torch.inference_mode(False):  # what is made in that mode cannot be written to outside of it
        for width in widths:
            stride = -(-(width + 1) // _ROW) * _ROW
            whole = torch.empty(members, rows, stride, dtype=dtype, device=device)
            if ones:
                whole[:, :, width] = 1.0
            blocks.append(Block(whole[:, :, :width], whole[:, :, : width + 1], whole))
    return blocks
