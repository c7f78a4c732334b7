"""Actor-critic networks: shapes, an LSTM that forgets at episode starts, whole sequences as step by step."""

from __future__ import annotations

import pytest
import torch

from shoal.networks import ActorCritic, ResidualCNN


def test_shapes_of_every_kind() -> None:
    vector = ActorCritic((5,), "float32", 3)
    assert vector.unroll(torch.zeros(4, 2, 5)).params.shape == (4, 2, 3)
    image = ActorCritic((4, 84, 84), "uint8", 6, image_hidden=32)
    out = image.unroll(torch.zeros(2, 3, 4, 84, 84, dtype=torch.uint8))
    assert out.params.shape == (2, 3, 6) and out.value.shape == (2, 3)
    deep = ActorCritic((4, 84, 84), "uint8", 6, torso="deep", image_hidden=32)
    assert isinstance(deep.torso.convolutions, ResidualCNN)  # type: ignore[union-attr]
    assert deep.torso.convolutions.out_features == 32 * 11 * 11  # type: ignore[union-attr]
    small = ActorCritic((84, 84, 3), "uint8", 6, torso="small", image_hidden=16)
    assert small.torso.convolutions.out_features == 32 * 9 * 9  # type: ignore[union-attr]
    assert small.embed(torch.zeros(2, 84, 84, 3, dtype=torch.uint8)).shape == (2, 16)
    assert deep.embed(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 32)


def test_actions_start_equally_likely() -> None:
    params, _ = ActorCritic((5,), "float32", 3).unroll(torch.randn(1, 100, 5))
    assert params.softmax(-1).detach().sub(1 / 3).abs().max() < 0.02


def test_gaussian_deviations_do_not_depend_on_the_state() -> None:
    network = ActorCritic((5,), "float32", 4, gaussian=True, initial_log_std=-1.0)
    params, _ = network.unroll(torch.randn(3, 7, 5))
    assert params.shape == (3, 7, 4) and torch.equal(params[..., 2:], torch.full((3, 7, 2), -1.0))
    params.sum().backward()
    assert network.log_std is not None and network.log_std.grad is not None


def test_a_torso_of_its_own_keeps_the_value_apart() -> None:
    network = ActorCritic((5,), "float32", 3, share_torso=False)
    network.unroll(torch.randn(2, 3, 5)).value.sum().backward()
    assert all(parameter.grad is None for parameter in network.torso.parameters())


@pytest.mark.parametrize("reset_at", [None, 2])
def test_a_sequence_is_what_its_steps_are(reset_at: int | None) -> None:
    torch.manual_seed(1)
    network = ActorCritic((5,), "float32", 3, lstm=8)
    obs, first = torch.randn(4, 2, 5), torch.zeros(4, 2, dtype=torch.bool)
    if reset_at is not None:
        first[reset_at, 1] = True
    state = (torch.randn(2, 8), torch.randn(2, 8))
    whole = network.unroll(obs, torch.cat(state, dim=1), first)
    for t in range(4):
        alive = (~first[t]).float().unsqueeze(1)
        state = network.recur(network.embed(obs[t]), (state[0] * alive, state[1] * alive))
        assert torch.allclose(whole.params[t], network.policy(state[0]), atol=1e-6)
        assert torch.allclose(whole.value[t], network.value(obs[t], state[0]), atol=1e-6)
    if reset_at is not None:  # what came before a reset leaves no trace behind it
        other = network.unroll(torch.cat((torch.randn(2, 2, 5), obs[2:])), torch.cat(state, dim=1), first)
        assert torch.allclose(other.params[2:, 1], whole.params[2:, 1], atol=1e-6)
        assert not torch.allclose(other.params[2:, 0], whole.params[2:, 0], atol=1e-6)
