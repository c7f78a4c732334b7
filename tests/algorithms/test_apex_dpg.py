"""Ape-X DPG's losses and ladder against numbers worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.algorithms.continuous_fakes import BATCH, FixedPolicy, LinearCritic, networks

from shoal.algorithms.apex_dpg import Config, PricingPolicy, critic_loss, policy_loss
from shoal.algorithms.interface import PolicyContext
from shoal.types import EnvSpec

CRITIC = LinearCritic([[1.0]], [[2.0]])


def test_the_error_is_that_of_the_action_taken() -> None:
    """Next action 0.4: 1 + 2 * 3.4 = 7.8, goal 1 + 0.5 * 7.8 = 4.9; Q(s, a) = 1 + 3 = 4, not Q(s, pi(s)) = 3."""
    loss = critic_loss(networks(FixedPolicy(0.0), CRITIC, FixedPolicy(0.4), CRITIC), BATCH)
    torch.testing.assert_close(loss.td_error, torch.tensor([0.9, -5.0]))  # the second terminated: -1 - 4
    torch.testing.assert_close(loss.loss, torch.tensor([0.405, 12.5]))


def test_the_policy_climbs_the_critic() -> None:
    policy = FixedPolicy(0.25)
    policy_loss(networks(policy, CRITIC, policy, CRITIC), BATCH).loss.backward()
    assert policy.output.grad is not None and policy.output.grad.item() == -2.0


def test_every_lane_of_every_actor_has_its_own_noise() -> None:
    """Two actors of two lanes: 0.2, 0.1, 0.05, 0.025, dealt in turn."""
    spec = EnvSpec("Fake-v0", (1,), "float32", 1, 0, (400,), (-1.0,) * 400, (1.0,) * 400)
    config, spreads = Config(noise_max=0.2, noise_min=0.025, policy_hidden=(4,), critic_hidden=(4,)), []
    for index in range(2):
        policy: Any = PricingPolicy(config, spec, PolicyContext(index, actors=2, lanes=2, seed=index))
        with torch.no_grad():
            policy.module.policy.body.weights[-1].zero_()
            policy.module.policy.learned.fill_(1.0)
        acted = policy.act(np.zeros((2, 1), np.float32), (), np.ones(2, np.bool_), explore=True)
        spreads += acted.action.std(axis=1).tolist()
    assert spreads == pytest.approx([0.2, 0.05, 0.1, 0.025], rel=0.15)


def test_a_rising_ladder_is_refused() -> None:
    with pytest.raises(ValidationError, match="noise_min"):
        Config(noise_min=0.5, noise_max=0.1)
