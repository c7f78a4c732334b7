"""Gradients that travel: many workers compute them, one server applies them. The same learner, in two processes.

    worker    vector = learner.push(sample)        gradient | metrics | moments of the observations
    server    learner.step(vectors of k workers)   their mean, weighted by rows; apply; statistics follow

Workers normalise with the statistics that came with the weights. What they saw travels behind the gradient, and the
server keeps the statistics. So k gradients, each of its own rollout, are exactly one gradient of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.algorithms.interface import Forward, LearnerState, StepResult
from shoal.algorithms.learner import GradientLearner
from shoal.algorithms.moments import Statistics
from shoal.networks import ActorCritic
from shoal.types import FINAL, Gradients, Sample, Sequence

METRICS = ("loss", "policy_loss", "value_loss", "entropy", "explained_variance", "value_mean")
_RETURNS = ("return_mean", "return_variance")
"""Metrics of a loss that `push` needs, beside those that are reported."""


def push_size(network: ActorCritic) -> int:
    """Numbers in one push."""
    return sum(_sizes(network))


def _sizes(network: ActorCritic) -> tuple[int, ...]:
    """Of the gradient, the metrics, the number of observations, their mean and their variance."""
    gradient = sum(one.numel() for one in network.parameters() if one.requires_grad)
    features = 0 if network.norm is None else len(network.norm.mean)
    return gradient, len(METRICS) + len(_RETURNS), 1, features, features


def count_steps(sequence: Sequence) -> int:
    """Rows that hold a step, of all lanes."""
    return int(np.count_nonzero(sequence.boundary[:-1] != FINAL))


class PushLearner:
    """Both halves. `step` takes gradients, or sequences whose gradient it computes itself: A2C in one process."""

    published_whole = True

    def __init__(
        self, learner: GradientLearner, network: ActorCritic, statistics: Statistics, discount_staleness: bool
    ) -> None:
        """Args:
        learner: of one objective, whose loss has the metrics `METRICS`, `return_mean` and `return_variance`.
        network: the learner's.
        statistics: the learner's preparation.
        discount_staleness: a gradient that is n versions old counts 1 / n.
        """
        self.learner, self.module, self._statistics = learner, network, statistics
        self._discount, self._parts = discount_staleness, _sizes(network)
        self.watched: Mapping[str, Forward] = learner.watched

    def push(self, sample: Sample) -> npt.NDArray[np.float32]:
        """The worker's half."""
        found = self.learner.gradient(sample)
        assert isinstance(sample.data, Sequence)
        values = {"loss": found.loss, **found.metrics}
        parts = [found.vector, torch.stack([values[name] for name in METRICS + _RETURNS])]
        if self.module.norm is not None:
            rows = torch.from_numpy(sample.data.obs).reshape(-1, len(self.module.norm.mean)).double()
            variance, mean = torch.var_mean(rows, dim=0, correction=0)
            parts += [torch.tensor([float(len(rows))]), mean.float(), variance.float()]
        else:
            parts.append(torch.zeros(1))
        return torch.cat(parts).numpy()

    def step(self, sample: Sample | None) -> StepResult:
        """The server's half, or both."""
        assert sample is not None, "a server has no other learners to wait for"
        data = sample.data
        if isinstance(data, Sequence):
            data = Gradients(self.push(sample)[None], np.array([count_steps(data)]), np.array([0]))
        assert isinstance(data, Gradients)
        gradients, metrics, sizes, means, variances = torch.from_numpy(data.vectors).split(self._parts, dim=1)
        rows, discount = torch.from_numpy(data.rows).float(), torch.ones(len(data.rows))
        if self._discount:
            discount = 1.0 / torch.from_numpy(data.staleness).float().clamp(min=1.0)
        weight, share = rows * discount, rows / rows.sum()
        # The step is discounted, and not the gradient, whose size means little to Adam.
        norm = self.learner.apply((weight / weight.sum()) @ gradients, float(weight.sum() / rows.sum()))
        values = share @ metrics
        if (norms := self.module.value_norm) is not None:
            apart = metrics[:, -2] - values[-2]
            norms.include(values[-2], values[-1] + share @ apart.square())
            self.module.follow_returns()
        if self.module.norm is not None and self._statistics.moments is not None:
            for size, mean, variance in zip(sizes.long(), means, variances, strict=True):
                self._statistics.moments.join(size[0], mean.double(), variance.double(), self.module.norm)
        reported: dict[str, Tensor] = dict(zip(METRICS, values, strict=False))
        return StepResult({**reported, "gradient_norm": norm}, None)

    def state(self) -> LearnerState:
        return self.learner.state()

    def load_state(self, state: LearnerState) -> None:
        self.learner.load_state(state)

    def weights_replaced(self) -> None:
        self.learner.weights_replaced()
