"""Flat parameters train as separate ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.algorithms.flat import FlatAdam, FlatParameters
from shoal.errors import CheckpointError


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


def test_flat_adam_is_torchs_adam() -> None:
    """Step by step, and after its state went through a checkpoint."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    flat = FlatParameters(ours)
    adam, reference = FlatAdam(flat, 1e-2, 1e-6), torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-6)
    for step in range(6):
        x = torch.randn(4, 3)
        flat.take_gradients(torch.autograd.grad(ours(x).square().sum(), list(ours.parameters())))
        adam.step()
        reference.zero_grad()
        theirs(x).square().sum().backward()
        reference.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
        torch.testing.assert_close(ours.bias, theirs.bias)
        if step == 2:
            saved = {name: tensor.clone() for name, tensor in adam.tensors("it.").items()}
            adam = FlatAdam(flat, 1e-2, 1e-6)
            adam.load(saved, "it.")


def test_a_state_of_another_size_is_refused() -> None:
    adam, other = (FlatAdam(FlatParameters(nn.Linear(3, size)), 1e-2, 1e-6) for size in (2, 5))
    with pytest.raises(CheckpointError, match=r"exp_avg has shape \[20\]"):
        adam.load(other.tensors("it."), "it.")
    with pytest.raises(CheckpointError, match="missing"):
        adam.load({}, "it.")
