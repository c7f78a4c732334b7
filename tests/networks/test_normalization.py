"""Normalised observations and values: by hand, and against what they must not change."""

from __future__ import annotations

import pytest
import torch

from shoal.networks import ActorCritic, QNetwork
from shoal.networks.normalization import SMALLEST_SCALE, VALUE_RATE, ValueNorm


def test_returns_by_hand() -> None:
    norm, head = ValueNorm(), torch.nn.Linear(1, 1)
    returns, mask = torch.tensor([[1.0, 5.0], [9.0, 100.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    norm.observe(returns, mask)
    norm.follow(head)
    assert norm.mean.item() == pytest.approx(5.0)
    assert norm.scale.item() == pytest.approx((32 / 3) ** 0.5)  # the deviation of 1, 5 and 9


def test_later_batches_replace_a_part_of_the_statistics() -> None:
    norm = ValueNorm()
    for _ in range(200):
        norm.observe(torch.full((4, 2), 3.0), torch.ones(4, 2))
    norm.observe(torch.full((4, 2), 13.0), torch.ones(4, 2))
    assert norm.first.item() == pytest.approx(3.0 + 10.0 * VALUE_RATE)


def test_a_batch_without_rows_changes_nothing() -> None:
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    before = head.weight.clone()
    norm.observe(torch.full((4, 2), 7.0), torch.zeros(4, 2))
    norm.follow(head)
    assert norm.seen.item() == 0 and norm.scale.item() == 1 and torch.equal(head.weight, before)


def test_the_first_update_only_observes() -> None:
    """Without a scale, large errors would fill the optimiser's memory."""
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    assert (torch.tensor([1e9]) / norm.error_scale).item() == 0
    norm.observe(1000.0 * torch.randn(8, 4), torch.ones(8, 4))
    assert norm.error_scale.isinf().all()  # the same in the whole update
    norm.follow(head)
    assert norm.error_scale.item() == pytest.approx(norm.scale.item()) and norm.scale.item() > 100


def test_equal_returns_do_not_make_noise_large() -> None:
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    norm.observe(torch.zeros(4, 2), torch.ones(4, 2))
    norm.follow(head)
    assert norm.scale.item() == pytest.approx(SMALLEST_SCALE)


def test_values_stay_when_the_statistics_move() -> None:
    torch.manual_seed(1)
    network = ActorCritic((4,), "float32", 2, share_torso=False, normalize_values=True).double()
    obs = torch.randn(32, 4, dtype=torch.float64)
    assert network.value_norm is not None
    network.value_norm.observe(torch.randn(8, 4).double(), torch.ones(8, 4).double())
    network.value_norm.follow(network.value_head)
    before = network.value(obs, network.embed(obs))
    for size in (1e-3, 1.0, 1e4):
        network.value_norm.observe(torch.randn(8, 4).double() * size + 3 * size, torch.ones(8, 4).double())
        network.value_norm.follow(network.value_head)
    torch.testing.assert_close(network.value(obs, network.embed(obs)), before, rtol=1e-6, atol=1e-6)


def test_the_first_returns_are_predicted_at_once() -> None:
    """Before them no value is worth keeping: a reward of 10,000 in every step is not learned bit by bit."""
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    norm.observe(10_000.0 + torch.randn(8, 4), torch.ones(8, 4))
    norm.follow(head)
    assert norm(head(torch.randn(32, 3))).mean().item() == pytest.approx(10_000.0, abs=10.0)


@pytest.mark.parametrize(("mean", "deviation"), [(100.0, 0.1), (500.0, 0.2), (1e4, 3.0), (1e5, 10.0)])
def test_a_small_deviation_around_a_large_mean_is_found(mean: float, deviation: float) -> None:
    torch.manual_seed(1)
    norm, head = ValueNorm(), torch.nn.Linear(3, 1)
    for _ in range(500):
        norm.observe(mean + deviation * torch.randn(32, 8), torch.ones(32, 8))
        norm.follow(head)
    assert norm.scale.item() == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("quantiles", [None, 5])
def test_action_values_stay_when_the_statistics_move(dueling: bool, quantiles: int | None) -> None:
    torch.manual_seed(1)
    network = QNetwork((4,), "float32", 3, (16, 16), dueling, quantiles=quantiles, normalize_values=True)
    obs = torch.randn(16, 4)
    assert network.value_norm is not None
    network.value_norm.observe(torch.randn(64), torch.ones(64))
    network.follow_returns()
    before = network(obs)
    network.value_norm.observe(torch.randn(64) * 50 + 20, torch.ones(64))
    network.follow_returns()
    torch.testing.assert_close(network(obs), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["actor-critic", "q"])
def test_networks_see_normalised_vectors(kind: str) -> None:
    torch.manual_seed(1)
    network: ActorCritic | QNetwork
    if kind == "q":
        network = QNetwork((3,), "float32", 2, normalize_observations=True)
    else:
        network = ActorCritic((3,), "float32", 2, normalize_observations=True)
    obs = torch.randn(16, 3) * torch.tensor([1e-3, 1.0, 1e3]) + 5.0

    def out() -> torch.Tensor:
        return network(obs) if isinstance(network, QNetwork) else network.policy(network.embed(obs))

    assert network.norm is not None
    raw = out()
    network.norm.set(obs.mean(0), obs.var(0, correction=0))
    network.norm.requires_grad_(False)
    seen = network.norm(obs)
    assert not torch.allclose(out(), raw)
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(3), rtol=1e-2, atol=1e-2)


def test_images_are_not_normalised() -> None:
    assert QNetwork((4, 84, 84), "uint8", 2, normalize_observations=True).norm is None
    assert ActorCritic((4, 84, 84), "uint8", 2, normalize_observations=True).norm is None
