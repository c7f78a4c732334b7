"""What the algorithms for continuous actions share: bounds, exploration, refusals, the learner's bookkeeping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms import ALGORITHMS, get_algorithm
from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.exploring_policy import ExploringPolicy, GaussianNoise, as_it_is
from shoal.algorithms.interface import LearnerContext, Outcome, PolicyContext
from shoal.algorithms.kinds import fitting
from shoal.algorithms.state import module_tensors
from shoal.envs.spaces import ActionMap
from shoal.errors import ConfigError
from shoal.networks import PolicyNetwork
from shoal.types import EnvSpec, Keys, Sample, Transition

NAMES = [name for name, algorithm in ALGORITHMS.items() if algorithm.actions == "continuous"]
CPU = torch.device("cpu")
SMALL = {"policy_hidden": (16,), "critic_hidden": (16,)}


def spec_of(low: Any = (-1.0, 0.0), high: Any = (3.0, 4.0), **changes: Any) -> EnvSpec:
    low, high = np.asarray(low), np.asarray(high)
    facts: dict[str, Any] = {"env_id": "Fake-v0", "obs_shape": (3,), "obs_dtype": "float32", "frame_stack": 1}
    facts |= {"num_actions": 0, "action_shape": low.shape}
    facts |= {"action_low": tuple(low.ravel().tolist()), "action_high": tuple(high.ravel().tolist())}
    return EnvSpec(**facts | changes)


def sample_of(size: int = 32, seed: int = 0, spec: EnvSpec | None = None) -> Sample:
    spec, rng = spec or spec_of(), np.random.default_rng(seed)
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    data = Transition(
        obs=5.0 + 2.0 * rng.standard_normal((size, *spec.obs_shape)).astype(np.float32),
        action=rng.uniform(low, high, (size, len(low))).astype(np.float32).reshape(size, *spec.action_shape),
        reward=rng.standard_normal(size).astype(np.float32),
        discount=np.where(rng.random(size) < 0.2, 0.0, 0.9).astype(np.float32),
        next_obs=5.0 + 2.0 * rng.standard_normal((size, *spec.obs_shape)).astype(np.float32),
    )
    probabilities = rng.uniform(0.5, 1.5, size) / 1000
    return Sample(data, Keys.empty(size), probabilities, 1000, 0.0)


# Bounds.


def test_bounds_by_hand() -> None:
    """Lopsided, another pair per dimension: -1 is low, 0 the middle, 1 is high."""
    bounds = ActionBounds(spec_of())
    assert bounds.to_env(np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])).tolist() == [[-1, 0], [1, 3], [3, 4]]
    torch.testing.assert_close(bounds.from_env(CPU)(torch.tensor([[3.0, 3.0]])), torch.tensor([[1.0, 0.5]]))


def test_networks_are_not_told_of_a_dimension_of_one_value() -> None:
    """The replay cannot teach a critic its slope there, and a policy would climb it: values grew without end."""
    spec = spec_of([[2.0, -1.0], [3.0, 0.0]], [[2.0, 1.0], [3.0, 4.0]])
    bounds = ActionBounds(spec)
    assert bounds.size == 2
    assert bounds.to_env(np.array([[0.5, -1.0]])).tolist() == [[[2.0, 0.5], [3.0, 0.0]]]
    assert bounds.from_env(CPU)(torch.tensor([[[2.0, 0.5], [3.0, 2.0]]])).tolist() == [[0.5, 0.0]]
    for name in NAMES:
        algorithm = get_algorithm(name)
        config, sample = algorithm.config(**SMALL), sample_of(spec=spec)
        learner = algorithm.make_learner(config, spec, LearnerContext(CPU))
        assert np.isfinite(learner.step(sample).priorities).all()  # type: ignore[arg-type]
        acted = algorithm.make_policy(config, spec, PolicyContext(lanes=4)).act(
            sample.data.obs[:4], (), np.ones(4, bool), True
        )  # type: ignore[union-attr]
        assert acted.action.shape == (4, 2, 2) and (acted.action[:, :, 0] == [2.0, 3.0]).all()


def test_actions_without_a_choice_are_refused() -> None:
    for low, high in ((2.0, 2.0), (1e9, 1e9 + 10)):  # the second are the same as float32, which actions are
        with pytest.raises(ConfigError, match="fixed"):
            get_algorithm("td3").check(spec_of((low,), (high,)))


@settings(deadline=None, max_examples=60)
@given(
    low=st.floats(-1e3, 1e3, width=32),
    width=st.floats(2**-10, 1e3, width=32),
    squashed=st.floats(-1, 1, width=32),
    shape=st.sampled_from([(1,), (2, 3), (1, 1, 2)]),
)
def test_what_is_handed_out_is_what_the_environment_takes(
    low: float, width: float, squashed: float, shape: tuple[int, ...]
) -> None:
    """The environment's own clipping finds nothing to clip, whatever the rounding; and the way back is the inverse."""
    space = spaces.Box(np.full(shape, low, np.float32), np.full(shape, low, np.float32) + np.float32(width))
    bounds = ActionBounds(spec_of(space.low, space.high))
    action = bounds.to_env(np.full((4, bounds.size), squashed))
    assert action.shape == (4, *shape) and action.dtype == np.float32
    np.testing.assert_array_equal(ActionMap(space)(action), action)
    back = bounds.from_env(CPU)(torch.from_numpy(action))
    tolerance = 1e-5 + 4e-7 * (abs(low) + width) / width  # float32 of a large number with a narrow range
    assert back.sub(squashed).abs().max().item() <= tolerance


# Exploration.


def policy_of(sigma: float, lanes: int = 2000) -> ExploringPolicy:
    network = PolicyNetwork((3,), 2, (8,), "relu", normalize=False, tanh=True)
    with torch.no_grad():
        network.body.weights[-1].zero_()  # the greedy action is the middle
    return ExploringPolicy(
        network, GaussianNoise(np.full(lanes, sigma)), as_it_is, spec_of(), PolicyContext(lanes=lanes)
    )


def test_actions_are_random_until_something_was_learned() -> None:
    policy, obs, first = policy_of(0.1), np.zeros((2000, 3), np.float32), np.ones(2000, np.bool_)
    wild = policy.act(obs, (), first, explore=True).action
    assert wild[:, 0].std() == pytest.approx(4 / np.sqrt(12), rel=0.05)  # uniform over 4
    policy.module.learned.fill_(1.0)  # type: ignore[operator, union-attr]
    noisy = policy.act(obs, (), first, explore=True).action
    assert noisy[:, 0].std() == pytest.approx(0.2, rel=0.05)  # 0.1 of half the range
    assert policy.act(obs, (), first, explore=False).action.tolist() == [[1.0, 2.0]] * 2000


def test_each_lane_has_a_noise_of_its_own_and_bounds_hold() -> None:
    act = GaussianNoise(np.array([0.0, 0.01, 5.0]))
    noisy = np.stack([act(np.full((3, 1), 0.5, np.float32), np.random.default_rng(seed)) for seed in range(300)])
    assert noisy[:, 0].std() == 0.0
    assert noisy[:, 1].std() == pytest.approx(0.01, rel=0.1)
    assert noisy.min() == -1.0 and noisy.max() == 1.0


def test_correlated_noise_keeps_its_deviation_and_its_direction() -> None:
    act, rng = GaussianNoise(np.full(4000, 0.2), correlation=0.9), np.random.default_rng(1)
    noise = np.stack([act(np.zeros((4000, 1), np.float32), rng)[:, 0] for _ in range(20)])
    assert noise.std(axis=1) == pytest.approx([0.2] * 20, rel=0.06)
    assert np.corrcoef(noise[-1], noise[-2])[0, 1] == pytest.approx(0.9, abs=0.02)
    assert np.corrcoef(noise[-1], noise[-6])[0, 1] == pytest.approx(0.9**5, abs=0.04)


# Refusals.


@pytest.mark.parametrize("name", NAMES)
def test_discrete_actions_are_refused_with_what_fits(name: str) -> None:
    spec = spec_of(num_actions=3, action_shape=(), action_low=(), action_high=())
    with pytest.raises(ConfigError, match=rf"{name} needs continuous actions; Fake-v0 has 3 discrete .*apex-dqn"):
        get_algorithm(name).check(spec)


def test_continuous_actions_are_refused_with_what_fits() -> None:
    with pytest.raises(ConfigError, match=r"apex-dqn needs discrete actions.*apex-dpg, d4pg.*sac, td3"):
        get_algorithm("apex-dqn").check(spec_of())
    assert "sac" in fitting("continuous") and "sac" not in fitting("discrete")


@pytest.mark.parametrize("name", ["apex-dqn", "apex-qr-dqn", *NAMES])
def test_several_choices_are_refused_with_what_fits(name: str) -> None:
    spec = spec_of(action_nvec=(3, 2), action_shape=(2,), action_low=(), action_high=())
    with pytest.raises(ConfigError, match=r"Fake-v0 has 2 discrete choices in each\..* a3c, impact, impala, ppo\."):
        get_algorithm(name).check(spec)


def test_unbounded_actions_and_images_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bounded actions.*inf.*RescaleAction"):
        get_algorithm("sac").check(spec_of((-np.inf, -np.inf), (1.0, np.inf)))
    with pytest.raises(ConfigError, match=r"images.* env\.wrappers=\[FlattenObservation\]"):
        get_algorithm("sac").check(spec_of(obs_shape=(96, 96, 3), obs_dtype="uint8"))


# Learners.


def learner_of(name: str, **config: Any) -> Any:
    torch.manual_seed(3)
    algorithm = get_algorithm(name)
    return algorithm.make_learner(algorithm.config(**SMALL | config), spec_of(), LearnerContext(CPU))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("normalize", [False, True])
def test_policy_and_learner_have_the_same_module(name: str, normalize: bool) -> None:
    """Weights travel as one flat vector, in the order of the state dict."""
    algorithm, spec = get_algorithm(name), spec_of()
    config = algorithm.config(**SMALL, normalize_observations=normalize)
    learner, policy = (
        learner_of(name, normalize_observations=normalize),
        algorithm.make_policy(config, spec, PolicyContext()),
    )
    shapes = [{key: value.shape for key, value in one.module.state_dict().items()} for one in (learner, policy)]
    assert list(shapes[0].items()) == list(shapes[1].items())


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_learner_goes_on_as_it_would_have(name: str) -> None:
    learner = learner_of(name, normalize_observations=True)
    for seed in range(5):
        learner.step(sample_of(seed=seed))
    state = learner.state()
    saved = type(state)({key: value.clone() for key, value in state.tensors.items()}, dict(state.scalars))
    torch.manual_seed(9)
    went_on = [learner.step(sample_of(seed=seed)) for seed in (5, 6)]
    again = learner_of(name, normalize_observations=True)
    again.load_state(saved)
    torch.manual_seed(9)
    for expected, found in zip(went_on, (again.step(sample_of(seed=seed)) for seed in (5, 6)), strict=True):
        np.testing.assert_array_equal(expected.priorities, found.priorities)
    for key, value in module_tensors(learner.module).items():
        torch.testing.assert_close(module_tensors(again.module)[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_all_of_policy_and_critic_is_learned_and_targets_follow(name: str) -> None:
    learner = learner_of(name, tau=0.5, target_period=1)
    before = {key: value.clone() for key, value in learner.state().tensors.items()}
    for seed in range(2):
        learner.step(sample_of(seed=seed))
    after = learner.state().tensors
    still = [key for key in before if key.startswith(("policy.", "critic.", "target")) and not key.endswith("learned")]
    assert still and not [key for key in still if torch.equal(before[key], after[key])]
    moved = after["target_critic.body.weights.0"] - before["critic.body.weights.0"]
    assert 0 < moved.abs().max() < (after["critic.body.weights.0"] - before["critic.body.weights.0"]).abs().max()


def test_targets_move_by_tau() -> None:
    """Two updates at 1e-9: the networks stand still, the target goes half of the way, and half of the rest."""
    learner = learner_of("td3", tau=0.5, target_period=1, learning_rate=1e-9, policy_learning_rate=1e-9)
    critic, target = learner._networks["critic"], learner._networks["target_critic"]
    with torch.no_grad():
        target.body.weights[0].copy_(critic.body.weights[0] + 1.0)
    learner.step(sample_of())
    learner.step(sample_of())
    apart = target.body.weights[0] - critic.body.weights[0]
    torch.testing.assert_close(apart, torch.full_like(apart, 0.25), rtol=0, atol=1e-5)
    learner.weights_replaced()
    assert torch.equal(target.body.weights[0], critic.body.weights[0])


def test_the_learner_keeps_the_statistics_and_publishes_them() -> None:
    """Of all rows it has drawn, as if they were one batch."""
    learner = learner_of("sac", normalize_observations=True)
    rows = []
    for seed in range(20):
        learner.step(sample_of(seed=seed))
        rows.append(sample_of(seed=seed).data.obs)
    seen = torch.from_numpy(np.concatenate(rows))
    published = module_tensors(learner.module)
    torch.testing.assert_close(published["norm.mean"], seen.mean(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(published["norm.scale"], 1 / seen.std(dim=0, correction=0), rtol=1e-4, atol=1e-4)
    assert published["learned"].item() == 1.0


def test_importance_weights_count_each_for_its_own_sample() -> None:
    """Not their mean: another order of the weights is another update."""
    first, second = sample_of(), sample_of()
    second.probabilities[:] = second.probabilities[::-1].copy()
    losses = [learner_of("apex-dpg").step(sample).metrics["loss"].item() for sample in (first, second)]
    assert losses[0] != losses[1]


def test_rewards_are_scaled() -> None:
    """Terminal steps only, so the target is the reward itself: twice as large, and the same network."""
    sample = sample_of()
    sample.data.discount[:] = 0.0
    plain, scaled = (learner_of("apex-dpg", reward_scale=scale) for scale in (1.0, 2.0))
    apart = scaled.step(sample).priorities - 0.0, plain.step(sample).priorities
    doubled = sample_of()
    doubled.data.discount[:] = 0.0
    doubled.data.reward[:] *= 2
    np.testing.assert_allclose(apart[0], learner_of("apex-dpg").step(doubled).priorities)
    assert not np.allclose(*apart)


@pytest.mark.parametrize("normalize", [False, True])
def test_priced_steps_are_those_the_learner_would_price(normalize: bool) -> None:
    """Ape-X: the actor's initial priority equals |reward + gamma Q(s', pi(s')) - Q(s, a)| with its own networks."""
    algorithm, spec = get_algorithm("apex-dpg"), spec_of()
    config = algorithm.config(**SMALL, n_step=1, gamma=0.9, reward_scale=0.5, normalize_observations=normalize)
    policy: Any = algorithm.make_policy(config, spec, PolicyContext(lanes=2))
    if normalize:
        policy.module.policy.norm.set(torch.full((3,), 7.0), torch.full((3,), 25.0))
    policy.module.policy.learned.fill_(1.0)
    obs = [np.random.default_rng(k).standard_normal((2, 3)).astype(np.float32) for k in range(2)]
    first = np.ones(2, np.bool_)
    none = np.zeros(2, np.bool_)
    took = policy.act(obs[0], (), first, explore=True).action
    policy.record(Outcome(np.array([1.0, 3.0], np.float32), np.array([False, True]), none, np.zeros(2, np.uint8)))
    policy.act(obs[1], (), first, explore=True)
    found = policy.record(Outcome(np.zeros(2, np.float32), none, none, np.zeros(2, np.uint8)))["priority"]
    with torch.no_grad():
        here, there = (policy.module.policy.normalized(torch.from_numpy(one)) for one in obs)
        q = policy.module.critic(here, ActionBounds(spec).from_env(CPU)(torch.from_numpy(took)))[0, :, 0]
        v = policy.module.critic(there, policy.module.policy.from_normalized(there))[0, :, 0]
    expected = (torch.tensor([0.5, 1.5]) + 0.9 * v * torch.tensor([1.0, 0.0]) - q).abs()  # the second terminated
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_actions_of_any_shape_train_and_act() -> None:
    low, high = np.array([[-1.0, 0.0], [2.0, -5.0]]), np.array([[1.0, 0.5], [2.5, 5.0]])
    spec, algorithm = spec_of(low, high, obs_shape=(2, 2)), get_algorithm("sac")
    config = algorithm.config(**SMALL)
    learner = algorithm.make_learner(config, spec, LearnerContext(CPU))
    assert np.isfinite(learner.step(sample_of(spec=spec)).priorities).all()  # type: ignore[arg-type]
    action = algorithm.make_policy(config, spec, PolicyContext(lanes=5)).act(
        np.zeros((5, 2, 2), np.float32), (), np.ones(5, np.bool_), True
    )
    assert action.action.shape == (5, 2, 2)
    assert ((low <= action.action) & (action.action <= high)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_update_is_the_same_update(name: str) -> None:
    algorithm, learners = get_algorithm(name), []
    for compiled in (False, True):
        torch.manual_seed(3)
        config = algorithm.config(**SMALL)
        context = LearnerContext(torch.device("cuda"), compile=compiled)
        learners.append(algorithm.make_learner(config, spec_of(), context))
    for seed in range(12):
        found = []
        for learner in learners:
            torch.cuda.manual_seed(seed)
            found.append(learner.step(sample_of(seed=seed)).priorities)
            for size in range(1, 24):  # whoever else gets memory must not get a captured update's
                torch.full((2**size,), torch.nan, device="cuda")
        np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_learns_what_a_cpu_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, found = get_algorithm(name), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(3)
        learner = algorithm.make_learner(algorithm.config(**SMALL), spec_of(), LearnerContext(torch.device(device)))
        rng = np.random.default_rng(0)
        monkeypatch.setattr(torch, "randn_like", lambda x, r=rng: torch.from_numpy(r.standard_normal(x.shape)).to(x))
        found.append([learner.step(sample_of(seed=seed)).priorities for seed in range(12)])
    np.testing.assert_allclose(*found, rtol=1e-2, atol=1e-3)
