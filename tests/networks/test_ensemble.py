"""An ensemble is its members, one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoal.errors import ConfigError
from shoal.networks import EnsembleMLP
from shoal.networks.activations import Activation


def alone(ensemble: EnsembleMLP, member: int, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """One member as ordinary layers."""
    for layer, (weight, bias) in enumerate(zip(ensemble.weights, ensemble.biases, strict=True)):
        x = functional.linear(x, weight[member].T, bias[member, 0])
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
    assert torch.autograd.gradcheck(lambda x, *_: ensemble(x, first), (x, *ensemble.parameters()))


def test_members_start_apart_and_as_torchs_layers_do() -> None:
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, 100, (400,), 1, "relu")
    weight, like = ensemble.weights[0], nn.Linear(100, 400).weight
    assert not torch.equal(weight[0], weight[1])
    assert weight.abs().max() <= 0.1 and weight.std().item() == pytest.approx(like.std().item(), rel=0.05)


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive sizes"):
        EnsembleMLP(2, 3, (0,), 1, "relu")
