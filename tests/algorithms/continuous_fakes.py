"""Networks simple enough to work out by hand, shared by the tests of the continuous losses."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from shoal.algorithms.batches import TransitionBatch
from shoal.algorithms.continuous import Networks


class FixedPolicy(nn.Module):
    """The same output at every observation."""

    def __init__(self, *output: float) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.tensor(output))

    def from_normalized(self, obs: Tensor) -> Tensor:
        return self.output.expand(len(obs), -1)


class LinearCritic(nn.Module):
    """Member m's outputs are `base[m] + slope[m] * (obs + action)`: base and slope are [M, N]."""

    def __init__(self, base: list[list[float]], slope: list[list[float]]) -> None:
        super().__init__()
        self.base, self.slope = nn.Parameter(torch.tensor(base)), nn.Parameter(torch.tensor(slope))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.judge(obs, action)

    def judge(self, obs: Tensor, action: Tensor, first: int | None = None) -> Tensor:
        total = (obs + action)[None]  # [1, B, 1]
        return (self.base[:, None] + self.slope[:, None] * total)[:first]  # [M, B, N]


BATCH = TransitionBatch(
    obs=torch.tensor([[1.0], [2.0]]),
    action=torch.tensor([[0.5], [-0.5]]),
    reward=torch.tensor([1.0, -1.0]),
    discount=torch.tensor([0.5, 0.0]),  # the second one terminated
    next_obs=torch.tensor([[3.0], [4.0]]),
)


def networks(policy: Any, critic: Any, target_policy: Any, target_critic: Any) -> Networks:
    """Stubs in the place of networks."""
    return cast(Any, Networks)(policy, critic, target_policy, target_critic)  # type: ignore[no-any-return]
