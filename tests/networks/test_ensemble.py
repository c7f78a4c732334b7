"""An ensemble is its members, one after the other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoal.algorithms.optimizer import FlatParameters
from shoal.errors import ConfigError
from shoal.networks import EnsembleMLP, Scratch
from shoal.networks.activations import Activation
from shoal.networks.scratch import SIZES_KEPT


def alone(ensemble: EnsembleMLP, member: int, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """One member as ordinary layers."""
    for layer, weight in enumerate(ensemble.weights):
        x = functional.linear(x, weight[member, :-1].T, weight[member, -1])
        if layer < len(ensemble.weights) - 1:
            x = torch.relu(x) if activation == "relu" else torch.tanh(x)
    return x


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_members_compute_what_they_would_alone(activation: Activation) -> None:
    torch.manual_seed(0)
    ensemble, x = EnsembleMLP(3, 5, (8, 7), 2, activation), torch.randn(4, 5)
    together = ensemble(x)
    assert together.shape == (3, 4, 2)
    for member in range(3):
        torch.testing.assert_close(together[member], alone(ensemble, member, x, activation))
    torch.testing.assert_close(ensemble(x, first=1), together[:1])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_are_those_of_the_members(activation: Activation) -> None:
    """Activations overwrite what they are given: backwards, nothing may miss it."""
    torch.manual_seed(0)
    ensemble, x = EnsembleMLP(2, 3, (6, 4), 1, activation), torch.randn(5, 3)
    parameters = list(ensemble.parameters())
    together = torch.autograd.grad(ensemble(x).square().sum(), parameters)
    apart = torch.autograd.grad(sum(alone(ensemble, m, x, activation).square().sum() for m in range(2)), parameters)  # type: ignore[arg-type]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("first", [None, 1])
def test_gradients_are_exact(activation: Activation, first: int | None) -> None:
    """Against finite differences, of the input and of every parameter."""
    torch.manual_seed(1)
    ensemble = EnsembleMLP(2, 3, (6, 5), 2, activation).double()
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, *_: ensemble(x, first=first), (x, *ensemble.parameters()))


def test_members_start_apart_and_as_torchs_layers_do() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, 100, (400,), 1, "relu")
    weight, like = ensemble.weights[0], nn.Linear(100, 400).weight
    assert not torch.equal(weight[0], weight[1])
    assert weight.abs().max() <= 0.1 and weight.std().item() == pytest.approx(like.std().item(), rel=0.05)


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive sizes"):
        EnsembleMLP(2, 3, (0,), 1, "relu")


def learning(ensemble: EnsembleMLP, scratch: Scratch) -> FlatParameters:
    ensemble.work_in(scratch)
    return FlatParameters(ensemble)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_networks_that_take_turns_in_memory_compute_what_they_would_alone(activation: Activation) -> None:
    """In the order of an update: target, critic, backwards, and the policy's look through the critic."""
    torch.manual_seed(0)
    scratch, x = Scratch(), torch.randn(5, 3)
    critic, target = (EnsembleMLP(2, 3, (6, 4), 1, activation) for _ in range(2))
    flat = learning(critic, scratch)
    learning(target, scratch)
    for _ in range(3):
        with torch.no_grad():
            goal = target(x)
            torch.testing.assert_close(goal[1], alone(target, 1, x, activation))
        out = critic(x[:, :2], x[:, 2:])
        before = torch.autograd.grad((alone(critic, 0, x, activation) - goal[0]).square().sum(), critic.weights[0])[0]
        flat.gradient((out - goal).square().sum())
        torch.testing.assert_close(critic.weights[0].grad[0], before[0])
        looked = x.clone().requires_grad_()
        through = torch.autograd.grad(critic(looked, first=1, constant=True).sum(), looked)[0]
        expected = x.clone().requires_grad_()
        torch.testing.assert_close(
            through, torch.autograd.grad(alone(critic, 0, expected, activation).sum(), expected)[0]
        )
        with torch.no_grad():
            flat.vector.sub_(flat.grad, alpha=0.1)
    assert sum(map(len, scratch._free.values())) <= 4, "memory is used again"


def test_a_loss_that_goes_through_a_network_twice_has_both_gradients() -> None:
    torch.manual_seed(0)
    ensemble, x = EnsembleMLP(2, 3, (6, 4), 1, "relu"), torch.randn(5, 3)
    flat, parameters = FlatParameters(ensemble), list(ensemble.parameters())
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(ensemble(torch.cat((x, -x))).sum(), parameters)])
    torch.testing.assert_close(flat.gradient(ensemble(x).sum() + ensemble(-x).sum()), expected)


def test_a_second_backward_pass_through_memory_that_others_use_is_refused() -> None:
    ensemble, x = EnsembleMLP(1, 3, (6,), 1, "relu"), torch.randn(5, 3)
    learning(ensemble, Scratch())
    loss = ensemble(x).sum()
    torch.autograd.grad(loss, list(ensemble.parameters()), retain_graph=True)
    with pytest.raises(RuntimeError, match="evaluate again"):
        torch.autograd.grad(loss, list(ensemble.parameters()))


def test_batches_of_many_sizes_do_not_pile_up() -> None:
    ensemble = EnsembleMLP(1, 3, (6,), 1, "relu")
    with torch.inference_mode():
        for rows in range(1, 100):
            assert ensemble(torch.ones(rows, 3)).shape == (1, rows, 1)
    assert len(ensemble._scratch._free) <= SIZES_KEPT + 1


def test_a_copy_has_memory_of_its_own_and_a_moved_network_other_memory() -> None:
    ensemble, x = EnsembleMLP(1, 3, (6,), 1, "relu"), torch.randn(5, 3)
    with torch.no_grad():
        expected = ensemble(x)
    twin = copy.deepcopy(ensemble)
    assert twin._scratch is not ensemble._scratch
    torch.testing.assert_close(twin(x), expected)
    torch.testing.assert_close(ensemble.double()(x.double()), expected.double(), rtol=1e-5, atol=1e-5)


def test_a_differentiable_evaluation_owns_its_memory_unless_told_otherwise() -> None:
    """A captured update goes on using the memory it was captured with: nobody else may get it."""
    ensemble, x = EnsembleMLP(2, 3, (6, 4), 1, "relu"), torch.randn(5, 3)
    losses = [ensemble(sign * x).sum() for sign in (1, -1)]
    for loss in losses:
        torch.autograd.grad(loss, list(ensemble.parameters()))
    assert not ensemble._scratch._free
