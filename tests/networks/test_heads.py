"""Heads: the dueling sum, its mean over actions only, shapes and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import ConfigError
from shoal.networks import QHead


def fill(layer: nn.Module | None, weight: list[list[float]], bias: list[float]) -> None:
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def test_dueling_by_hand() -> None:
    head = QHead(1, 3, 0, dueling=True)
    fill(head.streams.value, [[10.0]], [0.0])
    fill(head.streams.advantage, [[1.0], [2.0], [6.0]], [0.0, 0.0, 0.0])
    # x=1: V 10, A (1, 2, 6), mean 3 -> 8, 9, 13. x=2: V 20, A (2, 4, 12), mean 6 -> 16, 18, 26.
    expected = torch.tensor([[8.0, 9.0, 13.0], [16.0, 18.0, 26.0]])
    torch.testing.assert_close(head(torch.tensor([[1.0], [2.0]])), expected)


def test_dueling_streams_have_hidden_layers_of_their_own() -> None:
    head = QHead(1, 2, 1, dueling=True)
    assert head.streams.hidden is not None
    fill(head.streams.hidden[0], [[1.0], [-1.0]], [0.0, 0.0])  # first half is the value's, second the advantage's
    fill(head.streams.value, [[1.0]], [0.0])
    fill(head.streams.advantage, [[2.0], [4.0]], [0.0, 0.0])
    # x=3: hidden (3, 0): V 3, A 0. x=-3: hidden (0, 3): V 0, A (6, 12), mean 9.
    torch.testing.assert_close(head(torch.tensor([[3.0], [-3.0]])), torch.tensor([[3.0, 3.0], [-3.0, 3.0]]))


def test_quantile_dueling_by_hand() -> None:
    head = QHead(1, 2, 0, dueling=True, quantiles=2)
    fill(head.streams.value, [[10.0], [20.0]], [0.0, 0.0])
    fill(head.streams.advantage, [[1.0], [2.0], [3.0], [6.0]], [0.0] * 4)  # action 0: (1, 2), action 1: (3, 6)
    # Per quantile: means over actions (2, 4); action 0: (10 - 1, 20 - 2), action 1: (10 + 1, 20 + 2)
    torch.testing.assert_close(head(torch.tensor([[1.0]])), torch.tensor([[[9.0, 18.0], [11.0, 22.0]]]))


@pytest.mark.parametrize("hidden", [0, 8])
@pytest.mark.parametrize("dueling", [False, True])
def test_a_sample_does_not_depend_on_its_neighbours(hidden: int, dueling: bool) -> None:
    x = torch.randn(6, 5)
    for head, shape in ((QHead(5, 3, hidden, dueling), (6, 3)), (QHead(5, 3, hidden, dueling, quantiles=4), (6, 3, 4))):
        out = head(x)
        assert out.shape == shape
        torch.testing.assert_close(out, torch.cat([head(row[None]) for row in x]))


@pytest.mark.parametrize("quantiles", [1, 4])
def test_mean_over_actions_is_the_value(quantiles: int) -> None:
    head = QHead(5, 3, 8, dueling=True, quantiles=quantiles)
    x = torch.randn(6, 5)
    value, _ = head.streams(x)
    torch.testing.assert_close(head(x).mean(dim=1), value)
    assert (value.std(dim=0) > 0).all()  # so the mean was not taken over the batch


def test_one_quantile_is_a_q_head() -> None:
    q, quantile = QHead(5, 3, 8, True), QHead(5, 3, 8, True, quantiles=1)
    quantile.load_state_dict(q.state_dict())
    x = torch.randn(6, 5)
    torch.testing.assert_close(quantile(x).squeeze(2), q(x))


def test_advantage_gradient_of_the_taken_action() -> None:
    head = QHead(2, 4, 0, dueling=True)
    head(torch.ones(1, 2))[0, 1].backward()
    assert isinstance(head.streams.value, nn.Linear)
    # dQ_1/dA = 1{a=1} - 1/4 ; dQ_1/dV = 1
    torch.testing.assert_close(head.streams.advantage.bias.grad, torch.tensor([-0.25, 0.75, -0.25, -0.25]))
    torch.testing.assert_close(head.streams.value.bias.grad, torch.tensor([1.0]))


def test_plain_head_has_no_value_stream() -> None:
    # 5*8+8 + 8*3+3, and twice the first layer plus 8*1+1 with dueling
    assert sum(p.numel() for p in QHead(5, 3, 8, False).parameters()) == 75
    assert sum(p.numel() for p in QHead(5, 3, 8, True).parameters()) == 132


def test_fused_first_layer_starts_like_two_layers() -> None:
    torch.manual_seed(0)
    head = QHead(100, 2, 512, dueling=True)
    assert head.streams.hidden is not None
    first = head.streams.hidden[0]
    assert isinstance(first, nn.Linear)
    # torch's default: uniform within 1/sqrt(in_features), which does not know the number of outputs
    assert 0.099 < first.weight.abs().max().item() <= 0.1


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="got 5, 0, 1 and 8"):
        QHead(5, 0, 8, True)
    with pytest.raises(ConfigError, match="got 5, 2, 0 and 8"):
        QHead(5, 2, 8, True, quantiles=0)
    with pytest.raises(ConfigError, match="got 5, 2, 1 and -1"):
        QHead(5, 2, -1, True)


def test_few_rows_give_what_many_do() -> None:
    head = QHead(64, 3, 32, dueling=True)
    features = torch.randn(40, 64)
    with torch.no_grad():
        few = head(features)
    assert torch.allclose(few, head(features), atol=1e-6)
