"""What recurrent Q-learners share: what is recorded, what a sequence's rows mean, the loss; for several agents, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms import r2d2
from shoal.algorithms.batches import RecurrentBatch, to_tensors
from shoal.algorithms.interface import LearnerContext, Outcome, PolicyContext
from shoal.algorithms.learner import GradientLearner
from shoal.algorithms.recurrent_policy import RecurrentConfig, RecurrentQPolicy
from shoal.algorithms.recurrent_q import Steps, recurrent_algorithm, sequence_errors, sequence_loss
from shoal.errors import ConfigError
from shoal.networks import RecurrentQNetwork
from shoal.ops import unrescaled
from shoal.types import FINAL, EnvSpec, Keys, Sample, Sequence

SPEC = EnvSpec("Toy-v0", (4,), "float32", 1, 2, ())
SMALL: dict[str, Any] = {"hidden": (8,), "cell_size": 4, "head_hidden": 4, "unroll": 6, "burn_in": 2, "period": 2}


def play(config: r2d2.Config, steps: int, lanes: int, seed: int = 1, before: int = 3) -> tuple[Sample, np.ndarray]:
    """A batch as actors would record it, and all recorded priorities [steps + 1, lanes].

    One sequence per lane, which begins in the middle of an episode. One episode is truncated at its row 1, another one
    terminates at row 4.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    policy = r2d2.ALGORITHM.make_policy(config, SPEC, PolicyContext(lanes=lanes, seed=seed))
    state, rows = policy.initial_state(lanes), []
    for t in range(-before, steps + 1):
        obs = rng.standard_normal((lanes, 4)).astype(np.float32)
        decision = policy.act(obs, state, np.full(lanes, t in (-before, 3, 6)), explore=True)
        final = np.full(lanes, t in (2, 5))
        row = {
            "obs": obs,
            "action": decision.action,
            "reward": np.where(final, 0.0, rng.standard_normal(lanes)).astype(np.float32),
            "terminated": np.full(lanes, t == 4),
            "truncated": np.full(lanes, t == 1),
            "boundary": final.astype(np.uint8) * np.uint8(FINAL),
        }
        outcome = Outcome(*(row[name] for name in ("reward", "terminated", "truncated", "boundary")))
        rows.append({**row, **policy.record(outcome)})
        state = decision.state
    column = {name: np.stack([row[name] for row in rows[before:]]) for name in rows[0]}
    ends = (column[name][:-1] for name in ("action", "reward", "terminated", "truncated"))
    data = Sequence(column["obs"], *ends, column["boundary"], {"state": column["state"][0]})
    probabilities = rng.random(lanes) / lanes
    return Sample(data, Keys.empty(lanes), probabilities, 100, 0.0, np.zeros(lanes, bool)), column["priority"]


def batch_of(sample: Sample) -> RecurrentBatch:
    batch = to_tensors(sample)
    assert isinstance(batch, RecurrentBatch)
    return batch


def test_rows_of_a_sequence() -> None:
    batch = batch_of(play(r2d2.Config(**SMALL), 8, 3)[0])
    assert batch.mask[:, 0].tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert batch.first[:, 0].nonzero().flatten().tolist() == [3, 6]
    last = batch.last_action(8)
    assert last[0].tolist() == batch.state[:, 8].tolist() and (last[0] >= 0).all()
    assert (last[[3, 6]] == -1).all()
    for t in (1, 2, 4, 5, 7, 8):
        assert last[t].tolist() == batch.action[t - 1].tolist()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("value_rescaling", [True, False])
@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("share", [0.0, 0.9])
def test_the_learner_finds_the_errors_that_the_actor_recorded(
    cell: str, value_rescaling: bool, burn_in: int, share: float
) -> None:
    """With the actor's weights. An error is recorded n rows later; states are stored in half precision."""
    changes = {
        **SMALL,
        "cell": cell,
        "value_rescaling": value_rescaling,
        "burn_in": burn_in,
        "advantage_learning": share,
    }
    config = r2d2.Config(**changes, n_step=2, epsilon_base=0.9)
    sample, recorded = play(config, 8, 3)
    torch.manual_seed(1)  # as `play` did
    network = r2d2.make_network(config, SPEC)
    error, _, _, mask = sequence_errors(network, network, batch_of(sample), config)
    rows = [t for t in (0, 1, 3, 4, 6) if t >= burn_in]  # row 7 has a shorter return, 2 and 5 hold no step
    np.testing.assert_allclose(
        error.detach().abs()[[t - burn_in for t in rows]], recorded[[t + 2 for t in rows]], atol=2e-3
    )
    assert (error[mask == 0] == 0).all()


@pytest.mark.parametrize("value_rescaling", [True, False])
def test_advantage_learning_adds_a_share_of_the_targets_regret(value_rescaling: bool) -> None:
    config = r2d2.Config(**SMALL, value_rescaling=value_rescaling)
    batch = batch_of(play(config, 8, 3)[0])
    torch.manual_seed(7)
    network, target = (r2d2.make_network(config, SPEC) for _ in range(2))
    usual = sequence_errors(network, target, batch, config)
    wider = sequence_errors(network, target, batch, config.model_copy(update={"advantage_learning": 0.9}))
    q, _ = target.unroll(batch.obs, batch.state[:, :8].float(), batch.first, batch.last_action(8))
    q = unrescaled(q[:-1]) if value_rescaling else q[:-1]
    taken = q.gather(2, batch.action.long().unsqueeze(2)).squeeze(2)
    added = 0.9 * (taken - q.amax(2))[config.burn_in :]
    assert (added < -1e-4).any()
    torch.testing.assert_close(wider.returns - usual.returns, added.detach() * usual.mask)
    assert (wider.error[usual.mask == 0] == 0).all()


def test_the_loss_by_hand() -> None:
    """From the errors: Huber, mean over rows, one per sequence; priorities of eta."""
    config = r2d2.Config(**SMALL, huber_delta=0.05)
    batch = batch_of(play(config, 8, 3)[0])
    torch.manual_seed(7)
    network, target = (r2d2.make_network(config, SPEC) for _ in range(2))
    error = sequence_errors(network, target, batch, config).error.detach().numpy()
    loss = sequence_loss(network, target, batch, config)
    size = np.abs(error)
    assert size.max() > 0.05 and error.shape == (6, 3)
    huber = np.where(size < 0.05, 0.5 * size**2, 0.05 * (size - 0.025))
    np.testing.assert_allclose(loss.loss.detach(), huber.sum(0) / 6, rtol=1e-5)
    assert loss.td_error is not None
    np.testing.assert_allclose(loss.td_error, 0.9 * size.max(0) + 0.1 * size.sum(0) / 4, rtol=1e-5)  # 4 rows hold steps


def test_burn_in_has_no_gradient_and_masked_rows_change_nothing() -> None:
    config = r2d2.Config(**SMALL)
    batch = batch_of(play(config, 8, 3)[0])
    torch.manual_seed(7)
    network = r2d2.make_network(config, SPEC)
    batch.obs.requires_grad_()
    sequence_loss(network, network, batch, config).loss.sum().backward()
    assert batch.obs.grad is not None
    moved = batch.obs.grad.abs().sum(dim=(1, 2)) > 0
    assert moved.tolist() == [False, False, False, True, True, False, True, True, False]  # row 8 is bootstrapped from
    wild = batch.reward.clone()
    wild[[2, 5]] = 1e6
    changed = batch._replace(obs=batch.obs.detach(), reward=wild)
    torch.testing.assert_close(
        sequence_loss(network, network, changed, config).loss, sequence_loss(network, network, batch, config).loss
    )


def test_what_a_policy_records() -> None:
    config = r2d2.Config(**SMALL)
    columns = {one.name: (one.dtype, one.shape) for one in r2d2.ALGORITHM.columns(config, SPEC)}
    assert columns == {"state": ("float16", (9,)), "priority": ("float32", ())}
    policy = r2d2.ALGORITHM.make_policy(config, SPEC, PolicyContext(lanes=3))
    obs, state = np.ones((3, 4), np.float32), policy.initial_state(3)
    none = np.zeros(3, bool)
    outcome = Outcome(np.zeros(3, np.float32), none, none, np.zeros(3, np.uint8))
    decision = policy.act(obs, state, np.ones(3, bool), explore=True)
    recorded = policy.record(outcome)["state"]
    assert recorded.dtype == np.float16 and recorded.tolist() == [[0.0] * 8 + [-1.0]] * 3
    policy.act(obs, decision.state, np.array([False, False, True]), explore=True)
    recorded = policy.record(outcome)["state"]
    assert recorded[:2, 8].tolist() == decision.action[:2].tolist() and recorded[:2, :8].all()
    assert recorded[2].tolist() == [0.0] * 8 + [-1.0]


class Team(RecurrentQNetwork):
    """Two agents, three actions; the state of an agent is the sum of what it saw. Values: weight times state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    @property
    def state_size(self) -> int:
        return 2

    def q_values(self, obs: Tensor, state: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        assert last_action.shape == (len(obs), 2)
        state = state + obs
        return state.unsqueeze(-1) * self.weight, state

    def unroll(self, obs: Tensor, state: Tensor, first: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for row, begins, last in zip(obs, first, last_action, strict=True):
            q, state = self.q_values(row, state.masked_fill(begins.unsqueeze(1), 0.0), last)
            found.append(q)
        return torch.stack(found), state


def team_steps(batch: RecurrentBatch, config: RecurrentConfig, network: RecurrentQNetwork) -> Steps:
    """Every agent gets what the other one sees next; the second one is gone in the third row."""
    mask = batch.mask.unsqueeze(-1).repeat(1, 1, 2)
    mask[2, :, 1] = 0.0
    return Steps(batch.obs[1:].flip(-1), torch.full_like(mask, config.gamma), mask)


TEAM = EnvSpec("Team-v0", (2,), "float32", 1, 0, (2,), action_nvec=(3, 3))


class TeamPolicy(RecurrentQPolicy):
    """The first agent explores, and its errors are the lane's priorities."""

    def __init__(self, network: Any, config: Any, spec: EnvSpec, context: PolicyContext) -> None:
        super().__init__(network, config, spec, context, explorers=np.array([True, False]))

    def record(self, outcome: Outcome) -> dict[str, Any]:
        priority = self._priorities.push(self._taken[:, 0], self._best[:, 0], outcome)
        return {"state": self._state, "priority": priority}


def team_algorithm() -> Any:
    return recurrent_algorithm(
        "team", "", RecurrentConfig, lambda config, spec: Team(), suited=lambda spec: {}, read_steps=team_steps,
        make_policy=TeamPolicy, check=lambda spec: None,
    )  # fmt: skip


def test_the_same_learner_serves_several_agents() -> None:
    """One update from sequences with two agents; the loss sums over them, the mask is per agent."""
    algorithm = team_algorithm()
    config = RecurrentConfig(unroll=4, burn_in=1, n_step=1, value_rescaling=False, gamma=0.5, target_period=1)
    columns = {one.name: one.shape for one in algorithm.columns(config, TEAM)}
    assert columns == {"state": (4,), "priority": ()}
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((6, 3, 2)).astype(np.float32)
    action = rng.integers(3, size=(5, 3, 2))
    ends = np.zeros((5, 3), bool)
    state = np.concatenate((rng.standard_normal((3, 2)), np.full((3, 2), -1.0)), 1).astype(np.float16)
    reward, boundary = np.zeros((5, 3), np.float32), np.zeros((6, 3), np.uint8)
    data = Sequence(obs, action, reward, ends, ends, boundary, {"state": state})
    sample = Sample(data, Keys.empty(3), np.full(3, 0.1), 30, 0.0, np.zeros(3, bool))
    learner = algorithm.make_learner(config, TEAM, LearnerContext(torch.device("cpu")))
    assert isinstance(learner, GradientLearner)
    before = learner.module.weight.detach().clone()  # type: ignore[union-attr]
    result = learner.step(sample)
    # By hand: the states add up; q = weight * state; one step of reward, gamma 1/2.
    sums = state[:, :2].astype(np.float32) + np.cumsum(obs, 0)
    q = sums[..., None] * np.array([1.0, 2.0, 3.0])
    goal = obs[1:, :, ::-1] + 0.5 * q.max(-1)[1:]
    error = (goal - np.take_along_axis(q[:-1], action[..., None], -1)[..., 0])[1:]  # without the burn-in
    error[2, :, 1] = 0.0
    size = np.abs(error)
    expected = 0.9 * size.max((0, 2)) + 0.1 * size.sum((0, 2)) / 7  # 4 rows of 2 agents, one is gone
    np.testing.assert_allclose(result.priorities, expected, rtol=1e-4)
    huber = np.where(size < 1.0, 0.5 * size**2, size - 0.5)
    assert float(result.metrics["loss"]) == pytest.approx(huber.sum((0, 2)).mean() / 4, rel=1e-4)
    assert not torch.equal(before, learner.module.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("repeat", [False, True])
def test_a_policy_of_several_agents(repeat: bool) -> None:
    config = RecurrentConfig(epsilon_base=1.0, epsilon_exponent=0.0, repeat_exploration=repeat)
    policy = team_algorithm().make_policy(config, TEAM, PolicyContext(lanes=400, seed=1))
    state, obs = policy.initial_state(400), np.ones((400, 2), np.float32)
    decision = policy.act(obs, state, np.ones(400, bool), explore=True)
    assert decision.action.shape == (400, 2)
    assert (decision.action[:, 1] == 2).all(), "only the first agent explores"
    assert set(decision.action[:, 0].tolist()) == {0, 1, 2}
    none = np.zeros(400, bool)
    recorded = policy.record(Outcome(np.zeros(400, np.float32), none, none, np.zeros(400, np.uint8)))
    assert recorded["state"].shape == (400, 4) and recorded["priority"].shape == (400,)
    greedy = policy.act(obs, decision.state, none, explore=False)
    assert (greedy.action == 2).all()
    assert [tuple(part.shape) for part in greedy.state] == [(400, 2), (400, 2)]


def test_exploration_follows_the_ladder() -> None:
    config = r2d2.Config(**SMALL, epsilon_base=0.5, epsilon_exponent=3.0)
    policy = r2d2.ALGORITHM.make_policy(config, SPEC, PolicyContext(lanes=2, actors=2, index=1, seed=3))
    state, obs, others = policy.initial_state(2), np.ones((2, 4), np.float32), np.zeros(2)
    best = policy.act(obs, state, np.ones(2, bool), explore=False).action
    for _ in range(4_000):
        others += policy.act(obs, state, np.ones(2, bool), explore=True).action != best
    expected = np.array([0.5 ** (1 + 3 * k / 3) for k in (1, 3)]) / 2  # half of the random actions are the best one
    np.testing.assert_allclose(others / 4_000, expected, atol=4 * np.sqrt(0.25 * 0.75 / 4_000))


def test_queues_are_refused() -> None:
    for name in ("fifo", "circular", "elite"):
        with pytest.raises(ConfigError, match=f"{name} cannot be used.*Use prioritized, uniform or newest"):
            r2d2.ALGORITHM.check_replay(r2d2.Config(), ("prioritized", name))
    r2d2.ALGORITHM.check_replay(r2d2.Config(), ("prioritized", "uniform", "newest"))
