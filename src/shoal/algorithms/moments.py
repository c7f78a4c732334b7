"""Statistics of all observations that a learner has drawn, for networks that normalise what they see."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.algorithms.interface import Exchange, LearnerContext
from shoal.networks.normalization import ObservationNorm
from shoal.ops import Moments, joined_moments, merged_moments, moments_with_sums, sums_about

ROWS_BEHIND_ADOPTED = 10_000
"""Statistics that come with weights do not say how many rows they are of: assume enough to outweigh a batch."""


class RunningMoments(nn.Module):
    """In double precision, and saved with the learner."""

    size: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("size", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros_like(like, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros_like(like, dtype=torch.float64))

    def set(self, moments: Moments) -> None:
        for name, value in moments._asdict().items():
            getattr(self, name).copy_(value)

    def include(self, obs: Tensor | None, norm: ObservationNorm, exchange: Exchange | None = None) -> None:
        """Takes in some observations, [B, ...], those of all learners, and lets `norm` follow."""
        known = Moments(self.size, self.mean, self.variance)
        rows = self.mean.new_zeros((0, len(self.mean))) if obs is None else obs.reshape(len(obs), -1).float()
        if exchange is None:
            self.set(merged_moments(known, rows))
        else:
            with torch.no_grad():
                self.set(moments_with_sums(known, exchange.total(sums_about(rows, self.mean))))
        norm.set(self.mean, self.variance)

    def join(self, rows: Tensor, mean: Tensor, variance: Tensor, norm: ObservationNorm) -> None:
        """As `include`, by the number of observations, their mean and variance."""
        self.set(joined_moments(Moments(self.size, self.mean, self.variance), rows, mean, variance))
        norm.set(self.mean, self.variance)

    def adopt(self, norm: ObservationNorm) -> None:
        """Takes over the statistics that came with weights."""
        self.set(Moments(torch.tensor(ROWS_BEHIND_ADOPTED), norm.mean, norm.variance))


class NormalizingNetwork(Protocol):
    """A network that normalises what it sees and predicts, or nothing."""

    norm: ObservationNorm | None

    def follow_returns(self) -> None:
        """Takes over the statistics of returns."""


class Statistics:
    """Keeps the statistics of a network that normalises: a learner's preparation of batches."""

    def __init__(self, network: NormalizingNetwork, context: LearnerContext) -> None:
        self._network, self._norm, self._exchange = network, (norm := network.norm), context.exchange
        self.moments = None if norm is None else RunningMoments(norm.mean).to(context.device)

    @property
    def saved(self) -> dict[str, nn.Module]:
        """What a checkpoint holds of it, by name."""
        return {} if self.moments is None else {"moments": self.moments}

    def __call__(self, batch: Any) -> Any:
        self._network.follow_returns()
        if self._norm is not None and self.moments is not None:
            obs = None if batch is None else batch.obs.reshape(-1, len(self._norm.mean))
            self.moments.include(obs, self._norm, self._exchange)
        return batch

    def weights_replaced(self) -> None:
        if self._norm is not None and self.moments is not None:
            self.moments.adopt(self._norm)
