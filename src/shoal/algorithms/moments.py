"""Statistics of all observations that a learner has drawn, for networks that normalise what they see."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shoal.algorithms.interface import LearnerContext
from shoal.networks.normalization import ObservationNorm
from shoal.ops import Moments, merged_moments

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

    def include(self, obs: Tensor, norm: ObservationNorm) -> None:
        """Takes in some observations, [B, ...], and lets `norm` follow."""
        rows = obs.reshape(obs.shape[0], -1).float()
        self.set(merged_moments(Moments(self.size, self.mean, self.variance), rows))
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
        self._network, self._norm = network, (norm := network.norm)
        self._moments = None if norm is None else RunningMoments(norm.mean).to(context.device)

    @property
    def saved(self) -> dict[str, nn.Module]:
        """What a checkpoint holds of it, by name."""
        return {} if self._moments is None else {"moments": self._moments}

    def __call__(self, batch: Any) -> Any:
        self._network.follow_returns()
        if self._norm is not None and self._moments is not None:
            self._moments.include(batch.obs.reshape(-1, len(self._norm.mean)), self._norm)
        return batch

    def weights_replaced(self) -> None:
        if self._norm is not None and self._moments is not None:
            self._moments.adopt(self._norm)
