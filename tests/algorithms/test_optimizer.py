"""One vector of parameters trains as separate ones do, with torch's own optimizers as the reference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from shoal.algorithms.optimizer import FlatParameters, Optimizer, Rule, TargetNetwork, clip_gradient
from shoal.errors import CheckpointError

REFERENCES: dict[Rule, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()


@pytest.mark.parametrize("rule", REFERENCES)
def test_same_training_as_with_separate_parameters(rule: Rule) -> None:
    """Step by step, with clipped gradients and a falling rate, and after the state went through a checkpoint."""
    plain, module = make(), make()
    flat = FlatParameters(module)
    reference = REFERENCES[rule](plain.parameters(), lr=1.0, eps=1e-6)  # type: ignore[call-arg]
    optimizer = Optimizer(flat.vector, rule, 1e-6)
    for step in range(50):
        rate = 1e-2 / (1 + step)
        batch = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        reference.zero_grad()
        (10 * plain(batch).square().sum()).backward()
        norm = nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        gradient = flat.gradient(10 * module(batch).square().sum())
        torch.testing.assert_close(clip_gradient(gradient, 1.0), norm)
        optimizer.set_rate(rate)
        optimizer.step(gradient)
        if step == 20:
            saved = {name: tensor.clone() for name, tensor in optimizer.tensors("it.").items()}
            optimizer = Optimizer(flat.vector, rule, 1e-6)
            optimizer.load(saved, "it.")
        for one, other in zip(plain.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_small_gradients_are_left_alone() -> None:
    module = make()
    gradient = FlatParameters(module).gradient(module(torch.ones(1, 3, dtype=torch.float64)).sum().mul(1e-3))
    for largest in (100.0, None):
        before = gradient.clone()
        clip_gradient(gradient, largest)
        assert torch.equal(gradient, before) and before.abs().sum() > 0


def test_parameters_that_a_loss_does_not_depend_on_have_no_gradient() -> None:
    module = make()
    flat, x = FlatParameters(module), torch.ones(1, 3, dtype=torch.float64)
    assert flat.gradient(module(x).sum()).count_nonzero() > 16
    assert flat.gradient(module[0](x).sum())[32:].count_nonzero() == 0


def test_loading_a_state_dict_changes_the_vector() -> None:
    module, other = make(), make()
    flat = FlatParameters(module)
    with torch.no_grad():
        other[0].weight.fill_(7.0)
    module.load_state_dict(other.state_dict())
    assert (flat.vector[:24] == 7.0).all()


def test_a_checkpoint_of_torchs_own_optimizer_is_read() -> None:
    """Of one parameter, number 0: how older checkpoints named its state."""
    optimizer = Optimizer(torch.zeros(4), "adam", 1e-6)
    older = {"it.0.step": torch.tensor(7.0), "it.0.exp_avg": torch.ones(4), "it.0.exp_avg_sq": torch.full((4,), 2.0)}
    optimizer.load(older, "it.")
    found = optimizer.tensors("it.")
    assert all(torch.equal(found[name.replace("0.", "")], tensor) for name, tensor in older.items())


def test_a_state_of_another_size_is_refused() -> None:
    optimizer, other = (Optimizer(torch.zeros(size), "adam", 1e-6) for size in (2, 5))
    with pytest.raises(CheckpointError, match=r"exp_avg has shape \[5\]"):
        optimizer.load(other.tensors("it."), "it.")
    with pytest.raises(CheckpointError, match="missing"):
        optimizer.load({}, "it.")


@pytest.mark.parametrize("flattened", [False, True])
def test_a_target_network_moves_by_tau_and_becomes_a_copy(flattened: bool) -> None:
    """Whether the network it follows has its parameters in one vector or apart."""
    online = make().append(nn.BatchNorm1d(2).double())
    target = copy.deepcopy(online)
    follows = TargetNetwork(target, online, period=1, tau=0.25)
    if flattened:
        FlatParameters(online)
    with torch.no_grad():
        online[0].weight.add_(1.0)
        online[2].bias.add_(4.0)
        online[3].running_mean.fill_(3.0)  # type: ignore[union-attr]
    follows.move(0.25)
    torch.testing.assert_close(online[0].weight - target[0].weight, torch.full((8, 3), 0.75, dtype=torch.float64))
    torch.testing.assert_close(online[2].bias - target[2].bias, torch.full((2,), 3.0, dtype=torch.float64))
    with torch.no_grad():
        target[0].weight.fill_(torch.nan)
    follows.move(1.0)
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in online.state_dict().items())
    assert not target[0].weight.requires_grad


def test_frozen_parameters_are_left_out() -> None:
    module = make()
    module[0].requires_grad_(False)
    flat, x = FlatParameters(module), torch.ones(1, 3, dtype=torch.float64)
    assert flat.vector.numel() == 18 and flat.gradient(module(x).sum()).count_nonzero() > 0
