"""The DQN loss against numbers worked by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.apex_dqn import dqn_loss
from shoal.algorithms.batches import TransitionBatch


class Table(nn.Module):
    """Action values looked up by the observation's only number."""

    value_norm, value_scale = None, 1.0

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, obs: Tensor) -> Tensor:
        return self.rows[obs[:, 0].long()]


ONLINE = Table([[1.0, 2.0], [5.0, 4.0]])
TARGET = Table([[0.0, 0.0], [10.0, 20.0]])
BATCH = TransitionBatch(
    obs=torch.tensor([[0.0], [0.0]]),
    action=torch.tensor([0, 1]),
    reward=torch.tensor([1.0, 1.0]),
    discount=torch.tensor([0.5, 0.0]),
    next_obs=torch.tensor([[1.0], [1.0]]),
)


def test_double_q_learning_by_hand() -> None:
    """State 1: the online network prefers action 0 (5 > 4), the target values it 10.

    Goal 1 + 0.5 * 10 = 6; error 6 - 1 = 5.
    The second sample is terminal: goal 1, error 1 - 2 = -1. Huber: 5 - 0.5 = 4.5 and 0.5.
    """
    loss = dqn_loss(ONLINE, TARGET, BATCH, double=True, huber_delta=1.0)
    assert loss.td_error.tolist() == [5.0, -1.0]
    assert loss.loss.tolist() == [4.5, 0.5]
    assert loss.metrics["q_mean"].item() == 1.5


def test_plain_q_learning_by_hand() -> None:
    """The target network itself prefers action 1: goal 1 + 0.5 * 20 = 11."""
    loss = dqn_loss(ONLINE, TARGET, BATCH, double=False, huber_delta=1.0)
    assert loss.td_error.tolist() == [10.0, -1.0]


def test_errors_are_measured_in_deviations_of_the_return_and_priorities_are_not() -> None:
    """Errors 5 and -1 are 1.25 and -0.25 deviations of 4: Huber 0.75 and 0.03125."""
    online = Table([[1.0, 2.0], [5.0, 4.0]])
    online.value_scale = 4.0
    loss = dqn_loss(online, TARGET, BATCH, double=True, huber_delta=1.0)
    assert loss.td_error.tolist() == [5.0, -1.0]
    assert loss.loss.tolist() == [0.75, 0.03125]


def test_no_gradient_through_the_goal() -> None:
    dqn_loss(ONLINE, TARGET, BATCH, double=True, huber_delta=1.0).loss.sum().backward()
    assert ONLINE.rows.grad is not None
    assert ONLINE.rows.grad[1].tolist() == [0.0, 0.0]  # the next state's values are not pulled
    assert TARGET.rows.grad is None
