"""A3C: k gradients are one gradient of all rollouts; what age does to a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_actor_critic import CONTINUOUS, CPU, DISCRETE, play
from torch import nn

from shoal.algorithms import a3c, impala
from shoal.algorithms.pushes import PushLearner, count_steps, push_size
from shoal.config.load import settings_for
from shoal.errors import ConfigError
from shoal.types import EnvSpec, Gradients, Keys, Sample, Sequence

SEVERAL = EnvSpec("Fake-v2", (3,), "float32", 1, 0, (2,), action_nvec=(2, 3))


def learner_of(spec: EnvSpec = DISCRETE, **settings: Any) -> PushLearner:
    torch.manual_seed(3)
    learner = a3c.make_learner(a3c.Config(hidden=(8,), **settings), spec, CPU)
    assert isinstance(learner, PushLearner)
    return learner


def rollout(seed: int, spec: EnvSpec = DISCRETE, lanes: int = 2, steps: int = 7, **settings: Any) -> Sample:
    """With an episode that ends in it; an `uneven` one has fewer steps."""
    sample = play(impala.Config(**settings), spec, steps, lanes, seed)
    if seed % 2:  # other workers' episodes end elsewhere
        sample.data.boundary[:] = 0  # type: ignore[union-attr]
    return sample


def pushed(pushes: list[np.ndarray], rows: list[int], staleness: list[int] | None = None) -> Sample:
    data = Gradients(np.stack(pushes), np.array(rows), np.array(staleness or [0] * len(rows)))
    return Sample(data, Keys.empty(0), np.ones(len(rows)), len(rows), 0.0)


def together(samples: list[Sample]) -> Sample:
    """All rollouts as one batch."""
    data = [sample.data for sample in samples]
    assert all(isinstance(one, Sequence) for one in data)
    columns = {name: np.concatenate([getattr(one, name) for one in data], axis=1) for name in Sequence._fields[:-1]}
    extras = {
        name: np.concatenate([one.extras[name] for one in data], axis=0 if name == "state" else 1)  # type: ignore[union-attr]
        for name in data[0].extras  # type: ignore[union-attr]
    }
    lanes = columns["reward"].shape[1]
    return Sample(Sequence(**columns, extras=extras), Keys.empty(0), np.ones(lanes), lanes, 0.0, np.ones(lanes, bool))


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().double().flatten() for one in module.state_dict().values()])


@pytest.mark.parametrize("spec", [DISCRETE, SEVERAL, CONTINUOUS], ids=["discrete", "several", "continuous"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "rmsprop"}, {"normalize_values": True, "normalize_observations": True}, {"lstm": 4}],
    ids=str,
)
def test_gradients_of_k_workers_are_the_gradient_of_all_their_rollouts(spec: EnvSpec, settings: dict[str, Any]) -> None:
    """A2C: three workers of one version, whose rollouts differ in the number of steps, against one learner."""
    one, server, worker = (learner_of(spec, **settings) for _ in range(3))
    for update in range(4):
        samples = [rollout(10 * update + seed, spec, lanes, **({"lstm": 4} if "lstm" in settings else {}))
                   for seed, lanes in enumerate((2, 3, 1))]  # fmt: skip
        worker.module.load_state_dict(server.module.state_dict())  # what the weight board does
        rows = [count_steps(sample.data) for sample in samples]  # type: ignore[arg-type]
        assert len(set(rows)) == 3
        found = server.step(pushed([worker.push(sample) for sample in samples], rows)).metrics
        expected = one.step(together(samples)).metrics
        torch.testing.assert_close(weights(server.module), weights(one.module), rtol=1e-6, atol=1e-6)
        for name in ("loss", "policy_loss", "value_loss", "entropy", "gradient_norm"):
            assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-4, abs=1e-5), name
    assert server.learner.state().tensors["optimizer.step"] == 4


def test_a_push_has_the_size_that_boards_are_made_for() -> None:
    for settings in ({}, {"normalize_observations": True}, {"lstm": 4}):
        learner = learner_of(**settings)
        sample = rollout(1, **({"lstm": 4} if "lstm" in settings else {}))
        vector = learner.push(sample)
        assert vector.shape == (push_size(learner.module),) and vector.dtype == np.float32


def test_a_worker_changes_nothing() -> None:
    learner = learner_of(normalize_values=True, normalize_observations=True)
    before = weights(learner.module)
    learner.push(rollout(1))
    assert torch.equal(before, weights(learner.module))


def test_an_old_gradient_makes_a_smaller_step() -> None:
    """1 / n of it, whatever the optimiser: of two, the older one also counts less."""
    samples = [rollout(0), rollout(1)]
    moved = {}
    for discount in (False, True):
        for staleness in ([0, 0], [1, 1], [4, 4], [1, 4]):
            learner = learner_of(discount_staleness=discount)
            pushes, before = [learner.push(sample) for sample in samples], weights(learner.module)
            learner.step(pushed(pushes, [10, 10], staleness))
            moved[discount, tuple(staleness)] = weights(learner.module) - before
    whole = moved[False, (0, 0)]
    assert torch.equal(moved[False, (4, 4)], whole) and torch.equal(moved[True, (0, 0)], whole)
    torch.testing.assert_close(moved[True, (1, 1)], whole)
    torch.testing.assert_close(moved[True, (4, 4)], whole / 4, rtol=1e-4, atol=1e-7)
    assert not torch.equal(moved[True, (1, 4)], moved[False, (1, 4)])
    learner = learner_of(discount_staleness=True)
    learner.step(pushed([learner.push(sample) for sample in samples], [10, 10], [1, 4]))


def test_the_learner_goes_on_from_its_state() -> None:
    one, other = learner_of(normalize_observations=True), learner_of(normalize_observations=True)
    one.step(rollout(0))
    state = one.state()
    other.load_state(state._replace(tensors={name: value.clone() for name, value in state.tensors.items()}))
    for learner in (one, other):
        learner.step(rollout(1))
    assert torch.equal(weights(one.module), weights(other.module))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["algorithm.k=4", "actors=3"], "algorithm.k = 4 is more than actors = 3.*on_full to newest"),
        (["replay=[{type: prioritized}]"], "not from prioritized.*type: rollout"),
        (["replay=[{type: rollout, lag: 1}]"], "replay.selectors.lag cannot be changed with a3c"),
        (["replay=[{type: rollout, share: 0.5}]"], "replay.selectors.share cannot be changed with a3c"),
        (["actor.inference=served"], "served does not work with a3c"),
        (["learner.device=cuda"], "learner.device cannot be changed with a3c.*auto"),
        (["actor.precision=bfloat16"], "actor.precision cannot be changed with a3c"),
        (["share.registry=somewhere"], "share.registry cannot be changed with a3c"),
        (["learner.publish_every=4"], "learner.publish_every = 4 cannot be used"),
        (["algorithm.lstm=8", "algorithm.burn_in=4"], "burn_in has no use in a3c"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_work_is_refused_by_name(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        settings_for("CartPole-v1", "a3c", settings)


def test_more_gradients_than_workers_work_where_nobody_waits() -> None:
    chosen = settings_for("CartPole-v1", "a3c", ["k=16", "on_full=newest", "actors=3"])
    assert a3c.ALGORITHM.pushes(chosen.algorithm, 3).k == 16  # type: ignore[misc]
    assert a3c.Config(k="actors").rules(5).k == 5
