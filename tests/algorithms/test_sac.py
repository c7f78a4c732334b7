"""SAC's losses against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.algorithms.continuous_fakes import BATCH, FixedPolicy, LinearCritic, networks

from shoal.algorithms import get_algorithm
from shoal.algorithms.interface import PolicyContext
from shoal.algorithms.sac import critic_loss, policy_loss
from shoal.types import EnvSpec

TWINS = LinearCritic([[0.0], [1.0]], [[1.0], [2.0]])
LOG_DENSITY = -0.5 * math.log(2 * math.pi)  # of the action 0 of a standard Gaussian


def test_the_target_is_soft_and_the_lesser() -> None:
    """Mean 0, deviation 1, noise 0: action 0 with log density -0.919. The lesser target critic says 3.

    Goal 1 + 0.5 * (3 + 0.2 * 0.919) = 2.592; the critics say 1.5 and 4. The second sample terminated: goal -1.
    """
    policy = FixedPolicy(0.0, 0.0)
    loss = critic_loss(networks(policy, TWINS, policy, TWINS), BATCH, torch.zeros(2, 1), temperature=torch.tensor(0.2))
    goal = 1 + 0.5 * (3 - 0.2 * LOG_DENSITY)
    expected = [0.5 * ((goal - 1.5) ** 2 + (goal - 4) ** 2), 0.5 * (2.5**2 + 5**2)]
    torch.testing.assert_close(loss.loss, torch.tensor(expected))
    torch.testing.assert_close(loss.td_error, torch.tensor([goal - 2.75, -3.75]))


def test_the_policy_weighs_value_against_entropy() -> None:
    """Action 0: the lesser critic says 1 and 2, so the loss is 0.5 * -0.919 - 1.5; and the temperature has its own."""
    policy, log_temperature = FixedPolicy(0.0, 0.0), torch.tensor(math.log(0.5), requires_grad=True)
    nets = networks(policy, TWINS, policy, TWINS)
    fixed = policy_loss(nets, BATCH, torch.zeros(2, 1), log_temperature=log_temperature, target_entropy=None)
    assert fixed.loss.item() == pytest.approx(0.5 * LOG_DENSITY - 1.5)
    assert fixed.metrics["entropy"].item() == pytest.approx(-LOG_DENSITY)
    learned = policy_loss(nets, BATCH, torch.zeros(2, 1), log_temperature=log_temperature, target_entropy=-1.0)
    learned.loss.backward()
    assert log_temperature.grad is not None
    assert log_temperature.grad.item() == pytest.approx(-(LOG_DENSITY - 1.0))  # entropy 0.9 > -1: it falls


def test_the_actor_draws_from_the_distribution_the_learner_prices() -> None:
    """Its numpy sampling and `squashed_gaussian` agree: mean and spread of tanh(0.3 + e^-1 n)."""
    spec = EnvSpec("Fake-v0", (1,), "float32", 1, 0, (1,), (-1.0,), (1.0,))
    algorithm, lanes = get_algorithm("sac"), 20_000
    policy = algorithm.make_policy(algorithm.config(policy_hidden=(4,)), spec, PolicyContext(lanes=lanes))
    with torch.no_grad():
        policy.module.body.weights[-1].zero_()  # type: ignore[operator, union-attr]
        policy.module.body.weights[-1][:, -1] = torch.tensor([0.3, -1.0])  # type: ignore[operator, union-attr]
        policy.module.learned.fill_(1.0)  # type: ignore[operator, union-attr]
    obs, first = np.zeros((lanes, 1), np.float32), np.ones(lanes, np.bool_)
    drawn = policy.act(obs, (), first, explore=True).action
    expected = np.tanh(0.3 + math.exp(-1.0) * np.random.default_rng(5).standard_normal(lanes))
    assert drawn.mean() == pytest.approx(expected.mean(), abs=0.01)
    assert drawn.std() == pytest.approx(expected.std(), abs=0.01)
    assert policy.act(obs, (), first, explore=False).action[0, 0] == pytest.approx(math.tanh(0.3))
