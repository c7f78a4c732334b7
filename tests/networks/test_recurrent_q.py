"""Recurrent Q-networks: a sequence is what its steps are, one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.networks import RecurrentQ
from shoal.networks.recurrent_q import Cell


def small(cell: Cell = "lstm", **changes: object) -> RecurrentQ:
    torch.manual_seed(0)
    return RecurrentQ((3,), "float32", 4, hidden=(8,), cell=cell, cell_size=6, head_hidden=5, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("last_action", [True, False])
def test_a_sequence_is_its_steps(cell: Cell, last_action: bool) -> None:
    """Where an episode begins, the state is zero."""
    network = small(cell, last_action=last_action)
    size = 12 if cell == "lstm" else 6
    assert network.state_size == size
    obs, state, last = torch.randn(5, 2, 3), torch.randn(2, size), torch.randint(-1, 4, (5, 2))
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[3, 1] = True
    q, end = network.unroll(obs, state, first, last)
    assert q.shape == (5, 2, 4)
    for t in range(5):
        state = torch.where(first[t][:, None], torch.zeros(()), state)
        one, state = network.q_values(obs[t], state, last[t])
        torch.testing.assert_close(one, q[t])
    torch.testing.assert_close(state, end)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_new_cell_keeps_most_of_its_state(cell: Cell) -> None:
    """More than the half that it would keep without a bias."""
    network = small(cell)
    state = torch.zeros(1, network.state_size)
    held = slice(6, 12) if cell == "lstm" else slice(0, 6)
    ones = state.clone()
    ones[:, held] = 1.0
    args = (torch.zeros(1, 3), torch.tensor([-1]))
    (_, after), (_, without) = (network.q_values(args[0], one, args[1]) for one in (ones, state))
    assert ((after - without)[:, held] > 0.6).float().mean() > 0.8


def test_the_previous_action_counts_and_none_is_none() -> None:
    network = small()
    obs, state = torch.zeros(5, 3), torch.zeros(5, 12)
    q, _ = network.q_values(obs, state, torch.tensor([-1, 0, 1, 2, 3]))
    assert len({tuple(row) for row in q.tolist()}) == 5
    blind, _ = small(last_action=False).q_values(obs, state, torch.tensor([-1, 0, 1, 2, 3]))
    assert len({tuple(row) for row in blind.tolist()}) == 1


def test_images_and_normalised_vectors() -> None:
    images = RecurrentQ((4, 84, 84), "uint8", 3, image_hidden=16, cell_size=6, head_hidden=5)
    q, _ = images.q_values(torch.zeros(2, 4, 84, 84, dtype=torch.uint8), torch.zeros(2, 12), torch.zeros(2))
    assert q.shape == (2, 3) and images.norm is None
    assert any(isinstance(one, nn.Conv2d) for one in images.modules())
    vectors = small(normalize_observations=True)
    assert vectors.norm is not None
    vectors.norm.set(torch.full((3,), 5.0), torch.ones(3))
    plain = small()
    args = (torch.zeros(1, 12), torch.zeros(1))
    torch.testing.assert_close(
        vectors.q_values(torch.full((1, 3), 5.0), *args)[0], plain.q_values(torch.zeros(1, 3), *args)[0]
    )


@pytest.mark.parametrize("dueling", [True, False])
def test_values_stay_when_their_statistics_move(dueling: bool) -> None:
    network = small(normalize_values=True, dueling=dueling)
    assert network.value_norm is not None and small().value_scale == 1.0
    obs, state, last = torch.randn(2, 3), torch.zeros(2, 12), torch.zeros(2)
    for size in (1.0, 50.0, 300.0):
        network.value_norm.observe(size * torch.randn(4, 8) + size, torch.ones(4, 8))
        before = network.q_values(obs, state, last)[0]
        network.follow_returns()
        if size > 1.0:  # the first statistics change values
            torch.testing.assert_close(network.q_values(obs, state, last)[0], before, rtol=1e-4, atol=1e-4)
