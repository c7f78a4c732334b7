"""What several learners exchange beside gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.algorithms.interface import Exchange


def gather(exchange: Exchange, *own: float) -> Tensor:
    """Some numbers of every learner: [ranks, numbers] float64."""
    slots = torch.zeros(exchange.ranks, len(own), dtype=torch.float64)
    slots[exchange.rank] = torch.tensor(own, dtype=torch.float64)
    return exchange.total(slots)


class MeanGradient:
    """From one learner's gradient to the mean over the rows of all learners. One vector travels: the sum over its own
    rows, and behind it their number. So parts of a batch may have different sizes.
    """

    def __init__(self, exchange: Exchange, like: Tensor, sums: int) -> None:
        """Args:
        exchange: with the others.
        like: a gradient.
        sums: see `Objective`.
        """
        self._exchange, self._sent = exchange, like.new_zeros(len(like) + 1)
        self._sums = torch.zeros(sums, dtype=torch.float64, device=like.device)

    def __call__(self, gradient: Tensor, rows: Tensor | int) -> Tensor:
        """The mean, of this learner's mean over so many rows; valid until the next call."""
        torch.mul(gradient, rows, out=self._sent[:-1])
        self._sent[-1] = rows
        return self._mean()

    def without_rows(self) -> Tensor:
        """The mean over the others' rows."""
        if len(self._sums):  # which the others' losses ask for first
            self._exchange.total(self._sums.zero_())
        self._sent.zero_()
        return self._mean()

    def _mean(self) -> Tensor:
        sent = self._exchange.total(self._sent)
        return sent[:-1].div_(sent[-1].clamp(min=1.0))
