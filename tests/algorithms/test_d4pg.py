"""D4PG's losses against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from tests.algorithms.continuous_fakes import BATCH, FixedPolicy, LinearCritic, networks

from shoal.algorithms.d4pg import Config, categorical_critic_loss, policy_loss, quantile_critic_loss
from shoal.ops import quantile_midpoints, support


def test_quantiles_learn_from_every_target_quantile() -> None:
    """Two quantiles, base 0 and 1, slope 1. Next action 0.4: targets 3.4 and 4.4, goals 1 + half: 2.7 and 3.2.

    Predicted 1.5 and 2.5 (levels 1/4 and 3/4). All four pairs u = goal - prediction: 1.2, 1.7 and 0.2, 0.7; Huber
    0.7, 1.2 and 0.02, 0.245. Sum over predictions of the mean: (0.7 + 1.2) / 2 / 4 + (0.02 + 0.245) / 2 * 3 / 4.
    """
    critic = LinearCritic([[0.0, 1.0]], [[1.0, 1.0]])
    nets = networks(FixedPolicy(0.0), critic, FixedPolicy(0.4), critic)
    loss = quantile_critic_loss(nets, BATCH, tau=quantile_midpoints(2), kappa=1.0)
    assert loss.loss[0].item() == pytest.approx(0.95 / 4 + 0.1325 * 3 / 4)
    assert loss.td_error.tolist() == pytest.approx([2.95 - 2.0, -1.0 - 2.0])  # the second terminated
    assert loss.metrics["q_mean"].item() == pytest.approx(2.0)


def test_atoms_learn_the_projected_target() -> None:
    """Atoms 0, 2, 4; even logits. Goal atoms 1, 2, 3 of probability 1/3: half of each outer one to its neighbours.

    So 1/6, 2/3, 1/6; cross-entropy with even probabilities is log 3. Terminated: all at -1, that is at the end, 0.
    """
    critic = LinearCritic([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]])
    nets = networks(FixedPolicy(0.0), critic, FixedPolicy(0.4), critic)
    loss = categorical_critic_loss(nets, BATCH, atoms=support(0.0, 4.0, 3))
    torch.testing.assert_close(loss.loss, torch.full((2,), math.log(3.0)))
    torch.testing.assert_close(loss.td_error, torch.tensor([0.0, -2.0]))  # means 2 and 0, predicted 2
    gradient = torch.autograd.grad(loss.loss[0], critic.base)[0]
    torch.testing.assert_close(gradient, torch.tensor([[1 / 3 - 1 / 6, 1 / 3 - 2 / 3, 1 / 3 - 1 / 6]]))


def test_the_policy_climbs_the_mean() -> None:
    """Slopes 1 and 3 of two quantiles: 2 on average. On atoms 0 and 1 with logits 0 and x: the sigmoid's slope, 1/4."""
    policy = FixedPolicy(0.25)
    critic = LinearCritic([[0.0, 0.0]], [[1.0, 3.0]])
    policy_loss(networks(policy, critic, policy, critic), BATCH, atoms=None).loss.backward()
    assert policy.output.grad is not None and policy.output.grad.item() == -2.0
    policy.output.grad = None
    at_zero = BATCH._replace(obs=torch.full((2, 1), -0.25))  # obs + action = 0: both logits 0
    sigmoid = LinearCritic([[0.0, 0.0]], [[0.0, 1.0]])
    policy_loss(networks(policy, sigmoid, policy, sigmoid), at_zero, atoms=support(0.0, 1.0, 2)).loss.backward()
    assert policy.output.grad is not None and policy.output.grad.item() == pytest.approx(-0.25)


def test_an_empty_range_of_values_is_refused() -> None:
    with pytest.raises(ValidationError, match="value_min"):
        Config(value_min=1.0, value_max=1.0)


def test_a_categorical_critic_must_be_told_where_returns_lie() -> None:
    with pytest.raises(ValidationError, match="needs to be told where discounted returns lie"):
        Config(critic="categorical")
    Config(critic="categorical", value_min=-10.0, value_max=0.0)
