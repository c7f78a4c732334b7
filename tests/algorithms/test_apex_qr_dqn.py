"""The quantile loss against numbers worked by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.apex_qr_dqn import quantile_loss
from shoal.algorithms.batches import TransitionBatch


class Table(nn.Module):
    """Quantiles per action, the same for every observation."""

    value_norm, value_scale = None, 1.0

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, obs: Tensor) -> Tensor:
        return self.values.expand(len(obs), -1, -1)


def test_full_pairing_by_hand() -> None:
    """One sample, two quantiles (tau 0.25, 0.75), predictions 0 and 2 for the action taken; targets 1 and 3.

    u_ij = target_j - prediction_i: i=0: 1, 3; i=1: -1, 1. Huber_1: 0.5, 2.5; 0.5, 0.5.
    |tau_i - 1{u<0}|: 0.25, 0.25; 0.25, 0.75.
    Sum over i of the mean over j: (0.125 + 0.625)/2 + (0.125 + 0.375)/2 = 0.375 + 0.25 = 0.625.
    """
    online = Table([[0.0, 2.0], [0.0, 0.0]])
    goal = Table([[1.0, 3.0], [1.0, 3.0]])
    batch = TransitionBatch(
        obs=torch.zeros(1, 1),
        action=torch.tensor([0]),
        reward=torch.tensor([0.0]),
        discount=torch.tensor([1.0]),
        next_obs=torch.zeros(1, 1),
    )
    loss = quantile_loss(online, goal, batch, tau=torch.tensor([0.25, 0.75]), kappa=1.0)
    assert loss.loss.tolist() == [0.625]
    assert loss.td_error.tolist() == [1.0]  # means: 2 - 1
