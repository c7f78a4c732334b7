"""What IMPALA and IMPACT share: the policy's records, what rows of a sequence mean, and the losses by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms import actor_critic as common
from shoal.algorithms import impact, impala
from shoal.algorithms.action_bounds import ActionBounds
from shoal.algorithms.batches import SequenceBatch, after_burn_in, to_tensors
from shoal.algorithms.interface import LearnerContext, Outcome, PolicyContext
from shoal.errors import ConfigError
from shoal.ops import discounts
from shoal.types import FINAL, EnvSpec, Keys, Sample, Sequence

CPU = LearnerContext(torch.device("cpu"))
DISCRETE = EnvSpec("Fake-v0", (3,), "float32", 1, 2, ())
SEVERAL = EnvSpec("Fake-v2", (3,), "float32", 1, 0, (2,), action_nvec=(2, 3))
CONTINUOUS = EnvSpec("Fake-v1", (3,), "float32", 1, 0, (2,), (-1.0, 0.0), (3.0, 10.0))


def outcome(lanes: int) -> Outcome:
    no = np.zeros(lanes, np.bool_)
    return Outcome(np.zeros(lanes, np.float32), no, no, np.zeros(lanes, np.uint8))


def play(config: Any, spec: EnvSpec, steps: int, lanes: int, seed: int = 1, algorithm: Any = impala) -> Sample:
    """A batch as actors would record it: one sequence per lane, an episode truncated at row 1, one terminated at 3."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    policy = algorithm.ALGORITHM.make_policy(config, spec, PolicyContext(lanes=lanes, seed=seed))
    state, rows = policy.initial_state(lanes), []
    first = np.zeros(lanes, np.bool_)
    for t in range(steps + 1):
        obs = rng.standard_normal((lanes, 3)).astype(np.float32)
        decision = policy.act(obs, state, first, explore=True)
        rows.append({"obs": obs, "action": decision.action, **policy.record(outcome(lanes))})
        state, first = decision.state, np.full(lanes, t in (2, 4))
    column = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    boundary = np.zeros((steps + 1, lanes), np.uint8)
    boundary[[2, 4]] = 1
    terminated, truncated = np.zeros((steps, lanes), np.bool_), np.zeros((steps, lanes), np.bool_)
    truncated[1], terminated[3] = True, True
    reward = rng.standard_normal((steps, lanes)).astype(np.float32)
    extras = {name: array for name, array in column.items() if name not in ("obs", "action", "state")}
    if "state" in column:
        extras["state"] = column["state"][0]
    data = Sequence(column["obs"], column["action"][:-1], reward, terminated, truncated, boundary, extras)
    half = np.arange(lanes) % 2 == 0
    return Sample(data, Keys.empty(lanes), np.ones(lanes), lanes, 0.0, half)


def sequences(sample: Sample) -> SequenceBatch:
    batch = to_tensors(sample)
    assert isinstance(batch, SequenceBatch)
    return batch


def loss_of(config: impala.Config, spec: EnvSpec, sample: Sample, **changes: Any) -> tuple[Any, dict[str, float]]:
    torch.manual_seed(3)
    network = common.make_network(config, spec)
    batch = after_burn_in(network, sequences(sample), config.burn_in)._replace(**changes)
    loss = impala.impala_loss(network, batch, config, common.make_distribution(spec))
    return loss, {name: float(value.detach()) for name, value in loss.metrics.items()}


def test_rows_of_a_sequence() -> None:
    batch = sequences(play(impala.Config(), DISCRETE, 6, 4))
    assert batch.mask[:, 0].tolist() == [1, 1, 0, 1, 0, 1]
    assert discounts(batch.terminated, 0.9)[:, 0].tolist() == pytest.approx([0.9, 0.9, 0.9, 0.0, 0.9, 0.9])
    assert batch.first[:, 0].tolist() == [False, False, False, True, False, True, False]
    assert batch.replayed.tolist() == [0, 1, 0, 1] and batch.state is None


def test_what_a_policy_records() -> None:
    config = impala.Config(lstm=8, clear=impala.Clear(enabled=True))
    columns = {column.name: column.shape for column in impala.ALGORITHM.columns(config, CONTINUOUS)}
    assert columns == {"behaviour": (4,), "value": (), "state": (16,), "raw_action": (2,)}
    policy = impala.ALGORITHM.make_policy(config, CONTINUOUS, PolicyContext(lanes=3, record_features=True))
    decision = policy.act(np.zeros((3, 3), np.float32), policy.initial_state(3), np.ones(3, np.bool_), explore=True)
    recorded = policy.record(outcome(3))
    assert set(recorded) == {*columns, "feature"}
    assert all(recorded[name].shape == (3, *shape) for name, shape in columns.items())
    feature = common.feature_column(config, CONTINUOUS)
    assert recorded["feature"].shape == (3, *feature.shape) and recorded["feature"].dtype == feature.dtype
    assert decision.action.shape == (3, 2) and not np.asarray(recorded["state"]).any()


@pytest.mark.parametrize("lstm", [0, 4])
@pytest.mark.parametrize("spec", [DISCRETE, SEVERAL])
def test_lasting_noise_repeats_actions_and_the_policy_is_recorded(spec: EnvSpec, lstm: int) -> None:
    config = impala.Config(repeat_exploration=True, lstm=lstm)
    policy = impala.ALGORITHM.make_policy(config, spec, PolicyContext(lanes=64, seed=1))
    state, obs, taken = policy.initial_state(64), np.ones((64, 3), np.float32), []
    for step in range(40):
        decision = policy.act(obs, state, np.full(64, step == 0), explore=True)
        state = decision.state
        taken.append(decision.action.reshape(64, -1))
        recorded = policy.record(outcome(64))["behaviour"]
        np.testing.assert_allclose(recorded, recorded[:1].repeat(64, 0), rtol=1e-5)  # of the state, not of the noise
    again = (np.stack(taken)[1:] == np.stack(taken)[:-1]).all(axis=2).mean(axis=0)  # [N]
    assert (again > 0.85).sum() > 16 and (again < 0.7).sum() > 16  # lanes with noise that lasts, and without
    greedy = policy.act(obs, policy.initial_state(64), np.ones(64, bool), explore=False).action
    assert (greedy == greedy[:1]).all()


def test_lasting_noise_is_for_discrete_actions() -> None:
    with pytest.raises(ConfigError, match="for discrete actions, and those of Fake-v1 are continuous"):
        impala.ALGORITHM.columns(impala.Config(repeat_exploration=True), CONTINUOUS)
    assert not impala.ALGORITHM.suited(CONTINUOUS)["algorithm"]["repeat_exploration"]


def test_actions_are_scaled_to_the_bounds() -> None:
    bounds = ActionBounds(CONTINUOUS, drop_fixed=False)
    raw = np.array([[0.0, 0.0], [1.0, -1.0], [5.0, -5.0]], np.float32)
    assert bounds.to_env(raw).tolist() == [[1.0, 5.0], [3.0, 0.0], [3.0, 0.0]]
    free = EnvSpec("Free", (3,), "float32", 1, 0, (1,), (-np.inf,), (np.inf,))
    assert ActionBounds(free, drop_fixed=False).to_env(np.array([[7.0]], np.float32)).tolist() == [[7.0]]


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS])
@pytest.mark.parametrize("lstm", [0, 8])
def test_the_actors_own_weights_need_no_correction(spec: EnvSpec, lstm: int) -> None:
    """The learner computes what the actor did, LSTM state and resets included: all ratios are 1."""
    config = impala.Config(lstm=lstm, rho_clip=1e9)
    sample = play(config, spec, 6, 4)
    torch.manual_seed(1)  # as `play` did
    network = common.make_network(config, spec)
    batch = sequences(sample)
    loss = impala.impala_loss(network, batch, config, common.make_distribution(spec))
    assert float(loss.metrics["rho"]) == pytest.approx(1.0, abs=1e-4)


def test_masked_rows_change_nothing() -> None:
    config = impala.Config(clear=impala.Clear(enabled=True))
    sample = play(config, DISCRETE, 6, 4)
    _, before = loss_of(config, DISCRETE, sample)
    sample.data.reward[[2, 4]] = 100.0
    sample.data.action[[2, 4]] = 1 - sample.data.action[[2, 4]]
    _, after = loss_of(config, DISCRETE, sample)
    assert before == pytest.approx(after)


def test_clear_touches_what_was_replayed_only() -> None:
    sample = play(impala.Config(clear=impala.Clear(enabled=True)), DISCRETE, 6, 4)
    values = {}
    for on in ("replay", "all"):
        config = impala.Config(clear=impala.Clear(enabled=True, on=on))
        _, metrics = loss_of(config, DISCRETE, sample)
        values[on] = metrics["clear_value"]
        _, none = loss_of(config, DISCRETE, sample, replayed=torch.zeros(4))
        assert (none["clear_value"] == 0) == (on == "replay")
    assert 0 < values["replay"] < values["all"]


def test_laser_leaves_out_what_is_far_from_the_policy() -> None:
    sample = play(impala.Config(), DISCRETE, 6, 4)
    far = np.array(sample.data.extras["behaviour"])
    far[1] = [20.0, -20.0]
    sample.data.extras["behaviour"][:] = far  # type: ignore[index]
    _, metrics = loss_of(impala.Config(laser=impala.Laser(enabled=True)), DISCRETE, sample)
    assert metrics["laser_used"] == pytest.approx(0.75)  # one of four steps is left out


def test_burn_in_warms_the_state_and_is_not_learned_from() -> None:
    config = impala.Config(lstm=8)
    sample = play(config, DISCRETE, 6, 4)
    torch.manual_seed(1)
    network = common.make_network(config, DISCRETE)
    batch = sequences(sample)
    later = after_burn_in(network, batch, 3)
    assert later.obs.shape[0] == 4 and later.reward.shape[0] == 3 and len(later.replayed) == 4
    whole = network.unroll(batch.obs, batch.state, batch.first).params
    part = network.unroll(later.obs, later.state, later.first).params
    assert torch.allclose(whole[3:], part, atol=1e-6)
    assert (batch.boundary[2] == FINAL).any() and (later.state[batch.boundary[2] == FINAL] == 0).all()  # type: ignore[index]
    other = common.make_network(config, DISCRETE)  # a target network warms its own state
    later = after_burn_in(network, batch, 2, other)
    whole = other.unroll(batch.obs, batch.state, batch.first).params
    part = other.unroll(later.obs, later.target_state, later.first).params
    assert torch.allclose(whole[2:], part, atol=1e-6)
    assert later.state is not None and later.target_state is not None
    assert not torch.allclose(later.state, later.target_state, atol=1e-3)


def test_impact_at_the_target_is_the_plain_policy_gradient() -> None:
    config = impact.Config(normalize_advantages=False)
    sample = play(impala.Config(), DISCRETE, 6, 4)
    torch.manual_seed(1)
    network, distribution = common.make_network(config, DISCRETE), common.make_distribution(DISCRETE)
    batch = sequences(sample)
    loss = impact.impact_loss(network, network, batch, config, distribution)
    assert float(loss.metrics["target_kl"]) == pytest.approx(0.0, abs=1e-6)
    loss.loss.backward()
    surrogate = network.policy_head.weight.grad.clone()  # type: ignore[union-attr]
    network.zero_grad()
    same = impala.Config(trace_lambda=config.trace_lambda)
    impala.impala_loss(network, batch, same, distribution).loss.backward()
    assert network.policy_head.weight.grad is not None
    assert torch.allclose(surrogate, network.policy_head.weight.grad, atol=1e-6)


@pytest.mark.parametrize("algorithm", [impala, impact])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_learner_goes_on_where_it_was(algorithm: Any, optimizer: str) -> None:
    config = algorithm.Config(optimizer=optimizer, learning_rate_end=1e-5, schedule_updates=10)
    samples = [play(impala.Config(), DISCRETE, 6, 4, seed) for seed in range(6)]
    torch.manual_seed(5)
    one = algorithm.make_learner(config, DISCRETE, CPU)
    for sample in samples[:3]:
        one.step(sample)
    saved = one.state()
    saved = saved._replace(tensors={name: tensor.clone() for name, tensor in saved.tensors.items()})
    other = algorithm.make_learner(config, DISCRETE, CPU)
    other.load_state(saved)
    for sample in samples[3:]:
        one.step(sample)
        other.step(sample)
    for mine, theirs in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("algorithm", [impala, impact])
@pytest.mark.parametrize("options", [{}, {"lstm": 8, "burn_in": 2}, {"optimizer": "rmsprop", "schedule_updates": 6}])
def test_a_captured_update_is_the_same_update(algorithm: Any, options: dict[str, Any]) -> None:
    config, learners = algorithm.Config(unroll=4 if "burn_in" in options else 6, **options), []
    for compiled in (False, True):
        torch.manual_seed(3)
        context = LearnerContext(torch.device("cuda"), compile=compiled)
        learners.append(algorithm.make_learner(config, DISCRETE, context))
    for seed in range(12):
        lanes = 3 if seed == 8 else 4  # a batch of another size, as adaptive batching makes them
        sample = play(config, DISCRETE, 6, lanes, seed, algorithm)
        found = [float(one.step(sample).metrics["loss"]) for one in learners]
        np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)
        if seed == 5:  # a checkpoint of either serves the other
            states = [one.state() for one in learners]
            for one, state in zip(learners, reversed(states), strict=True):
                one.load_state(state)
