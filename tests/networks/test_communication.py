"""Agents that talk: attention by hand, against a loop, and whom it may not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from shoal.networks.communication import Communication, CommunicationNetwork, FieldOfView
from shoal.types import ObsPart

ACTIONS = 5


def parts_of(agents: int, shape: tuple[int, ...] = (6, 9, 9), position: bool = False) -> tuple[ObsPart, ...]:
    """A row of bytes: what agents see, the mask, rewards (and positions) as four bytes each."""
    made, at = [], 0
    sizes = {"agents": (agents, *shape), "mask": (agents, agents), "reward": (agents,)}
    for name, size in (sizes | ({"position": (agents, 2)} if position else {})).items():
        width = 4 if name in ("reward", "position") else 1
        axes = "SCHW" if name == "agents" and len(shape) == 3 else ""
        made.append(ObsPart(name, size, at, axes, 1.0, width))
        at += made[-1].stored
    return tuple(made)


def rows_of(agents: Tensor, mask: Tensor, reward: Tensor | None = None, position: Tensor | None = None) -> Tensor:
    """[M, A, *shape] and [M, A, A] -> [M, F] bytes."""
    number, count = mask.shape[:2]
    floats = [torch.zeros(number, count) if reward is None else reward]
    floats += [] if position is None else [position.float().reshape(number, -1)]
    return torch.cat(
        (agents.flatten(1).byte(), mask.flatten(1).byte(), *(one.contiguous().view(torch.uint8) for one in floats)), 1
    )


def small(parts: tuple[ObsPart, ...], **settings: object) -> CommunicationNetwork:
    torch.manual_seed(0)
    sizes = {"width": 16, "channels": 8, "blocks": 1, "head_size": 4, "hidden": (12,)}
    network = CommunicationNetwork(parts, ACTIONS, **(sizes | settings))  # type: ignore[arg-type]
    if network.communication is not None:  # as after some learning: new agents say nothing
        nn.init.normal_(network.communication.added.weight, std=0.3)
    return network


def unroll(
    network: CommunicationNetwork, obs: Tensor, state: Tensor, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """With states as [B, A, H]; actions before are not looked at."""
    first = torch.zeros(obs.shape[:2], dtype=torch.bool) if first is None else first
    values, after = network.unroll(obs, state.flatten(1), first, torch.zeros(0))
    return values, after.view_as(state)


def full_mask(rows: int, agents: int) -> Tensor:
    return torch.ones(rows, agents, agents, dtype=torch.bool)


def random_views(rows: int, agents: int) -> Tensor:
    return (torch.rand(rows, agents, 6, 9, 9) < 0.3).byte()


def test_attention_by_hand() -> None:
    block = Communication(width=1, rounds=1, heads=1, head_size=1)
    with torch.no_grad():
        block.asks.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))  # query h, key 2h, value 3h
        block.asks.bias.zero_()
    state = torch.tensor([[[1.0], [0.5], [-1.0]]])
    mask = torch.tensor([[[1, 1, 0], [0, 1, 0], [1, 1, 1]]], dtype=torch.bool)
    found = block._attention(state, mask)[0, :, 0]
    # Agent 0 asks 1: scores 2 and 1 of the keys 2 and 1; values 3 and 1.5.
    assert found[0].item() == pytest.approx((math.exp(2) * 3 + math.exp(1) * 1.5) / (math.exp(2) + math.exp(1)))
    assert found[1].item() == pytest.approx(1.5)  # hears itself alone
    scores = [math.exp(-1 * key) for key in (2, 1, -2)]
    values = sum(score * value for score, value in zip(scores, (3, 1.5, -3), strict=True))
    assert found[2].item() == pytest.approx(values / sum(scores))


def test_communication_equals_a_loop() -> None:
    torch.manual_seed(1)
    block = Communication(width=6, rounds=2, heads=2, head_size=3)
    nn.init.normal_(block.added.weight, std=0.3)
    state, mask = torch.rand(4, 5, 6) * 2 - 1, torch.rand(4, 5, 5) < 0.4
    mask |= torch.eye(5, dtype=torch.bool)
    mask[0, 3, :], mask[0, :, 3] = False, False  # one is not there
    expected = state.clone()
    weight, bias = block.asks.weight.view(3, 2, 3, 6), block.asks.bias.view(3, 2, 3)
    for world in range(4):
        for _ in range(2):
            before = expected[world].clone()
            for i in range(5):
                heard = [j for j in range(5) if mask[world, i, j]]
                if len(heard) < 2 or i not in heard:
                    continue
                told = []
                for head in range(2):
                    ask = [weight[part, head] @ before.T + bias[part, head][:, None] for part in range(3)]  # [3, A]
                    scores = torch.stack([ask[0][:, i] @ ask[1][:, j] / math.sqrt(3) for j in heard])
                    shares = scores.exp() / scores.exp().sum()
                    told.append(sum(share * ask[2][:, j] for share, j in zip(shares, heard, strict=True)))
                heard_and_known = torch.cat((before[i], block.message(torch.cat(told))))
                expected[world, i] = before[i] + block.added(block.hidden(heard_and_known).relu())
                expected[world, i].clamp_(-1.0, 1.0)
    torch.testing.assert_close(block(state, mask), expected, atol=1e-5, rtol=1e-5)


def test_those_who_hear_nobody_keep_their_state() -> None:
    block = Communication(width=6)
    state = torch.randn(2, 3, 6)
    assert torch.equal(block(state, torch.eye(3, dtype=torch.bool).expand(2, 3, 3)), state)
    assert torch.equal(block(state, torch.zeros(2, 3, 3, dtype=torch.bool)), state)


def test_at_first_messages_change_nothing_and_later_they_keep_states_bounded() -> None:
    network = CommunicationNetwork(parts_of(3), ACTIONS, width=16, channels=8, blocks=1)
    block, state = network.communication, torch.rand(64, 3, 16) * 2 - 1
    assert block is not None and torch.equal(block(state, full_mask(64, 3)), state)
    block(state, full_mask(64, 3)).sum().backward()
    assert block.added.weight.grad is not None and block.added.weight.grad.abs().sum() > 0  # but they are learned
    nn.init.normal_(block.added.weight, std=100.0)
    assert block(state, full_mask(64, 3)).abs().max() == 1.0


def test_shapes_and_any_batch() -> None:
    network = small(parts_of(3))
    for rows, steps in ((1, 1), (5, 4)):
        obs = rows_of(random_views(rows * steps, 3), full_mask(rows * steps, 3)).unflatten(0, (steps, rows))
        values, state = unroll(network, obs, torch.zeros(rows, 3, 16))
        assert values.shape == (steps, rows, 3, ACTIONS) and state.shape == (rows, 3, 16)


def test_the_encoder_s_size() -> None:
    encoder = FieldOfView(ObsPart("", (6, 9, 9), axes="CHW"), 128, 3)
    seen = torch.zeros(2, 6, 9, 9, dtype=torch.uint8)
    assert encoder.out_features == 784 + 6 and encoder(seen).shape == (2, 784 + 6)


@pytest.mark.parametrize(("shape", "axes"), [((3, 5, 9), "CHW"), ((5, 9, 3), "HWC"), ((5, 9), "HW")])
def test_the_agent_s_own_cell_comes_behind_the_convolutions(shape: tuple[int, ...], axes: str) -> None:
    encoder = FieldOfView(ObsPart("", shape, axes=axes, scale=0.5), 4, 1)
    seen = torch.randint(0, 3, (2, *shape), dtype=torch.uint8)
    cells = {"CHW": seen.movedim(1, -1), "HWC": seen, "HW": seen.unsqueeze(-1)}[axes]
    own = cells[:, 2, 4]
    assert torch.equal(encoder(seen)[:, -own.shape[1] :], own * 0.5)


@pytest.mark.parametrize("shape", [(7,), (8, 9), (9, 9, 3), (40, 40, 3)])
def test_other_observations(shape: tuple[int, ...]) -> None:
    network = small(parts_of(2, shape))
    obs = rows_of(torch.ones(4, 2, *shape), full_mask(4, 2))
    values, _ = unroll(network, obs[None], torch.zeros(4, 2, 16))
    assert values.shape == (1, 4, 2, ACTIONS)


def test_an_order_of_agents_means_nothing() -> None:
    network, order = small(parts_of(4)), torch.tensor([2, 0, 3, 1])
    views, mask, state = random_views(3, 4), torch.rand(3, 4, 4) < 0.5, torch.randn(3, 4, 16)
    mask |= torch.eye(4, dtype=torch.bool)
    values, after = unroll(network, rows_of(views, mask)[None], state)
    changed = rows_of(views[:, order], mask[:, order][:, :, order])
    other, other_after = unroll(network, changed[None], state[:, order])
    torch.testing.assert_close(other, values[:, :, order])
    torch.testing.assert_close(other_after, after[:, order])


@pytest.mark.parametrize("compact", [True, False])
def test_who_is_absent_or_unheard_changes_nothing(compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: not compact)  # as on a GPU: all agents are encoded
    network = small(parts_of(4))
    views, mask = random_views(2, 4), full_mask(2, 4)
    mask[:, 3, :], mask[:, :, 3] = False, False  # agent 3 is not there
    mask[:, 0, 2] = False  # 0 does not hear 2, but 1 does
    mask[:, 1, 2] = False
    state = torch.randn(2, 4, 16)
    values, after = unroll(network, rows_of(views, mask)[None], state)
    assert not values[:, :, 3].any() and not after[:, 3].any()
    absent, unheard = views.clone(), views.clone()
    absent[:, 3], unheard[:, 2] = 1, 1 - views[:, 2]
    assert torch.equal(unroll(network, rows_of(absent, mask)[None], state)[0], values)
    unheard_values = unroll(network, rows_of(unheard, mask)[None], state)[0]
    assert torch.equal(unheard_values[:, :, :2], values[:, :, :2])
    assert not torch.equal(unheard_values[:, :, 2], values[:, :, 2])


def test_a_new_episode_forgets() -> None:
    network = small(parts_of(2))
    obs = rows_of(random_views(6, 2), full_mask(6, 2)).unflatten(0, (3, 2))
    first = torch.zeros(3, 2, dtype=torch.bool)
    first[1, 0] = True
    values, _ = unroll(network, obs, torch.randn(2, 2, 16), first)
    fresh, _ = unroll(network, obs[1:], torch.zeros(2, 2, 16))
    torch.testing.assert_close(values[1:, 0], fresh[:, 0])
    assert not torch.allclose(values[1:, 1], fresh[:, 1])


def test_weights_do_not_depend_on_the_number_of_agents() -> None:
    few, many = small(parts_of(2)), small(parts_of(7))
    many.load_state_dict(few.state_dict())
    views = random_views(1, 2)
    obs = rows_of(views, full_mask(1, 2))[None]
    padded = torch.zeros(1, 7, 6, 9, 9), torch.zeros(1, 7, 7, dtype=torch.bool)
    padded[0][:, :2], padded[1][:, :2, :2] = views, True
    values = unroll(few, obs, torch.zeros(1, 2, 16))[0]
    torch.testing.assert_close(unroll(many, rows_of(*padded)[None], torch.zeros(1, 7, 16))[0][:, :, :2], values)


def test_gradients_reach_everything_and_are_finite() -> None:
    network = small(parts_of(3))
    mask = full_mask(4, 3)
    mask[:, 2, :], mask[:, :, 2] = False, False
    obs = rows_of(random_views(4, 3), mask).unflatten(0, (2, 2))
    values, _ = unroll(network, obs, torch.zeros(2, 3, 16))
    values.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def test_causal_mask_against_a_loop() -> None:
    worlds, agents, network = 32, 4, small(parts_of(4, position=True))
    torch.manual_seed(3)
    position = torch.randint(0, 7, (worlds, agents, 2))
    views, mask, state = random_views(worlds, agents), full_mask(worlds, agents), torch.randn(worlds, agents, 16) * 0.3
    mask[:, 3, :], mask[:, :, 3], mask[0, 0, 1] = False, False, False
    for world in range(worlds):
        for i in range(agents):
            for j in range(agents):
                down, right = (position[world, j] - position[world, i]).tolist()
                if i != j and max(abs(down), abs(right)) <= 4:
                    views[world, i, 0, 4 + down, 4 + right] = 1
    rows = rows_of(views, mask, position=position)
    embedded = network.embed(views, mask.diagonal(dim1=1, dim2=2))
    found = network.causal_mask(rows, embedded, state)
    asked = 0
    for world in range(worlds):
        for i in range(agents):
            for j in range(agents):
                expected = bool(mask[world, i, j])
                if i != j and expected:
                    down, right = (position[world, j] - position[world, i]).tolist()
                    expected = max(abs(down), abs(right)) <= 4
                    if expected:
                        without = views[world, i].clone()
                        without[0, 4 + down, 4 + right] = 0
                        best = [
                            network.values(network.think(network.encoder(view[None]), state[world, i][None])).argmax()
                            for view in (views[world, i], without)
                        ]
                        expected = bool(best[0] != best[1])
                        asked += expected
                assert bool(found[world, i, j]) == expected
    assert asked
    network._causal = True
    causal, _ = unroll(network, rows[None], state)
    network._causal = False
    told = rows_of(views, found, position=position)
    assert torch.equal(causal, unroll(network, told[None], state)[0])


def test_one_step_is_a_sequence_of_one() -> None:
    network = small(parts_of(3), normalize_values=True)
    obs, state = rows_of(random_views(4, 3), full_mask(4, 3)), torch.randn(4, 48)
    values, after = network.q_values(obs, state, torch.full((4, 3), -1))
    expected, expected_after = unroll(network, obs[None], state.view(4, 3, 16))
    assert torch.equal(values, expected[0]) and torch.equal(after, expected_after.flatten(1))
    assert network.state_size == 48
