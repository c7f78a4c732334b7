"""Whole networks: shapes, sizes, dtypes, and that they can be trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import ConfigError
from shoal.networks import QNetwork
from shoal.ops import double_quantile_target, huber, quantile_huber_loss, quantile_midpoints, td_error


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 7), (16, 8, 4)])
def test_vector_shapes(hidden: tuple[int, ...], dueling: bool) -> None:
    obs = torch.randn(5, 4)
    assert QNetwork((4,), "float32", 3, hidden, dueling)(obs).shape == (5, 3)
    assert QNetwork((4,), "float32", 3, hidden, dueling, quantiles=6)(obs).shape == (5, 3, 6)


@pytest.mark.parametrize("dueling", [False, True])
def test_image_shapes(dueling: bool) -> None:
    obs = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    assert QNetwork((4, 84, 84), "uint8", 6, dueling=dueling)(obs).shape == (2, 6)
    assert QNetwork((4, 84, 84), "uint8", 6, dueling=dueling, quantiles=5)(obs).shape == (2, 6, 5)


def test_image_network_is_the_dueling_network_of_apex() -> None:
    conv = 8224 + 32832 + 36928
    streams = 2 * (3136 * 512 + 512) + (512 * 6 + 6) + (512 + 1)
    assert parameters(QNetwork((4, 84, 84), "uint8", 6)) == conv + streams


def test_dueling_on_vectors_costs_what_the_plain_network_does() -> None:
    # 4*256+256, 256*256+256 in both; then 256*2+2 against 128*2+2 and 128+1
    assert parameters(QNetwork((4,), "float32", 2, dueling=False)) == 1280 + 65792 + 514
    assert parameters(QNetwork((4,), "float32", 2, dueling=True)) == 1280 + 65792 + 258 + 129


@pytest.mark.parametrize("hidden", [(), (8,), (8, 8)])
def test_any_observation_dtype_and_any_weight_dtype(hidden: tuple[int, ...]) -> None:
    net = QNetwork((3, 2), "bool", 2, hidden)
    obs = torch.tensor([[[1, 0], [0, 1], [1, 1]]], dtype=torch.bool)
    torch.testing.assert_close(net(obs), net(obs.float()))
    assert net.to(torch.bfloat16)(obs).dtype == torch.bfloat16


def test_uint8_images_are_scaled_once() -> None:
    net = QNetwork((1, 36, 36), "uint8", 2, image_hidden=16)
    obs = torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)
    floats = QNetwork((1, 36, 36), "float32", 2, image_hidden=16)
    floats.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(obs), floats(obs.float() / 255.0))


def test_same_seed_same_weights() -> None:
    torch.manual_seed(3)
    first = QNetwork((4,), "float32", 2)
    torch.manual_seed(3)
    second = QNetwork((4,), "float32", 2)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_q_network_learns_a_table() -> None:
    torch.manual_seed(0)
    net = QNetwork((3,), "float32", 2, (32, 32))
    obs, wanted = torch.eye(3), torch.tensor([[1.0, -1.0], [0.5, 2.0], [-3.0, 0.0]])
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(400):
        a = torch.full((3,), step % 2)
        loss = huber(td_error(net(obs), a, wanted[:, step % 2])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(net(obs).detach(), wanted, atol=0.1, rtol=0)


def test_quantile_network_target_carries_no_gradient() -> None:
    online, target = (QNetwork((3,), "float32", 2, (8,), quantiles=4) for _ in range(2))
    obs = torch.randn(5, 3)
    y = double_quantile_target(online(obs), target(obs), torch.randn(5), torch.full((5,), 0.9))
    quantile_huber_loss(online(obs)[:, 0], quantile_midpoints(4), y).mean().backward()
    assert all(p.grad is None for p in target.parameters())
    assert all(p.grad is not None for p in online.parameters())


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"got \(8, 0\)"):
        QNetwork((3,), "float32", 2, (8, 0))
    with pytest.raises(ConfigError, match="actions"):
        QNetwork((3,), "float32", 0)
    with pytest.raises(ValueError, match=r"3 values each, got shape \(5, 4\)"):
        QNetwork((3,), "float32", 2)(torch.zeros(5, 4))
