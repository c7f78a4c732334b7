"""Several learners make the update that one would make of all their batches.

The ranks are threads here; `tests/loops/test_team.py` has processes and gloo.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.algorithms.test_actor_critic import DISCRETE, play
from tests.algorithms.test_comm_dqn import team_sample
from tests.algorithms.test_continuous import sample_of
from tests.algorithms.test_options import kind_of
from tests.algorithms.test_recurrent_q import SMALL as RECURRENT
from tests.algorithms.test_recurrent_q import play as play_recurrent
from tests.algorithms.test_value_based import make_sample

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.networks.normalization import ValueNorm
from shoal.types import Keys, Sample, Sequence

CPU = torch.device("cpu")
NORMALIZED = {"normalize_observations": True, "normalize_values": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name, one in ALGORITHMS.items() if one.pushes is None},  # a3c has one server
    "apex-dqn, normalised": ("apex-dqn", NORMALIZED),
    "comm-dqn, normalised": ("comm-dqn", {"normalize_values": True, "unroll": 8}),
    "r2d2, normalised": ("r2d2", {**NORMALIZED, "value_rescaling": False, "cell": "gru"}),
    "sac, normalised": ("sac", {"normalize_observations": True}),
    "impala, everything": ("impala", {**NORMALIZED, "normalize_advantages": True, "laser": {"enabled": True}}),
    "impala, lstm": ("impala", {"lstm": 8, "burn_in": 2, "unroll": 4}),
    "impact, normalised": ("impact", NORMALIZED),
    "ppo": ("ppo", {"epochs": 2}),
    "ppo, normalised": ("ppo", {**NORMALIZED, "target_kl": 0.003, "value_clip": 0.2}),
    "ppo, lstm": ("ppo", {"lstm": 8, "epochs": 1}),
}
SCALE = {"learning_rate": 1e-3}


class Threads:
    """An exchange between threads."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._given: list[torch.Tensor | None] = [None] * ranks
        self.members = [Member(self, rank, ranks) for rank in range(ranks)]

    def total(self, rank: int, vector: torch.Tensor) -> torch.Tensor:
        self._given[rank] = vector.detach().clone()
        self._barrier.wait()
        given = [one for one in self._given if one is not None]
        assert len({(one.shape, one.dtype) for one in given}) == 1, "the ranks exchange different things"
        result = torch.stack(given).sum(0)
        self._barrier.wait()
        return vector.copy_(result)

    def abort(self) -> None:
        self._barrier.abort()


class Member:
    def __init__(self, group: Threads, rank: int, ranks: int) -> None:
        self.group, self.rank, self.ranks, self.calls = group, rank, ranks, 0

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.group.total(self.rank, vector)


def sample_for(name: str, case: dict[str, Any], seed: int, dtype: Any) -> Sample:
    """Eight draws; in sequences another number of rows is masked in each."""
    actions = ALGORITHMS[name].actions
    if name == "r2d2":
        config = ALGORITHMS[name].config(**RECURRENT, **case)
        return _with_masks(play_recurrent(config, 8, 8, seed)[0], seed, dtype)
    if name == "comm-dqn":
        return _with_masks(team_sample(8, seed, steps=8), seed, dtype)
    if actions != "any":
        sample = make_sample(8, seed) if actions == "discrete" else sample_of(8, seed)
        data = type(sample.data)(*(one.astype(dtype) if one.dtype == np.float32 else one for one in sample.data))
        return sample._replace(data=data, keys=Keys.empty(8))
    config = ALGORITHMS[name].config(**{key: value for key, value in case.items() if key in ("lstm",)})
    return _with_masks(play(config, DISCRETE, 6, 8, seed, algorithm=_Wrapped(name)), seed, dtype)


def _with_masks(sample: Sample, seed: int, dtype: Any) -> Sample:
    """The same with other final rows."""
    data = sample.data
    assert isinstance(data, Sequence)
    boundary = np.zeros_like(data.boundary)
    for lane in range(8):  # 0 to 3 rows of a lane hold no step
        boundary[np.random.default_rng(seed + lane).permutation(6)[: (lane + seed) % 4], lane] = 1
    extras = {key: one.astype(dtype) if one.dtype == np.float32 else one for key, one in data.extras.items()}
    data = data._replace(obs=data.obs.astype(dtype), reward=data.reward.astype(dtype), boundary=boundary, extras=extras)
    return sample._replace(data=data)


class _Wrapped:
    def __init__(self, name: str) -> None:
        self.ALGORITHM = ALGORITHMS[name]


def part_of(sample: Sample, places: slice) -> Sample:
    """Some of its draws."""
    if isinstance(sample.data, Sequence):
        extras = {key: one[places] if key == "state" else one[:, places] for key, one in sample.data.extras.items()}
        data: Any = type(sample.data)(*(one[:, places] for one in sample.data[:-1]), extras)
    else:
        data = type(sample.data)(*(one[places] for one in sample.data))
    fresh = sample.fresh[places] if len(sample.fresh) else sample.fresh
    return sample._replace(data=data, probabilities=sample.probabilities[places], fresh=fresh)


def learner_of(name: str, case: dict[str, Any], exchange: Any = None, **how: Any) -> Learner:
    torch.manual_seed(3)
    spec, small = kind_of(name)
    config = ALGORITHMS[name].config(**{**small, **SCALE, **case})
    return ALGORITHMS[name].make_learner(config, spec, LearnerContext(CPU, exchange=exchange, **how))


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that depends on the row and not on its place in the batch."""
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.sin(1e4 * x + 1.0))


@pytest.fixture
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.dtype]:
    if request.param == torch.float64:  # networks leave autocast with `float`
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def together(group: Threads, work: Callable[[int], Any]) -> list[Any]:
    """The work of all ranks at the same time."""
    with ThreadPoolExecutor(len(group.members)) as pool:
        running = [pool.submit(work, rank) for rank in range(len(group.members))]
        for one in running:
            if one.exception():
                group.abort()
        return [one.result() for one in running]


def tensors(learner: Learner) -> torch.Tensor:
    state = learner.state().tensors
    return torch.cat([state[name].flatten().double() for name in sorted(state)])


@pytest.mark.parametrize(("dtype", "updates", "bound"), [(torch.float64, 100, 1e-10), (torch.float32, 1, 1e-5)],
                         ids=["float64", "float32"], indirect=["dtype"])  # fmt: skip
@pytest.mark.parametrize("shares", [(5, 3), (5, 0, 3)], ids=["two", "three, one without a batch"])
@pytest.mark.parametrize("case", CASES)
def test_several_learners_make_the_update_of_one(
    case: str, shares: tuple[int, ...], dtype: torch.dtype, updates: int, bound: float, noise: None
) -> None:
    name, settings = CASES[case]
    precision = np.float64 if dtype == torch.float64 else np.float32
    samples = [sample_for(name, settings, seed, precision) for seed in range(8)]
    alone = learner_of(name, settings)
    group = Threads(len(shares))
    several = [learner_of(name, settings, member) for member in group.members]
    ends = np.cumsum((0, *shares))

    def work(rank: int) -> Any:
        own = slice(ends[rank], ends[rank + 1])
        results = [
            several[rank].step(part_of(samples[update % 8], own) if shares[rank] else None) for update in range(updates)
        ]
        return results[-1].priorities

    priorities = together(group, work)
    expected = [alone.step(samples[update % 8]) for update in range(updates)][-1].priorities
    torch.testing.assert_close(tensors(several[0]), tensors(alone), rtol=bound, atol=bound)
    for one in several[1:]:
        assert torch.equal(tensors(one), tensors(several[0])), "the ranks differ"
    if expected is not None:
        found = np.concatenate([one for one in priorities if one is not None])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_learner_without_a_batch_knows_the_gradient(case: str) -> None:
    """Also in its first update: before it publishes, it looks whether the weights are finite."""
    name, settings = CASES[case]
    group = Threads(2)
    several = [learner_of(name, settings, member) for member in group.members]
    sample = sample_for(name, settings, 1, np.float32)
    results = together(group, lambda rank: several[rank].step(sample if rank else None))
    norms = {key for key in results[1].metrics if key.endswith("gradient_norm")}
    assert norms and norms <= set(results[0].metrics)


@pytest.mark.parametrize("mean", [0.0, 1e4, 1e6])
def test_returns_of_several_learners_around_a_large_mean(mean: float) -> None:
    returns, norms = mean + torch.randn(20, 8), (ValueNorm(), ValueNorm())
    norms[1].defer()
    for norm in norms:
        norm.observe(returns, torch.ones_like(returns))
    norms[1].agree(lambda sums: sums)
    torch.testing.assert_close(norms[1].variance, norms[0].variance, rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("name", ["apex-dqn", "impala", "ppo", "sac"])
def test_gradients_are_compiled_with_several_learners_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.algorithms.compiled.BACKEND", {"backend": "aot_eager"})
    case = {"minibatches": 1, "epochs": 1} if name == "ppo" else {}  # else parts are of many sizes
    samples = [sample_for(name, case, seed, np.float32) for seed in range(8)]
    found = []
    for compiled in (False, True):
        group = Threads(2)
        several = [learner_of(name, case, member, compile=compiled) for member in group.members]
        for seed, sample in enumerate(samples):
            for rank, learner in enumerate(several):  # torch.compile is for one thread at a time
                member: Any = group.members[rank]
                member.total = lambda vector: vector.mul_(2)  # as if the other one had the same batch
                torch.manual_seed(seed)
                learner.step(part_of(sample, slice(0, 5)))
        found.append(tensors(several[0]))
        traced: Any = several[0]
        assert all((one.gradient._made is not None) == compiled for one in traced._parts if compiled)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)
