"""PPO: its loss by hand, and what becomes of a rollout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_actor_critic import CONTINUOUS, CPU, DISCRETE, play, sequences

from shoal.algorithms import actor_critic as common
from shoal.algorithms import impala, ppo
from shoal.algorithms.batches import Minibatch
from shoal.ops import discounts, gae
from shoal.types import EnvSpec

SEVERAL = EnvSpec("Fake-v2", (3,), "float32", 1, 0, (2,), action_nvec=(2, 3))


class Two(torch.nn.Module):
    """Stands in for a network: two actions with logits 0 and `logit`, and a value, the same everywhere."""

    value_scale, value_norm, norm, least_deviation = 1.0, None, None, 0.0

    def __init__(self, logit: float, value: float) -> None:
        super().__init__()
        self.logit, self.value = torch.tensor(logit, requires_grad=True), torch.tensor(value, requires_grad=True)

    def unroll(self, obs: torch.Tensor, state: Any = None, first: Any = None) -> Any:
        logits = torch.stack((torch.zeros(()), self.logit)).expand(*obs.shape[:2], 2)
        return logits, self.value.expand(obs.shape[:2])


def rows(log_prob: list[float], advantage: list[float], **other: Any) -> Minibatch:
    """Rows in which the second action was taken."""
    one = torch.ones(1, len(log_prob))
    given = {
        "obs": one[..., None],
        "action": one.long(),
        "log_prob": torch.tensor([log_prob]),
        "weight": one,
        "advantage": torch.tensor([advantage]),
        "target": 2 * one,
        "value": 0 * one,
        "mask": one,
        "first": one < 0,
        "clip": torch.tensor(0.2),
        "state": None,
    }
    return Minibatch(**{**given, **other})


def loss_of(network: Two, batch: Minibatch, **settings: Any) -> dict[str, float]:
    config = ppo.Config(normalize_advantages=False, entropy_cost=0.1, **settings)
    found = ppo.ppo_loss(network, batch, config, common.make_distribution(DISCRETE))  # type: ignore[arg-type]
    found.loss.backward()
    return {name: float(one.detach()) for name, one in {"loss": found.loss, **found.metrics}.items()}


def test_the_loss_by_hand() -> None:
    """pi(a) = 1/2. Recorded 1/2, 1/4 and 1/1.25: ratios 1, 2 and 0.625, clipped at 1.2 and 0.8.

    Advantage 3 at ratio 1: 3. Advantage 1 at ratio 2: 1.2. Advantage -1 at 0.625: min(-0.625, -0.8) = -0.8.
    """
    network = Two(0.0, 1.0)
    found = loss_of(network, rows([math.log(p) for p in (0.5, 0.25, 0.8)], [3.0, 1.0, -1.0]))
    assert found["policy_loss"] == pytest.approx(-(3 + 1.2 - 0.8) / 3)
    assert found["value_loss"] == pytest.approx(0.5)
    assert found["entropy"] == pytest.approx(math.log(2))
    assert found["loss"] == pytest.approx(-(3 + 1.2 - 0.8) / 3 + 0.5 * 0.5 - 0.1 * math.log(2))
    assert found["clipped"] == pytest.approx(2 / 3)
    kl = sum(ratio - 1 - math.log(ratio) for ratio in (1.0, 2.0, 0.625)) / 3
    assert found["policy_kl"] == pytest.approx(kl, rel=1e-5)
    # Only the first row moves the policy: d log pi(a) / d logit = 1/2. The entropy is at its largest.
    assert float(network.logit.grad) == pytest.approx(-3 / 3 / 2)  # type: ignore[arg-type]


def test_a_step_of_an_older_policy_counts_as_its_weight() -> None:
    """Twice the first row, a quarter of the second: -(2 * 3 + 0.25 * 1.2) / 2."""
    batch = rows([math.log(0.5), math.log(0.25)], [3.0, 1.0], weight=torch.tensor([[2.0, 0.25]]))
    assert loss_of(Two(0.0, 1.0), batch)["policy_loss"] == pytest.approx(-(2 * 3 + 0.25 * 1.2) / 2)


def test_ratios_begin_at_one_also_for_the_rollout_of_an_older_policy() -> None:
    """And the weights are how much likelier the present policy is to act so, 2 at most."""
    config, distribution = ppo.Config(epochs=1, minibatches=1), common.make_distribution(DISCRETE)
    network, batch, _ = divided(config, DISCRETE)
    torch.manual_seed(2)
    older = common.make_network(config, DISCRETE)
    with torch.no_grad():
        behaviour = 1000 * older.unroll(batch.obs, batch.state, batch.first)[0][:-1]
    (part,) = ppo.Rollout(network, config, distribution)(batch._replace(behaviour=behaviour), 0).batches
    metrics = ppo.ppo_loss(network, part, config, distribution).metrics
    assert float(metrics["policy_kl"].detach()) == pytest.approx(0.0, abs=1e-5) and metrics["clipped"] == 0
    acted = distribution.log_prob(behaviour, batch.action).flatten()
    wanted = (part.log_prob.flatten() - acted).exp()
    assert wanted.max() > 2.0 and wanted.min() < 0.9
    torch.testing.assert_close(part.weight.flatten(), wanted.clamp(max=2.0))


def test_rows_that_hold_no_step_change_nothing() -> None:
    one = loss_of(Two(0.3, 1.0), rows([-1.0, -1.0], [3.0, 1.0]))
    other = loss_of(Two(0.3, 1.0), rows([-1.0, -1.0, -9.0], [3.0, 1.0, 50.0], mask=torch.tensor([[1.0, 1.0, 0.0]])))
    assert one == pytest.approx(other)


def test_values_are_clipped_around_those_before() -> None:
    """Target 2, before 0, now 1: clipped at 0.5, the larger error counts, and it has no gradient."""
    network = Two(0.0, 1.0)
    assert loss_of(network, rows([-1.0], [0.0]), value_clip=0.5)["value_loss"] == pytest.approx(0.5 * 1.5**2)
    assert float(network.value.grad) == 0  # type: ignore[arg-type]
    network = Two(0.0, 0.25)
    assert loss_of(network, rows([-1.0], [0.0]), value_clip=0.5)["value_loss"] == pytest.approx(0.5 * 1.75**2)
    assert float(network.value.grad) == pytest.approx(-0.5 * 1.75)  # type: ignore[arg-type]


def divided(config: ppo.Config, spec: EnvSpec, lanes: int = 4, updates: int = 0) -> tuple[Any, Any, list[Minibatch]]:
    """A network, its own rollout, and the minibatches."""
    sample = play(config, spec, 6, lanes, algorithm=ppo)
    torch.manual_seed(1)  # as `play` did
    network = common.make_network(config, spec)
    batch = sequences(sample)
    made = ppo.Rollout(network, config, common.make_distribution(spec))(batch, updates)
    return network, batch, list(made.batches)


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, SEVERAL])
@pytest.mark.parametrize("lstm", [0, 8])
def test_the_policy_that_acted_has_ratios_of_one(spec: EnvSpec, lstm: int) -> None:
    """Whatever the kind of action, and with the LSTM's state reset where an episode begins."""
    config = ppo.Config(lstm=lstm, epochs=1, minibatches=2)
    network, _, batches = divided(config, spec)
    assert len(batches) == 2
    for batch in batches:
        assert batch.obs.shape[:2] == ((6, 2) if lstm else (1, 12))
        metrics = ppo.ppo_loss(network, batch, config, common.make_distribution(spec)).metrics
        assert float(metrics["policy_kl"].detach()) == pytest.approx(0.0, abs=1e-5) and metrics["clipped"] == 0
        torch.testing.assert_close(batch.weight, torch.ones_like(batch.weight))


@pytest.mark.parametrize("lstm", [0, 8])
def test_every_epoch_learns_from_every_row_once(lstm: int) -> None:
    config = ppo.Config(lstm=lstm, epochs=3, minibatches=2)
    network, batch, made = divided(config, DISCRETE)
    values = network.unroll(batch.obs, batch.state, batch.first).value.detach()
    wanted = gae(values, batch.reward, discounts(batch.terminated, config.gamma), batch.mask, lambda_=0.95)
    rows = torch.stack((wanted.advantages, wanted.targets, batch.obs[:-1, :, 0], batch.mask))  # [4, T, B]
    for epoch in range(3):
        mine = made[2 * epoch : 2 * epoch + 2]
        found = torch.cat([torch.stack((one.advantage, one.target, one.obs[..., 0], one.mask)) for one in mine], 2)
        assert sorted(map(tuple, found.flatten(1).T.tolist())) == sorted(map(tuple, rows.flatten(1).T.tolist()))
    orders = [one.obs.flatten().tolist() for one in made[::2]]
    assert orders[0] != orders[1] != orders[2], "another order in each epoch"
    again = divided(config, DISCRETE)[2]
    assert all(torch.equal(one.obs, other.obs) for one, other in zip(made, again, strict=True)), "seeded"
    assert not torch.equal(made[0].obs, divided(config, DISCRETE, updates=1)[2][0].obs)


def test_minibatches_have_one_size() -> None:
    """24 rows in 5 parts: 4 are left out. More parts than sequences: one sequence each."""
    assert [one.draws for one in divided(ppo.Config(epochs=1, minibatches=5), DISCRETE)[2]] == [4] * 5
    assert [one.draws for one in divided(ppo.Config(epochs=1, minibatches=9, lstm=8), DISCRETE)[2]] == [1] * 4


def test_schedules_count_rollouts() -> None:
    config = ppo.Config(learning_rate=1e-3, schedule_updates=10, surrogate_clip_end=0.1)
    clips = [float(divided(config, DISCRETE, updates=updates)[2][0].clip) for updates in (0, 5, 10, 20)]
    assert clips == pytest.approx([0.2, 0.15, 0.1, 0.1])
    learner: Any = ppo.make_learner(config, DISCRETE, CPU)
    for seed in range(6):
        learner.step(play(config, DISCRETE, 6, 4, seed, ppo))
    assert learner._parts[0].optimizer._rate == pytest.approx(0.5e-3)


def test_a_rollout_is_left_when_the_policy_has_moved_enough() -> None:
    made = {}
    for target in (None, 1e-6, 1e9):
        config = ppo.Config(target_kl=target, epochs=3, minibatches=2)
        torch.manual_seed(3)
        learner = ppo.make_learner(config, DISCRETE, CPU)
        made[target] = float(learner.step(play(config, DISCRETE, 6, 4, algorithm=ppo)).metrics["minibatches"])
    assert made == {None: 6, 1e-6: made[1e-6], 1e9: 6} and 1 <= made[1e-6] < 6


def test_returns_of_any_size_are_learned_alike() -> None:
    """Values are normalised from the first rollout on, so the same rollout with 1,000 times the rewards gives the same
    policy."""
    weights = []
    for scale in (1.0, 1000.0):
        config = ppo.Config(normalize_values=True, gae_lambda=1.0, gamma=0.9)
        torch.manual_seed(3)
        learner: Any = ppo.make_learner(config, DISCRETE, CPU)
        sample = play(config, DISCRETE, 6, 4, algorithm=ppo)
        sample.data.terminated[-1] = True  # no bootstrapping from values that know no scale yet
        sample.data.reward[:] *= scale
        learner.module.value_head.weight.data.zero_()
        learner.step(sample)
        weights.append(learner.module.policy_head.weight.detach().clone())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("lstm", [0, 8])
def test_a_learner_goes_on_where_it_was(lstm: int) -> None:
    config = ppo.Config(lstm=lstm, normalize_values=True, normalize_observations=True, epochs=2, minibatches=2)
    samples = [play(config, DISCRETE, 6, 4, seed, ppo) for seed in range(4)]
    torch.manual_seed(5)
    one, other = (ppo.make_learner(config, DISCRETE, CPU) for _ in range(2))
    for sample in samples[:2]:
        one.step(sample)
    saved = one.state()
    other.load_state(saved._replace(tensors={name: tensor.clone() for name, tensor in saved.tensors.items()}))
    for sample in samples[2:]:
        for learner in (one, other):
            learner.step(sample)
    for mine, theirs in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_smaller_rollout() -> None:
    """Of the actors that were done: arrays that are not contiguous."""
    config = ppo.Config(minibatches=2)
    sample = play(config, DISCRETE, 6, 4, algorithm=ppo)
    data = sample.data
    extras = {name: one[:, :3] for name, one in data.extras.items()}  # type: ignore[union-attr]
    narrowed = data._replace(**{name: getattr(data, name)[:, :3] for name in data._fields[:-1]}, extras=extras)
    result = ppo.make_learner(config, DISCRETE, CPU).step(sample._replace(data=narrowed, fresh=np.ones(3, np.bool_)))
    assert math.isfinite(result.metrics["loss"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"lstm": 8, "burn_in": 2}, "burn_in has no use"), ({"surrogate_clip_end": 0.1}, "never reached")],
)
def test_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ppo.Config(**settings)


def test_other_experience_is_refused() -> None:
    assert impala.ALGORITHM.synchronous and ppo.ALGORITHM.synchronous
    with pytest.raises(Exception, match=r"not from fifo, uniform: use replay=\[\{type: rollout\}\], or impala"):
        ppo.ALGORITHM.check_replay(ppo.Config(), ("fifo", "uniform"))
