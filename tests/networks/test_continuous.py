"""Policies and critics for continuous actions."""

from __future__ import annotations

import torch

from shoal.algorithms.interface import PolicyContext
from shoal.config.load import settings_for
from shoal.loops.assembly import make_policy
from shoal.loops.plan import make_plan
from shoal.networks import CriticNetwork, PolicyNetwork, mean_and_log_std


def test_a_policy_stays_within_its_bounds_and_takes_any_shape() -> None:
    policy = PolicyNetwork((2, 3), 4, (8,), "relu", normalize=False, tanh=True)
    action = policy(torch.full((5, 2, 3), 1e6, dtype=torch.float64))
    assert action.shape == (5, 4) and action.abs().max() <= 1.0


def test_normalisation_by_hand() -> None:
    """(7 - 5) / sqrt(4) = 1; far out it is cut at 10."""
    policy = PolicyNetwork((2,), 1, (4,), "tanh", normalize=True, tanh=True)
    assert policy.norm is not None
    policy.norm.set(torch.tensor([5.0, 0.0]), torch.tensor([4.0, 1e-8]))
    torch.testing.assert_close(policy.normalized(torch.tensor([[7.0, 1e9]])), torch.tensor([[1.0, 10.0]]))


def test_statistics_and_the_learned_mark_travel_with_the_weights() -> None:
    policy = PolicyNetwork((2,), 1, (4,), "relu", normalize=True, tanh=True)
    assert {"norm.mean", "norm.scale", "learned"} <= set(policy.state_dict())


def test_a_wild_deviation_is_bounded() -> None:
    mean, log_std = mean_and_log_std(torch.tensor([[1.0, 2.0, 99.0, -99.0]]))
    assert mean.tolist() == [[1.0, 2.0]] and log_std.tolist() == [[2.0, -20.0]]


def test_a_critic_has_a_value_per_member_and_sample() -> None:
    critic = CriticNetwork((3,), 2, (8,), "relu", members=2, outputs=5)
    assert critic(torch.zeros(4, 3), torch.zeros(4, 2)).shape == (2, 4, 5)


def test_a_judge_gets_no_gradient() -> None:
    """The action does, and the same one; the weights are constants."""
    torch.manual_seed(0)
    critic, obs = CriticNetwork((3,), 2, (8,), "relu", members=2), torch.randn(4, 3)
    action = torch.randn(4, 2, requires_grad=True)
    expected = torch.autograd.grad(critic(obs, action)[0].sum(), action)[0]
    critic.judge(obs, action, first=1).sum().backward()
    torch.testing.assert_close(action.grad, expected)
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_rounded_networks_see_what_was_normalised_exactly() -> None:
    """A spread of 1 around 1000 is less than bfloat16 can tell apart."""
    settings = settings_for("Pendulum-v1", "sac", ["actor.precision=bfloat16", "normalize_observations=true"])
    policy = make_policy(make_plan(settings), PolicyContext())
    network = policy.module
    assert isinstance(network, PolicyNetwork) and network.norm is not None
    network.norm.set(torch.full((3,), 1000.0), torch.ones(3))
    seen = network.normalized(torch.tensor([[1000.75, 999.75, 1001.0]]))
    assert seen.dtype == torch.bfloat16
    torch.testing.assert_close(seen.float(), torch.tensor([[0.75, -0.25, 1.0]]), rtol=1e-2, atol=0)
