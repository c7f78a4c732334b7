"""Recurrent DQN of several agents: what is learned from which row, by hand, and what a policy records."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.batches import RecurrentBatch, to_tensors
from shoal.algorithms.comm_dqn import (
    ALGORITHM,
    CommunicationPolicy,
    Config,
    OnlyThoseWhoPlay,
    make_network,
    read_steps,
)
from shoal.algorithms.interface import LearnerContext, Outcome, PolicyContext
from shoal.algorithms.kinds import require_agents
from shoal.algorithms.recurrent_q import sequence_errors, sequence_loss
from shoal.envs import EnvSettings, make_env
from shoal.errors import ConfigError
from shoal.types import FINAL, Array, EnvSpec, Keys, ObsPart, Sample, Sequence

AGENTS, SEES, ACTIONS = 3, 4, 5
PARTS = (
    ObsPart("agents", (AGENTS, SEES)),
    ObsPart("mask", (AGENTS, AGENTS), AGENTS * SEES),
    ObsPart("reward", (AGENTS,), AGENTS * (SEES + AGENTS)),
)
ROW = AGENTS * (SEES + AGENTS + 1)
TEAM = EnvSpec(
    "Team-v0", (ROW,), "float32", 1, 0, (AGENTS,), action_nvec=(ACTIONS,) * AGENTS, obs_parts=PARTS, agents=AGENTS
)
SMALL: dict[str, Any] = {"cell_size": 8, "head_size": 4, "hidden": (6,), "unroll": 5, "period": 1}


def rows(present: Array, reward: Array, seed: int = 0) -> Array:
    """[..., agents] bool and [..., agents] -> [..., F]; all who are there hear each other."""
    seen = np.random.default_rng(seed).normal(size=(*present.shape, SEES)) * present[..., None]
    mask = present[..., None] & present[..., None, :]
    flat = [one.reshape(*present.shape[:-1], -1) for one in (seen, mask, reward)]
    return np.concatenate(flat, axis=-1).astype(np.float32)


def team_sample(batch: int = 8, seed: int = 0, steps: int = 5, **changes: Any) -> Sample:
    """Sequences in which agents come and go, and episodes end."""
    rng = np.random.default_rng(seed)
    present = rng.random((steps + 1, batch, AGENTS)) < 0.8
    present[..., 0] = True
    boundary = np.zeros((steps + 1, batch), np.uint8)
    terminated, truncated = np.zeros((2, steps, batch), np.bool_)
    for lane in range(batch):
        if lane % 3:
            (terminated if lane % 3 == 1 else truncated)[1, lane] = True
            boundary[2, lane] = FINAL
    state = np.concatenate(
        (rng.uniform(-1, 1, (batch, 8 * AGENTS)), rng.integers(0, ACTIONS, (batch, AGENTS))), 1
    ).astype(np.float16)
    data = Sequence(
        obs=rows(present, rng.normal(size=present.shape), seed),
        action=rng.integers(0, ACTIONS, (steps, batch, AGENTS)),
        reward=rng.normal(size=(steps, batch)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        boundary=boundary,
        extras={"state": state},
    )
    sample = Sample(data._replace(**changes), Keys.empty(batch), np.full(batch, 1.0 / batch), batch, 0.0)
    return sample


def batch_of(**changes: Any) -> Any:
    return to_tensors(team_sample(**changes))


def test_steps_by_hand() -> None:
    """Rewards come from the row after; who is gone there has terminated; nothing is learned of those not there."""
    present = np.array([[[1, 1, 0]], [[1, 0, 0]], [[1, 1, 1]], [[1, 0, 0]]], np.bool_)  # [T + 1 = 4, B = 1, agents]
    reward = np.arange(12.0).reshape(4, 1, 3)
    boundary = np.array([[0], [0], [FINAL], [0]], np.uint8)
    terminated = np.array([[False], [True], [False]])
    batch = to_tensors(
        Sample(
            Sequence(
                obs=rows(present, reward),
                action=np.zeros((3, 1, 3), np.int64),
                reward=np.zeros((3, 1), np.float32),
                terminated=terminated,
                truncated=np.zeros((3, 1), np.bool_),
                boundary=boundary,
                extras={"state": np.zeros((1, 27), np.float16)},
            ),
            Keys.empty(1),
            np.ones(1),
            1,
            0.0,
        )
    )
    found = read_steps(batch, Config(gamma=0.5, **SMALL), make_network(Config(**SMALL), TEAM))
    assert found.reward[:, 0].tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]
    # Agent 1 has left after the first step; the second terminated for all.
    assert found.discount[:2, 0].tolist() == [[0.5, 0, 0], [0, 0, 0]]
    assert found.mask[:, 0].tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0]]
    first = read_steps(batch, Config(gamma=0.5, train="first", **SMALL), make_network(Config(**SMALL), TEAM))
    assert first.mask[:, 0].tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("train", ["all", "first"])
def test_loss_against_a_loop(double: bool, train: str) -> None:
    """Agent by agent, step by step."""
    config = Config(double=double, train=train, n_step=2, gamma=0.9, **SMALL)  # type: ignore[arg-type]
    torch.manual_seed(0)
    network, target = make_network(config, TEAM), make_network(config, TEAM)
    batch = batch_of(seed=4)
    found = sequence_loss(network, target, batch, config, read_steps)
    seen = network.parts(batch.obs.flatten(0, 1))
    present = seen.mask.diagonal(dim1=1, dim2=2).unflatten(0, (6, 8))
    reward = seen.reward.unflatten(0, (6, 8))
    with torch.no_grad():
        last = batch.last_action(network.state_size)
        q, q_target = (
            one.unroll(batch.obs, batch.state[:, : one.state_size].float(), batch.first, last)[0]
            for one in (network, target)
        )
    for lane in range(8):
        total, errors = 0.0, []
        for agent in range(AGENTS if train == "all" else 1):
            for t in range(5):
                if batch.boundary[t, lane] == FINAL or not present[t, lane, agent]:
                    continue
                goal, discount = 0.0, 1.0
                for ahead in range(t, min(t + 2, 5)):
                    goal += discount * float(reward[ahead + 1, lane, agent])
                    discount *= 0.9
                    end = bool(batch.terminated[ahead, lane]) or not present[ahead + 1, lane, agent]
                    if end or batch.boundary[ahead + 1, lane] == FINAL:
                        discount = 0.0 if end else discount
                        break
                chooser = q if double else q_target
                best = chooser[ahead + 1, lane, agent].argmax()
                goal += discount * float(q_target[ahead + 1, lane, agent, best])
                error = goal - float(q[t, lane, agent, batch.action[t, lane, agent]])
                errors.append(abs(error))
                total += 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        assert found.loss[lane].item() == pytest.approx(total / 5, rel=1e-4)
        priority = 0.9 * max(errors) + 0.1 * float(np.mean(errors))
        assert found.td_error is not None and float(found.td_error[lane]) == pytest.approx(priority, rel=1e-4)


def test_agents_that_are_not_there_change_no_gradient() -> None:
    sample = team_sample(seed=2)
    data = sample.data
    assert isinstance(data, Sequence)
    network = make_network(Config(**SMALL), TEAM)
    gone = ~network.parts(torch.from_numpy(data.obs).flatten(0, 1)).mask.diagonal(dim1=1, dim2=2).numpy()
    changed = data.obs.copy().reshape(-1, ROW)
    changed[:, : AGENTS * SEES][np.repeat(gone, SEES, axis=1)] = 7.0
    results = []
    for obs in (data.obs, changed.reshape(data.obs.shape)):
        torch.manual_seed(1)
        learner = ALGORITHM.make_learner(Config(**SMALL), TEAM, LearnerContext(torch.device("cpu")))
        learner.step(sample._replace(data=data._replace(obs=obs)))
        results.append(torch.cat([one.flatten() for one in learner.module.parameters()]))
    assert torch.equal(*results)


def played(
    config: Config, steps: int = 12, lanes: int = 2
) -> tuple[CommunicationPolicy, list[dict[str, Array]], Array]:
    """A policy's records of a stream without ends, and what agents were rewarded: [steps + 1, lanes, agents]."""
    torch.manual_seed(0)
    policy = CommunicationPolicy(make_network(config, TEAM), config, TEAM, PolicyContext(lanes=lanes))
    reward = np.random.default_rng(1).normal(size=(steps + 1, lanes, AGENTS))
    present = np.ones((lanes, AGENTS), np.bool_)
    state, records = policy.initial_state(lanes), []
    none = np.zeros(lanes, np.bool_)
    for step in range(steps):
        obs = rows(present, reward[step], seed=step)
        decision = policy.act(obs, state, none | (step == 0), explore=True)
        state = decision.state
        record = dict(policy.record(Outcome(np.zeros(lanes, np.float32), none, none, np.zeros(lanes, np.uint8))))
        records.append(record | {"obs": obs, "action": decision.action})
    return policy, records, reward


@pytest.mark.parametrize("train", ["all", "first"])
def test_first_priorities_are_of_each_agents_own_error(train: str) -> None:
    config = Config(n_step=2, gamma=0.9, train=train, record_q_values=True, **SMALL)  # type: ignore[arg-type]
    _, records, reward = played(config)
    for step in range(2, 12):
        q = [record["q_values"] for record in records]
        began = step - 2
        taken = np.take_along_axis(q[began], records[began]["action"][..., None], -1)[..., 0]
        goal = reward[began + 1] + 0.9 * reward[began + 2] + 0.81 * q[step].max(-1)
        errors = np.abs(goal - taken)[:, : 1 if train == "first" else None]
        expected = 0.9 * errors.max(1) + 0.1 * errors.mean(1)
        np.testing.assert_allclose(records[step]["priority"], expected, rtol=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_first_priorities_know_who_was_there(share: float) -> None:
    """The learner's own errors, where agents come and go and all are gone in an episode's last row."""
    config = Config(n_step=2, gamma=0.9, eta=0.0, burn_in=0, advantage_learning=share, **{**SMALL, "unroll": 8})
    torch.manual_seed(0)
    network = make_network(config, TEAM)
    policy = CommunicationPolicy(network, config, TEAM, PolicyContext(lanes=1))
    rng, steps = np.random.default_rng(3), 11
    present = rng.random((steps, 1, AGENTS)) < 0.6
    present[:, :, 0] = True
    boundary, terminated = np.zeros((steps, 1), np.uint8), np.zeros((steps, 1), np.bool_)
    terminated[4], boundary[5], present[5] = True, FINAL, False
    reward = rng.normal(size=present.shape) * present
    obs = np.stack([rows(present[step], reward[step], seed=step) for step in range(steps)])
    state, priorities, actions = policy.initial_state(1), [], []
    for step in range(steps):
        decision = policy.act(obs[step], state, np.array([step in (0, 6)]), explore=True)
        state = decision.state
        outcome = Outcome(np.zeros(1, np.float32), terminated[step], np.zeros(1, np.bool_), boundary[step])
        priorities.append(float(policy.record(outcome)["priority"][0]))
        actions.append(decision.action)
    data = Sequence(
        obs[:9], np.stack(actions)[:8], np.zeros((8, 1), np.float32), terminated[:8], np.zeros((8, 1), np.bool_),
        boundary[:9], {"state": np.concatenate((np.zeros((1, 8 * AGENTS)), -np.ones((1, AGENTS))), 1).astype("f2")},
    )  # fmt: skip
    batch = to_tensors(Sample(data, Keys.empty(1), np.ones(1), 1, 0.0))
    assert isinstance(batch, RecurrentBatch)
    found = sequence_errors(network, network, batch, config, read_steps)
    for step in range(7):  # the last ones of the sequence have shorter returns
        if boundary[step] == 0:
            each, there = found.error[step, 0].detach().abs(), found.mask[step, 0]
            np.testing.assert_allclose(priorities[step + 2], float(each.sum() / there.sum()), rtol=1e-3, atol=1e-4)


def test_a_row_holds_the_state_before_it() -> None:
    config = Config(record_q_values=True, **SMALL)
    policy, records, _ = played(config)
    network = policy.module
    for before, after in itertools.pairwise(records):
        state = torch.from_numpy(before["state"][:, :24]).float()
        _, expected = network.q_values(torch.from_numpy(before["obs"]), state, torch.zeros(2, AGENTS))  # type: ignore[operator]
        np.testing.assert_allclose(after["state"][:, :24], expected.detach().numpy(), atol=2e-3)
    names = {column.name: column for column in ALGORITHM.columns(config, TEAM)}
    assert names["state"].shape == (24 + AGENTS,) and names["state"].dtype == "float16"
    assert names["q_values"].shape == records[0]["q_values"].shape[1:] == (AGENTS, ACTIONS)
    assert "q_values" not in {column.name for column in ALGORITHM.columns(Config(**SMALL), TEAM)}


def test_who_explores() -> None:
    for explore, expected in (("first", [True, False, False]), ("all", [True] * AGENTS)):
        config = Config(explore=explore, epsilon_base=1.0, epsilon_exponent=0.0, record_q_values=True, **SMALL)  # type: ignore[arg-type]
        _, records, _ = played(config, steps=60)
        differs = [record["action"] != record["q_values"].argmax(-1) for record in records]
        assert np.any(differs, axis=(0, 1)).tolist() == expected


def test_actions_are_drawn_by_the_softmax_of_values() -> None:
    obs = rows(np.ones((1, AGENTS), np.bool_), np.zeros((1, AGENTS))).repeat(4_000, axis=0)
    for temperature, explore in ((0.0, False), (0.05, False), (0.05, True)):
        torch.manual_seed(0)
        config = Config(temperature=temperature, epsilon_base=1e-9, **SMALL)  # type: ignore[arg-type]
        policy = CommunicationPolicy(make_network(config, TEAM), config, TEAM, PolicyContext(lanes=4_000))
        action = policy.act(obs, policy.initial_state(4_000), np.ones(4_000, np.bool_), explore).action
        found = (action[:, 0, None] == np.arange(TEAM.action_nvec[0])).mean(axis=0)
        values = policy._q[0, 0]
        expected = (values / temperature).softmax(0) if temperature else (values == values.max()).float()
        assert np.allclose(found, expected.numpy(), atol=0.04)
        assert temperature == 0 or 0.1 < found.max() < 0.9


def test_without_communication_agents_are_independent() -> None:
    for communication, same in (("none", True), ("neighbours", False)):
        torch.manual_seed(0)
        network = make_network(Config(communication=communication, **SMALL), TEAM)  # type: ignore[arg-type]
        if network.communication is not None:  # new agents say nothing
            torch.nn.init.normal_(network.communication.added.weight)
        obs = rows(np.ones((1, AGENTS), np.bool_), np.zeros((1, AGENTS)))
        other = obs.copy()
        other[0, :SEES] += 1.0  # agent 0 sees something else
        state = torch.zeros(1, network.state_size)
        one, two = (network.q_values(torch.from_numpy(each), state, torch.zeros(1, AGENTS))[0] for each in (obs, other))
        assert torch.equal(one[:, 1:], two[:, 1:]) == same
        assert ("heard" in network.metrics) != same


def test_an_encoder_of_the_users() -> None:
    """It sees one agent at a time."""
    config = Config(network="tests.own_code:make_torso", **SMALL)
    network = make_network(config, TEAM)
    obs = torch.from_numpy(rows(np.ones((2, AGENTS), np.bool_), np.zeros((2, AGENTS))))
    values, _ = network.q_values(obs, torch.zeros(2, network.state_size), torch.zeros(2, AGENTS))
    assert values.shape == (2, AGENTS, ACTIONS)


def test_learns_a_fixed_batch() -> None:
    torch.manual_seed(0)
    config = Config(learning_rate=3e-3, target_period=1000, **SMALL)
    learner, sample = ALGORITHM.make_learner(config, TEAM, LearnerContext(torch.device("cpu"))), team_sample()
    losses = [float(learner.step(sample).metrics["loss"]) for _ in range(200)]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("communication", ["neighbours", "causal", "none"])
@pytest.mark.parametrize("playing", [1, 3, 6])
def test_agents_who_do_not_play_are_left_out_of_a_batch(communication: Any, playing: int) -> None:
    """The loss, the priorities and the gradient are those of the whole rows."""
    kwargs = {"agents": playing, "max_agents": 6, "size": 8, "positions": True}
    env = make_env(EnvSettings(id="shoal/PathFinding-v0", kwargs=kwargs), 4, 0)
    rng, steps, lanes = np.random.default_rng(playing), 5, 4
    actions = rng.integers(0, 5, (steps, lanes, 6))
    obs = np.stack([env.reset(), *(env.step(action).obs for action in actions)])
    env.close()
    none = np.zeros((steps, lanes), np.bool_)
    before = np.concatenate((rng.uniform(-1, 1, (lanes, 8 * 6)), rng.integers(0, 5, (lanes, 6))), 1).astype("f2")
    data = Sequence(
        obs, actions, none.astype("f4"), none, none, np.zeros((steps + 1, lanes), np.uint8), {"state": before}
    )
    whole = to_tensors(Sample(data, Keys.empty(lanes), np.ones(lanes), lanes, 0.0))
    assert isinstance(whole, RecurrentBatch)
    config = Config(communication=communication, channels=4, blocks=1, cell_size=8, head_size=4, unroll=5)
    torch.manual_seed(0)
    network, found = make_network(config, env.spec), []
    target, trim = make_network(config, env.spec), OnlyThoseWhoPlay(network.parts)
    cut = trim(whole)
    assert network.parts.sizes == (1, 2, 4, 6)
    assert cut.action.shape[2] == {1: 1, 3: 4, 6: 6}[playing]
    assert cut is whole or cut.obs.shape[2] < whole.obs.shape[2] * cut.action.shape[2] / 6 + 1
    for batch in (whole, cut):
        network.zero_grad()
        loss = sequence_loss(network, target, batch, config, read_steps)
        loss.loss.mean().backward()
        gradient = torch.cat([one.grad.flatten() for one in network.parameters() if one.grad is not None])
        assert loss.td_error is not None
        found.append(torch.cat((loss.loss.detach(), loss.td_error.detach(), gradient, loss.metrics["q_mean"][None])))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_a_cut_grows_with_the_team_and_never_shrinks() -> None:
    trim, sizes = OnlyThoseWhoPlay(make_network(Config(**SMALL), TEAM).parts), []
    for there in (1, 2, 1, 0, 3, 1):
        present = np.broadcast_to(np.arange(AGENTS) < there, (6, 2, AGENTS))
        batch = to_tensors(team_sample(batch=2))._replace(obs=torch.from_numpy(rows(present, np.zeros(present.shape))))
        made = trim(batch)
        sizes.append(made.action.shape[2])
        assert made.state.shape[1] == sizes[-1] * 9 and made.obs.shape[2] == sizes[-1] * (SEES + sizes[-1] + 1)
    assert sizes == [1, 2, 2, 2, 3, 3]


def test_what_the_map_shows_is_where_agents_are() -> None:
    """Positions fit channel 0, so that the causal mask erases the right agent."""
    kwargs = {"agents": 6, "size": 8, "density": 0.1, "positions": True}
    env = make_env(EnvSettings(id="shoal/PathFinding-v0", kwargs=kwargs), 4, 0)
    config = Config(communication="causal", channels=4, blocks=1, cell_size=8)
    policy = CommunicationPolicy(make_network(config, env.spec), config, env.spec, PolicyContext(lanes=4))
    obs, state, first = env.reset(), policy.initial_state(4), np.ones(4, np.bool_)
    for _ in range(5):
        rows, parts = torch.from_numpy(obs), policy.module.parts
        position = parts.part(rows, "position").long()
        shown = parts(rows).agents[:, :, 0]
        for world, i, j in itertools.product(range(4), range(6), range(6)):
            down, right = (position[world, j] - position[world, i]).tolist()
            if i != j and max(abs(down), abs(right)) <= 4:
                assert shown[world, i, 4 + down, 4 + right]
        decision = policy.act(obs, state, first, explore=True)
        obs, state, first = env.step(decision.action).obs, decision.state, np.zeros(4, np.bool_)
    env.close()
    with pytest.raises(ConfigError, match=r"learner.compile = true cannot be used with communication = causal"):
        ALGORITHM.make_learner(config, env.spec, LearnerContext(torch.device("cpu"), compile=True))


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"communication = causal is for path finding.*Team-v0 does not say"):
        make_network(Config(communication="causal", **SMALL), TEAM)
    with pytest.raises(ValueError, match="normalize_observations = true cannot be used"):
        Config(normalize_observations=True)
    alone = replace(TEAM, agents=0, obs_parts=(), action_nvec=(), num_actions=2, env_id="CartPole-v1")
    with pytest.raises(ConfigError, match="comm-dqn learns for several agents; CartPole-v1 has one"):
        require_agents(alone, ALGORITHM)
