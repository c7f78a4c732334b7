"""What each algorithm's settings and rules change: one that is ignored would still learn, only worse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_continuous import CPU, NAMES, SMALL, learner_of, sample_of, spec_of

from shoal.algorithms import get_algorithm
from shoal.algorithms.interface import LearnerContext, PolicyContext
from shoal.ops import importance_weights
from shoal.replay import NStepView, step_schema

STILL = {"learning_rate": 1e-12, "policy_learning_rate": 1e-12}


def loss_of(name: str, seed: int = 0, **config: Any) -> float:
    """Of the first update, with noise of this seed."""
    learner = learner_of(name, **config)
    torch.manual_seed(seed)
    loss: float = learner.step(sample_of()).metrics["loss"].item()
    return loss


def changed(learner: Any, seed: int) -> set[str]:
    """Which networks an update changes."""
    names = ("policy", "critic", "target_policy", "target_critic")
    networks = {name: getattr(network, name, network) for name, network in learner._networks.items() if name in names}
    before = {name: network.body.weights[0].detach().clone() for name, network in networks.items()}
    learner.step(sample_of(seed=seed))
    return {name for name in networks if not torch.equal(before[name], networks[name].body.weights[0])}


# Actors.


@pytest.mark.parametrize("name", ["td3", "d4pg"])
def test_actors_explore_with_the_noise_that_is_set(name: str) -> None:
    algorithm, lanes = get_algorithm(name), 3000
    policy: Any = algorithm.make_policy(algorithm.config(**SMALL, noise=0.25), spec_of(), PolicyContext(lanes=lanes))
    with torch.no_grad():
        policy.module.body.weights[-1].zero_()  # the greedy action is the middle
        policy.module.learned.fill_(1.0)
    acted = policy.act(np.zeros((lanes, 3), np.float32), (), np.ones(lanes, np.bool_), explore=True).action
    assert acted.std(axis=0) == pytest.approx([0.5, 0.5], rel=0.05)  # half the range is 2


@pytest.mark.parametrize("name", NAMES)
def test_transitions_are_of_n_steps_and_discounted(name: str) -> None:
    algorithm = get_algorithm(name)
    config = algorithm.config(**SMALL, n_step=3, gamma=0.8)
    view = algorithm.make_view(config, step_schema(spec_of(), algorithm.columns(config, spec_of())))
    assert isinstance(view, NStepView) and (view.n, view.gamma) == (3, 0.8)


# Which networks learn when.


def test_td3_learns_the_policy_late_and_moves_targets_with_it() -> None:
    learner = learner_of("td3", policy_delay=3, target_period=2)
    found = [changed(learner, seed) for seed in range(6)]
    both = {"target_policy", "target_critic"}
    # The target policy has nothing to follow before the policy has moved.
    assert found[0] == {"critic"} and found[1] == {"critic", "target_critic"} and found[2] == {"critic", "policy"}
    assert found[3] == {"critic"} | both and found[4] == {"critic"} and found[5] == {"critic", "policy"} | both


@pytest.mark.parametrize("name", ["apex-dpg", "d4pg"])
def test_targets_are_copied_after_their_period(name: str) -> None:
    learner = learner_of(name, target_period=3, tau=1.0)
    targets = [changed(learner, seed) & {"target_policy", "target_critic"} for seed in range(3)]
    assert targets == [set(), set(), {"target_policy", "target_critic"}]
    critic, target = learner._networks["critic"], learner._networks["target_critic"]
    assert all(torch.equal(a, b) for a, b in zip(critic.parameters(), target.parameters(), strict=True))


# Gradients.


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_clipped_to_the_norm_that_is_set(name: str) -> None:
    learner, free = learner_of(name, gradient_clip=1e-3), learner_of(name, gradient_clip=None)
    for one in (learner, free):
        for seed in range(2):  # TD3's policy learns at the second
            norm = one.step(sample_of(seed=seed)).metrics["gradient_norm"].item()
        assert norm > 2e-3, "what is reported is the norm before"
    for part in learner._parts:
        assert part.flat.grad.norm().item() <= 1e-3 * 1.001
    assert free._parts[0].flat.grad.norm().item() > 2e-3


def test_apex_dpg_bounds_every_element_of_the_policys_gradient() -> None:
    learner = learner_of("apex-dpg", gradient_clip=None, target_period=100)
    with torch.no_grad():
        learner._networks["critic"].body.weights[-1].mul_(1e5)  # steep
    learner.step(sample_of())
    assert learner._parts[1].flat.grad.abs().max().item() == 1.0
    assert learner._parts[0].flat.grad.abs().max().item() > 10.0


def test_importance_weights_grow_to_their_full_exponent() -> None:
    """From none to all within one update; the networks stand still."""
    learner, sample = learner_of("apex-dpg", beta_start=0.0, beta_updates=1, **STILL), sample_of()
    first, second = (learner.step(sample) for _ in range(2))
    squared = torch.from_numpy(first.priorities).square() / 2  # type: ignore[arg-type]
    weights = importance_weights(torch.from_numpy(sample.probabilities), sample.size, 1.0)
    assert first.metrics["loss"].item() == pytest.approx(squared.mean().item(), rel=1e-4)
    assert second.metrics["loss"].item() == pytest.approx((weights * squared).mean().item(), rel=1e-4)
    assert first.metrics["loss"].item() != pytest.approx(second.metrics["loss"].item(), rel=1e-3)


# Noise in targets, and the losses' own settings.


def test_sac_draws_the_targets_action() -> None:
    assert loss_of("sac", 1) == loss_of("sac", 1) != loss_of("sac", 2)


def test_td3_smooths_the_targets_action() -> None:
    assert loss_of("td3", 1) == loss_of("td3", 1) != loss_of("td3", 2)
    assert loss_of("td3", 1, smoothing_noise=0.0) == loss_of("td3", 2, smoothing_noise=0.0)
    wide, narrow = (loss_of("td3", 1, smoothing_noise=5.0, smoothing_clip=clip) for clip in (0.5, 0.01))
    assert wide != narrow


def test_d4pgs_loss_turns_linear_at_kappa() -> None:
    assert loss_of("d4pg", kappa=0.01) != pytest.approx(loss_of("d4pg", kappa=1.0), rel=1e-2)


def test_sacs_temperature_aims_at_minus_the_number_of_action_values() -> None:
    """Its gradient is the entropy less the target; its parameter is the last one of the policy's vector."""
    for target, config in ((-2.0, {}), (0.5, {"target_entropy": 0.5})):
        learner = learner_of("sac", **config)
        entropy = learner.step(sample_of()).metrics["entropy"].item()
        assert learner._parts[1].flat.grad[-1].item() == pytest.approx(entropy - target, abs=1e-5)


def test_sacs_temperature_is_learned_unless_it_is_fixed() -> None:
    for learned in (True, False):
        learner = learner_of("sac", learn_temperature=learned, initial_temperature=0.5)
        for seed in range(2):
            found = learner.step(sample_of(seed=seed)).metrics["temperature"].item()
        assert (found != pytest.approx(0.5, abs=1e-6)) == learned


# Normalisation.


@pytest.mark.parametrize("name", NAMES)
def test_normalised_networks_do_not_notice_where_observations_begin(name: str) -> None:
    """Observations, and those of the next step, moved by the same: the same errors."""
    found = []
    for offset in (0.0, 50.0):
        learner = learner_of(name, normalize_observations=True)
        for seed in range(3):
            sample = sample_of(seed=seed)
            sample.data.obs[...] += offset  # type: ignore[union-attr]
            sample.data.next_obs[...] += offset  # type: ignore[union-attr]
            torch.manual_seed(seed)
            found.append(learner.step(sample).priorities)
    for plain, moved in zip(found[:3], found[3:], strict=True):
        np.testing.assert_allclose(plain, moved, rtol=1e-2, atol=1e-3)


def test_statistics_that_come_with_weights_outweigh_the_next_batch() -> None:
    """A learner that died before its first checkpoint goes on with what was published."""
    learner, heir = (learner_of("sac", normalize_observations=True) for _ in range(2))
    for seed in range(30):
        learner.step(sample_of(seed=seed))
    heir.module.load_state_dict(learner.module.state_dict())
    heir.weights_replaced()
    heir.step(sample_of(size=8, seed=99))
    torch.testing.assert_close(heir.module.norm.mean, learner.module.norm.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(heir.module.norm.scale, learner.module.norm.scale, rtol=5e-3, atol=0)


def test_smaller_batches_are_learned_from_too() -> None:
    """`learner.batch.min`: what is ready."""
    algorithm = get_algorithm("sac")
    learner = algorithm.make_learner(algorithm.config(**SMALL), spec_of(), LearnerContext(CPU))
    for size in (32, 8, 32, 5):
        priorities = learner.step(sample_of(size=size)).priorities
        assert priorities is not None and len(priorities) == size
