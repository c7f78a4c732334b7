"""Torsos: choice, shapes, dtypes, scaling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import ConfigError
from shoal.networks import MLP, NatureCNN, TinyCNN
from shoal.networks.torso import SmallCNN


def test_mlp_by_hand() -> None:
    mlp = MLP(2, (2, 1))
    first, second = mlp.layers[0], mlp.layers[2]
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 0.0]]))
        first.bias.zero_()
        second.weight.copy_(torch.tensor([[3.0, 5.0]]))
        second.bias.fill_(-1.0)
    # relu(1 + 4, -1) = (5, 0) ; relu(15 - 1) = 14. Second row: relu(-1, 1) = (0, 1) ; 5 - 1 = 4
    torch.testing.assert_close(mlp(torch.tensor([[1.0, 2.0], [-1.0, 0.0]])), torch.tensor([[14.0], [4.0]]))


def test_mlp_flattens_and_casts_to_its_weights() -> None:
    mlp = MLP(6, (5,), nn.Tanh)
    assert mlp.out_features == 5
    x = torch.arange(24).reshape(4, 2, 3)
    for dtype in (torch.uint8, torch.int64, torch.float64):
        torch.testing.assert_close(mlp(x.to(dtype)), mlp(x.reshape(4, 6).float()))
    assert mlp.to(torch.bfloat16)(x).dtype == torch.bfloat16
    assert mlp(torch.zeros(0, 6)).shape == (0, 5)


def test_mlp_without_layers_only_flattens() -> None:
    mlp = MLP(6, ())
    assert mlp.out_features == 6 and not list(mlp.parameters())
    assert mlp(torch.zeros(4, 2, 3)).shape == (4, 6)


def test_mlp_refusals() -> None:
    with pytest.raises(ValueError, match=r"4 values each, got shape \(3, 5\)"):
        MLP(4, (8,))(torch.zeros(3, 5))
    with pytest.raises(ConfigError, match=r"hidden=\(8, 0\)"):
        MLP(4, (8, 0))


def test_nature_cnn_shapes_and_size() -> None:
    cnn = NatureCNN(4)
    assert cnn.out_features == 64 * 7 * 7
    assert cnn(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 3136)
    # 4*8*8*32+32, 32*4*4*64+64, 64*3*3*64+64
    assert sum(p.numel() for p in cnn.parameters()) == 8224 + 32832 + 36928


@pytest.mark.parametrize(("height", "width"), [(36, 36), (96, 96), (64, 50), (210, 160)])
def test_nature_cnn_computes_its_flat_size(height: int, width: int) -> None:
    cnn = NatureCNN(3, height, width)
    assert cnn(torch.zeros(1, 3, height, width, dtype=torch.uint8)).shape == (1, cnn.out_features)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (10, 15), (16, 16), (35, 9), (35, 200)])
def test_tiny_cnn_computes_its_flat_size(height: int, width: int) -> None:
    cnn = TinyCNN(3, height, width, channels_last=True)
    assert cnn(torch.zeros(1, height, width, 3, dtype=torch.uint8)).shape == (1, cnn.out_features)


def test_uint8_is_scaled_inside_and_floats_are_not() -> None:
    cnn = NatureCNN(1, 36, 36)
    obs = torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)
    before = obs.clone()
    torch.testing.assert_close(cnn(obs), cnn(obs.float() / 255.0))
    torch.testing.assert_close(obs, before)
    scaled = obs.float() / 255.0
    kept = scaled.clone()
    cnn(scaled)
    torch.testing.assert_close(scaled, kept)


def test_nature_cnn_follows_the_dtype_of_its_weights() -> None:
    obs = torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)
    assert NatureCNN(1, 36, 36).to(torch.bfloat16)(obs).dtype == torch.bfloat16
    assert NatureCNN(1, 36, 36).double()(obs).dtype == torch.float64


def test_channels_last_is_the_same_network() -> None:
    first, last = NatureCNN(3, 40, 36), NatureCNN(3, 40, 36, channels_last=True)
    last.load_state_dict(first.state_dict())
    obs = torch.randint(0, 256, (2, 3, 40, 36), dtype=torch.uint8)
    torch.testing.assert_close(last(obs.permute(0, 2, 3, 1)), first(obs))


@pytest.mark.parametrize("kind", [NatureCNN, SmallCNN, TinyCNN])
@pytest.mark.parametrize(("height", "width"), [(84, 84), (96, 96), (64, 37), (10, 10), (9, 12), (35, 36)])
def test_every_pixel_is_seen(kind: type[NatureCNN | SmallCNN | TinyCNN], height: int, width: int) -> None:
    """Strides of two used to leave out the last row of 10x10, where the player of a game was."""
    if kind is not TinyCNN and min(height, width) < 36:
        return
    cnn = kind(2, height, width)
    for parameter in cnn.parameters():
        nn.init.constant_(parameter, 0.01)  # no ReLU is off
    obs = torch.ones(1, 2, height, width, requires_grad=True)
    cnn(obs).sum().backward()
    assert obs.grad is not None and (obs.grad != 0).all()


def test_nature_cnn_refusals() -> None:
    with pytest.raises(ConfigError, match="got 1 and 28x84"):
        NatureCNN(1, 28, 84)
    with pytest.raises(ValueError, match=r"\[B, \*\(4, 84, 84\)\], got shape \(2, 84, 84\)"):
        NatureCNN(4)(torch.zeros(2, 84, 84))
