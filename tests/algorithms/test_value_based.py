"""What the value-based algorithms share: initial priorities, the policy, the learner."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms import get_algorithm
from shoal.algorithms.initial_priorities import InitialPriorities
from shoal.algorithms.interface import Learner, LearnerContext, LearnerState, Outcome, PolicyContext
from shoal.errors import CheckpointError, ConfigError
from shoal.types import FINAL, EnvSpec, Sample, Transition

SPEC = EnvSpec("Toy-v0", (4,), "float32", 1, 2, ())
NAMES = ("apex-dqn", "apex-qr-dqn")


def make_sample(batch: int = 16, seed: int = 0) -> Sample:
    rng = np.random.default_rng(seed)
    data = Transition(
        obs=rng.normal(size=(batch, 4)).astype(np.float32),
        action=rng.integers(0, 2, batch),
        reward=rng.normal(size=batch).astype(np.float32),
        discount=np.where(rng.random(batch) < 0.2, 0.0, 0.97).astype(np.float32),
        next_obs=rng.normal(size=(batch, 4)).astype(np.float32),
    )
    probabilities = rng.random(batch) / batch
    return Sample(data, None, probabilities, 1000, 0.0)  # type: ignore[arg-type]


def make_learner(name: str, **changes: object) -> Learner:
    torch.manual_seed(0)
    algorithm = get_algorithm(name)
    config = algorithm.config(hidden=(32, 32), learning_rate=1e-2, target_period=5, **changes)
    return algorithm.make_learner(config, SPEC, LearnerContext(torch.device("cpu")))


def slow_priority(stream: list[dict], start: int, n: int, gamma: float) -> float:
    """|R^n + gamma^m * Q(best) - Q(taken)|, straight from the definition."""
    total, discount = 0.0, 1.0
    for k in range(n):
        row = stream[start + k]
        total += discount * row["reward"]
        discount *= gamma
        if row["terminated"]:
            return abs(total - stream[start]["taken"])
        if row["truncated"]:
            break
    return abs(total + discount * stream[start + k + 1]["best"] - stream[start]["taken"])


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5), st.floats(0.0, 1.0))
def test_initial_priorities_are_n_step_errors(data: st.DataObject, n: int, gamma: float) -> None:
    value = st.floats(-10, 10, width=32)
    ends = st.sampled_from(["", "", "", "terminated", "truncated"])
    stream: list[dict] = []
    after_end = False
    for _ in range(25):
        end = "" if after_end else data.draw(ends)
        stream.append(
            {
                "taken": data.draw(value),
                "best": data.draw(value),
                "reward": 0.0 if after_end else data.draw(value),
                "terminated": end == "terminated",
                "truncated": end == "truncated",
                "boundary": FINAL if after_end else 0,
            }
        )
        after_end = bool(end)
    priorities = InitialPriorities(lanes=1, n=n, gamma=gamma)
    for t, row in enumerate(stream):
        outcome = Outcome(*(np.array([row[k]]) for k in ("reward", "terminated", "truncated", "boundary")))
        got = priorities.push(np.array([row["taken"]], np.float32), np.array([row["best"]], np.float32), outcome)
        start = t - n
        if start >= 0 and stream[start]["boundary"] == 0:
            assert got[0] == pytest.approx(slow_priority(stream, start, n, gamma), rel=1e-4, abs=1e-4)


def test_initial_priority_by_hand() -> None:
    """n = 2, gamma = 0.5: r = 1, 2; Q(taken) = 3; best value two steps on = 8: |1 + 0.5*2 + 0.25*8 - 3| = 1."""
    priorities = InitialPriorities(lanes=1, n=2, gamma=0.5)
    nothing, no = np.zeros(1, np.uint8), np.zeros(1, np.bool_)
    for taken, reward in ((3.0, 1.0), (5.0, 2.0)):
        priorities.push(np.array([taken]), np.array([99.0]), Outcome(np.array([reward]), no, no, nothing))
    got = priorities.push(np.array([0.0]), np.array([8.0]), Outcome(np.array([0.0]), no, no, nothing))
    assert got.tolist() == [1.0]


@pytest.mark.parametrize("name", NAMES)
def test_policy_explores_by_the_ladder_and_is_greedy_when_told(name: str) -> None:
    algorithm = get_algorithm(name)
    config = algorithm.config(epsilon_base=1.0, epsilon_exponent=0.0)
    policy = algorithm.make_policy(config, SPEC, PolicyContext(0, 1, lanes=64, seed=3))
    obs = np.zeros((64, 4), np.float32)
    first = np.ones(64, np.bool_)
    greedy = policy.act(obs, (), first, explore=False).action
    assert len(set(greedy.tolist())) == 1  # one observation, one best action
    explored = np.concatenate([policy.act(obs, (), first, explore=True).action for _ in range(20)])
    assert 0.4 < explored.mean() < 0.6  # epsilon 1: a coin


def test_seats_share_the_ladder_out() -> None:
    algorithm = get_algorithm("apex-dqn")
    config = algorithm.config()
    policies = [algorithm.make_policy(config, SPEC, PolicyContext(i, 2, lanes=3)) for i in range(2)]
    epsilons = sorted((float(e) for p in policies for e in p._epsilon), reverse=True)  # type: ignore[attr-defined]
    assert epsilons == pytest.approx([0.4 ** (1 + 7 * i / 5) for i in range(6)])


@pytest.mark.parametrize("name", NAMES)
def test_learner_fits_a_fixed_batch(name: str) -> None:
    learner, sample = make_learner(name), make_sample()
    errors = [float(np.mean(learner.step(sample).priorities)) for _ in range(300)]  # type: ignore[arg-type]
    assert np.mean(errors[-20:]) < 0.4 * np.mean(errors[:20])


@pytest.mark.parametrize("name", NAMES)
def test_priorities_are_absolute_errors_of_this_batch(name: str) -> None:
    learner, sample = make_learner(name), make_sample()
    priorities = learner.step(sample).priorities
    assert priorities is not None and priorities.dtype == np.float32 and priorities.shape == (16,)
    assert (priorities >= 0).all() and priorities.std() > 0


@pytest.mark.parametrize("name", NAMES)
def test_state_round_trip_gives_the_same_next_updates(name: str) -> None:
    learner = make_learner(name)
    for seed in range(7):
        learner.step(make_sample(seed=seed))
    state = learner.state()
    copied = LearnerState({k: v.clone() for k, v in state.tensors.items()}, state.scalars)
    twin = make_learner(name)
    twin.load_state(copied)
    for seed in range(10, 16):  # past the next target copy
        one, other = learner.step(make_sample(seed=seed)), twin.step(make_sample(seed=seed))
        assert torch.equal(one.metrics["loss"], other.metrics["loss"])
        np.testing.assert_array_equal(one.priorities, other.priorities)


def test_importance_weights_reach_the_loss() -> None:
    """Two samples that differ only in how likely they were drawn must weigh differently."""
    sample = make_sample()
    flat = sample._replace(probabilities=np.full(16, 1 / 16))
    skewed = sample._replace(probabilities=np.concatenate([[1e-6], np.full(15, 1 / 15)]))
    assert make_learner("apex-dqn").step(flat).metrics["loss"] != make_learner("apex-dqn").step(skewed).metrics["loss"]


@pytest.mark.parametrize("name", NAMES)
def test_continuous_actions_are_refused_by_name(name: str) -> None:
    continuous = EnvSpec("Pendulum-v1", (3,), "float32", 1, 0, (1,), (-2.0,), (2.0,))
    with pytest.raises(ConfigError, match=rf"{name}.*discrete.*Pendulum-v1"):
        get_algorithm(name).check(continuous)


def test_an_older_checkpoint_from_before_the_first_update_is_read() -> None:
    """It has no state of the optimiser: torch's own made that at the first step."""
    learner, twin = make_learner("apex-dqn"), make_learner("apex-dqn")
    state = learner.state()
    older = {name: tensor.clone() for name, tensor in state.tensors.items() if not name.startswith("optimizer.")}
    assert len(older) < len(state.tensors)
    twin.load_state(state._replace(tensors=older))
    assert all(torch.equal(older[f"policy.{name}"], value) for name, value in twin.module.state_dict().items())
    with pytest.raises(CheckpointError, match="missing"):
        twin.load_state(state._replace(tensors=older, scalars={"learner_updates": 1}))
