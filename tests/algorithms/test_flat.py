"""Flat parameters train as separate ones do."""

from __future__ import annotations

import torch
from torch import nn

from shoal.algorithms.flat import FlatParameters


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def test_same_training_as_with_separate_parameters() -> None:
    plain, flat_module = make(), make()
    flat = FlatParameters(flat_module)
    plain_optimizer = torch.optim.Adam(plain.parameters(), 1e-2)
    flat_optimizer = torch.optim.Adam([flat.vector], 1e-2)
    for step in range(50):
        batch = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        plain_optimizer.zero_grad()
        (10 * plain(batch).square().sum()).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain_optimizer.step()
        flat.zero_grad()
        (10 * flat_module(batch).square().sum()).backward()
        torch.testing.assert_close(flat.clip_gradients(1.0), norm)
        flat_optimizer.step()
    for one, other in zip(plain.parameters(), flat_module.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_small_gradients_are_left_alone() -> None:
    module = make()
    flat = FlatParameters(module)
    module(torch.ones(1, 3, dtype=torch.float64)).sum().mul(1e-3).backward()
    before = flat.grad.clone()
    flat.clip_gradients(100.0)
    assert torch.equal(flat.grad, before) and before.abs().sum() > 0


def test_loading_a_state_dict_changes_the_vector() -> None:
    module, other = make(), make()
    flat = FlatParameters(module)
    with torch.no_grad():
        other[0].weight.fill_(7.0)
    module.load_state_dict(other.state_dict())
    assert (flat.vector[:24] == 7.0).all()
