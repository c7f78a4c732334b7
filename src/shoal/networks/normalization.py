"""Normalisation with statistics that the learner keeps: of what networks see, and of the values they predict.

The statistics are buffers, so they travel with the weights and are saved with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

NORM_CLIP = 10.0
"""A normalised observation further out than this is an accident, and must not throw the networks off."""
NORM_EPSILON = 1e-8
VALUE_RATE = 0.01
"""How much of the statistics of returns each batch replaces; more in the first batches."""
SMALLEST_SCALE = 0.01
"""Of returns: without it, a task whose rewards were not found yet would be learned as noise."""
LEAST_DEVIATION = 0.02
"""What advantages are divided by at least, in deviations of the returns. Those of a solved task are noise, and noise of
full size ended in a policy that had forgotten the task (MiniGrid-Empty-5x5 with PPO: six of 36 evaluations were 0).
Solved CartPole has 0.006. Hopper has 0.03 to 0.05 while it learns, Pendulum and MountainCar have 0.06 to 0.1: they are
not to be slowed down.
"""
SHRINKS = 0.99999
"""How much of its scale a value head keeps from one update to the next, if returns have become more alike. Those of a
task that is solved are nearly equal. Divided by their small deviation, one failed episode was an error of 100 and ended
in a policy that had forgotten everything: CartPole with IMPALA, after 70,000 steps at 500.
"""


class ObservationNorm(nn.Module):
    """(obs - mean) * scale, clipped. The learner, which keeps the statistics, sets the buffers."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, obs: Tensor) -> Tensor:
        """[B, F] -> [B, F]"""
        return ((obs - self.mean) * self.scale).clamp_(-NORM_CLIP, NORM_CLIP)

    @property
    def variance(self) -> Tensor:
        """The observations' variance, computed from `scale`; [F] float64."""
        return self.scale.double().pow(-2) - NORM_EPSILON

    @torch.no_grad()
    def set(self, mean: Tensor, variance: Tensor) -> None:
        """Takes over new statistics."""
        self.mean.copy_(mean)
        self.scale.copy_((variance + NORM_EPSILON).rsqrt())


class ValueNorm(nn.Module):
    """A value head that predicts (return - mean) / scale, whatever the size of the rewards.

    "Learning values across many orders of magnitude", van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714
    (PopArt): when the statistics move, the head's weights move the other way, so that no value changes. Only the first
    statistics change values: before them there were none.
    """

    mean: Tensor
    scale: Tensor
    seen: Tensor
    first: Tensor
    variance: Tensor
    ready: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean", "scale", "seen", "first", "variance", "ready"):
            self.register_buffer(name, torch.full((1,), 1.0 if name == "scale" else 0.0))
        self._sums: Tensor | None = None  # of returns observed and not agreed on; see `defer`

    def forward(self, normalized: Tensor) -> Tensor:
        """Values as they are."""
        return normalized * self.scale + self.mean

    @property
    def error_scale(self) -> Tensor:
        """What errors are divided by: infinity before the first statistics. An update with errors of any size would
        fill the optimiser's memory, which takes thousands of updates to forget it. So the first one only observes.
        """
        return torch.where(self.ready > 0, self.scale, torch.inf)

    @torch.no_grad()
    def observe(self, returns: Tensor, mask: Tensor) -> None:
        """Takes a batch of returns, [T, B], of those rows where `mask` is 1. `follow` makes use of it."""
        rows = mask.sum()
        if self._sums is not None:
            apart = (returns.double() - self.first.double()) * mask
            self._sums.copy_(torch.stack((rows.double(), apart.sum(), apart.square().sum())))
            return
        known = (rows > 0).float()  # 0: nothing to learn from this batch
        rows = rows.clamp(min=1.0)
        mean = (returns * mask).sum() / rows
        self.include(mean, ((returns - mean).square() * mask).sum() / rows, known)

    def defer(self) -> None:
        """From now on `observe` only adds up: the batch is a part of one that other learners have parts of."""
        self._sums = torch.zeros(3, dtype=torch.float64, device=self.mean.device)

    @torch.no_grad()
    def agree(self, total: Callable[[Tensor], Tensor]) -> None:
        """Takes the returns that all learners have observed; `total` sums over them."""
        assert self._sums is not None
        rows, apart, square = total(self._sums).split(1)  # float64: float32 would lose a small deviation
        known, apart = (rows > 0).to(self.mean.dtype), apart / rows.clamp(min=1.0)
        spread = (square / rows.clamp(min=1.0) - apart.square()).clamp(min=0.0)
        self.include((self.first + apart).to(self.mean.dtype), spread.to(self.mean.dtype), known)
        self._sums.zero_()

    @torch.no_grad()
    def include(self, mean: Tensor, spread: Tensor, known: Tensor | float = 1.0) -> None:
        """As `observe`, by the mean and the variance of a batch; `known` is 0 if it has none."""
        rate = known * torch.clamp(1.0 / (self.seen + 1.0), min=VALUE_RATE)
        apart = mean - self.first
        # No difference of squares: a small deviation around a large mean would be lost in rounding.
        self.variance.copy_((1.0 - rate) * (self.variance + rate * apart.square()) + rate * spread)
        self.first.add_(rate * apart)
        self.seen.add_(known)

    @torch.no_grad()
    def follow(self, head: nn.Linear, differences: nn.Linear | None = None) -> None:
        """Takes over the statistics observed so far; values stay as they are. To be called between two updates: a
        gradient that is being computed needs the weights as they were.

        Args:
            head: the layer that predicts values.
            differences: another layer, whose outputs are differences between values.
        """
        learned = self.seen > 1
        scale = torch.where(self.seen > 0, self.variance.clamp(min=SMALLEST_SCALE**2).sqrt(), 1.0)
        scale = torch.where(learned, torch.maximum(scale, SHRINKS * self.scale), scale)
        # Values from before the first returns mean nothing: the layers stay, and predict the new mean at once.
        kept, shift = self.scale / scale, (self.mean - self.first) / scale
        kept, shift = torch.where(learned, kept, 1.0), torch.where(learned, shift, 0.0)
        for layer in (head,) if differences is None else (head, differences):
            layer.weight.mul_(kept)
            layer.bias.mul_(kept)
        head.bias.add_(shift)
        self.scale.copy_(scale)
        self.mean.copy_(self.first)
        self.ready.copy_(self.seen > 0)
