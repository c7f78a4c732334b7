"""What a learner can say of its own health: units that never answer, rows that are drawn again and again.

Looked at once per report, with a forward pass of each learned network on some rows of a batch: no gradient, no random
numbers, and nothing is changed. Whoever reads the reports judges them: see `runtime/health.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shoal.algorithms.interface import Forward, Learner
from shoal.types import Gradients, Sample, Sequence

ROWS, LARGE_ROWS, LARGE = 256, 64, 4096
"""Most observations of one look; fewer if one has more values than this, as images have: Nature's network takes 76 ms
for 256 of them, and a filter sees hundreds of places in each."""


class Layer(NamedTuple):
    """One relu of a network."""

    network: str
    number: int
    """From the input, from 1."""
    filters: bool
    """Whether its units are filters of a convolution."""
    dead: int
    """Units that no row switches on: they have no gradient."""
    size: int

    @property
    def share(self) -> float:
        return self.dead / self.size


class Health(NamedTuple):
    """One look."""

    layers: tuple[Layer, ...] = ()
    largest_reward: float = 0.0
    """Largest absolute reward of a batch so far, as it is stored: of n steps where draws are transitions."""
    effective_rows: float = math.nan
    """Rows that uniform draws would be as varied with: 1 / sum of p^2. NaN where nothing is prioritized."""

    @property
    def logged(self) -> Mapping[str, float]:
        """By metric name."""
        values = {f"health/dead_units/{one.network}_{one.number}": one.share for one in self.layers}
        if values:
            values["health/dead_units"] = max(values.values())
        if not math.isnan(self.effective_rows):
            values["health/effective_rows"] = self.effective_rows
        return {**values, "health/largest_reward": self.largest_reward}


class Probe:
    """Looks at a learner."""

    def __init__(self, learner: Learner, prioritized: bool) -> None:
        self._watched, self._module, self._prioritized = learner.watched, learner.module, prioritized
        self._largest_reward = 0.0

    def look(self, sample: Sample) -> Health:
        """At the learner's networks, with a batch that it has just learned from."""
        data = sample.data
        assert not isinstance(data, Gradients), "nothing to look at"
        self._largest_reward = max(self._largest_reward, float(np.abs(data.reward).max(initial=0.0)))
        rows = math.nan
        if self._prioritized:  # E[size * P] of the draws is size * sum of P^2
            rows = float(np.max(sample.size) / np.mean(sample.size * sample.probabilities))
        leading = 2 if isinstance(data, Sequence) else 1
        device = next(self._module.parameters()).device
        most = LARGE_ROWS if math.prod(data.obs.shape[leading:]) > LARGE else ROWS
        obs, action = (_some(one, leading, most).to(device) for one in (data.obs, data.action))
        return Health(count_dead(self._watched, obs, action), self._largest_reward, rows)


def _some(array: Any, leading: int, most: int) -> Tensor:
    """At most so many of its rows, from everywhere."""
    flat = array.reshape(-1, *array.shape[leading:])
    return torch.from_numpy(np.ascontiguousarray(flat[:: -(-len(flat) // most)]))


@torch.no_grad()
def count_dead(watched: Mapping[str, Forward], obs: Tensor, action: Tensor) -> tuple[Layer, ...]:
    """The layers of these networks. Scalars are fetched from the device once."""
    found: list[tuple[str, int, bool, Tensor, int]] = []
    for network, forward in watched.items():
        with _Activations(len(obs)) as seen:
            forward(obs, action)
        for number, (filters, alive) in enumerate(seen.layers, 1):
            found.append((network, number, filters, (~alive).sum(), alive.numel()))
    dead = torch.stack([one[3] for one in found]).tolist() if found else []
    return tuple(Layer(*one[:3], count, one[4]) for one, count in zip(found, dead, strict=True))


class _Activations(TorchFunctionMode):
    """Every relu while it is entered, whichever way it is called: networks need no hooks. Not tanh: where values are
    large and all alike, as in a task that is solved, its units are saturated and nothing is wrong.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self.layers: list[tuple[bool, Tensor]] = []
        """Whether it is a convolution's, and which units are alive."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("relu", "relu_"):  # of torch or of a tensor
            # [B, F]; [M, B, F] of an ensemble; [B, C, H, W]. A network of the user's may have others, of whose axes
            # nothing is known.
            rows = {2: (0,), 3: (1,), 4: (0, 2, 3)}.get(out.dim())
            if rows is None or out.shape[rows[0]] != self._rows or (out.dim() == 3 and len(out) == self._rows):
                return out
            self.layers.append((out.dim() == 4, out.amax(dim=rows) > 0))
        return out
