"""TD3's losses against numbers worked by hand."""

from __future__ import annotations

import torch
from tests.algorithms.continuous_fakes import BATCH, FixedPolicy, LinearCritic, networks

from shoal.algorithms.td3 import critic_loss, policy_loss

TWINS = LinearCritic([[0.0], [1.0]], [[1.0], [2.0]])


def test_both_critics_learn_the_lesser_target() -> None:
    """Next action 0.4 + noise 0.9 cut to 0.5 = 0.9: targets 3.9 and 1 + 7.8 = 8.8, the lesser is 3.9.

    Goal 1 + 0.5 * 3.9 = 2.95. The critics say 1.5 and 1 + 3 = 4: errors 1.45 and -1.05, loss 2.1025 + 1.1025.
    The second sample terminated: goal -1; they say 1.5 and 4: errors -2.5 and -5, loss 6.25 + 25.
    """
    nets = networks(FixedPolicy(0.0), TWINS, FixedPolicy(0.4), TWINS)
    loss = critic_loss(nets, BATCH, torch.tensor([[0.9], [0.0]]), clip=0.5)
    torch.testing.assert_close(loss.loss, torch.tensor([3.205, 31.25]))
    torch.testing.assert_close(loss.td_error, torch.tensor([0.2, -3.75]))
    torch.testing.assert_close(loss.metrics["q_mean"], torch.tensor(2.75))


def test_the_policy_climbs_the_first_critic_only() -> None:
    """Slopes 1 and 2: the gradient of minus the mean is -1."""
    policy = FixedPolicy(0.25)
    loss = policy_loss(networks(policy, TWINS, policy, TWINS), BATCH).loss
    assert loss.item() == -1.75
    loss.backward()
    assert policy.output.grad is not None and policy.output.grad.item() == -1.0


def test_no_gradient_through_the_target() -> None:
    target_policy, target = FixedPolicy(0.4), LinearCritic([[0.0], [0.0]], [[1.0], [1.0]])
    critic = LinearCritic([[0.0], [0.0]], [[1.0], [1.0]])
    critic_loss(networks(FixedPolicy(0.0), critic, target_policy, target), BATCH, torch.zeros(2, 1), clip=0.5)
    loss = critic_loss(networks(FixedPolicy(0.0), critic, target_policy, target), BATCH, torch.zeros(2, 1), clip=0.5)
    loss.loss.sum().backward()
    assert critic.base.grad is not None and target.base.grad is None and target_policy.output.grad is None
