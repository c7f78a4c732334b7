"""Distributions over actions against hand-worked numbers, torch's own, and the frequencies of samples."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as reference

from shoal.ops import ActionDistribution, Categorical, DiagonalGaussian, MultiCategorical

ALL: list[ActionDistribution] = [Categorical(4), MultiCategorical((1, 3)), DiagonalGaussian(2)]  # four parameters each


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(params: Tensor) -> reference.Independent:
    mean, log_std = params.chunk(2, -1)
    return reference.Independent(reference.Normal(mean, log_std.exp()), 1)


def test_categorical_by_hand() -> None:
    # Probabilities 1/4, 3/4 and 1/2, 1/2
    p, q = torch.tensor([1.0, 3.0]).log(), torch.tensor([5.0, 5.0])
    two = Categorical(2)
    assert two.parameters == 2
    assert float(two.log_prob(p, torch.tensor(1))) == pytest.approx(math.log(0.75))
    assert float(two.entropy(q)) == pytest.approx(math.log(2.0))
    # 1/4 log(1/2) + 3/4 log(3/2)
    assert float(two.kl(p, q)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert two.mode(p).item() == 1


def test_several_choices_by_hand() -> None:
    # Probabilities 1/4, 3/4 of the first choice, 1/5, 1/5, 3/5 of the second
    p, q = torch.tensor([1.0, 3.0, 1.0, 1.0, 3.0]).log(), torch.zeros(5)
    both = MultiCategorical((2, 3))
    assert both.parameters == 5
    assert float(both.log_prob(p, torch.tensor([1, 0]))) == pytest.approx(math.log(0.75 * 0.2))
    assert float(both.entropy(q)) == pytest.approx(math.log(6.0))
    second = 0.4 * math.log(0.6) + 0.6 * math.log(1.8)
    assert float(both.kl(p, q)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5) + second)
    assert both.mode(p).tolist() == [1, 2]


@given(nvec=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 2**31))
def test_several_choices_equal_torchs(nvec: list[int], seed: int) -> None:
    p, q = 2 * draw(seed, 2, 3, 2, sum(nvec))  # [3, 2, P] each
    mine = MultiCategorical(tuple(nvec))
    theirs, other = ([reference.Categorical(logits=part) for part in one.split(nvec, -1)] for one in (p, q))
    action = mine.sample(p, torch.Generator().manual_seed(seed))
    assert action.shape == (3, 2, len(nvec)) and action.dtype == torch.int64
    assert bool((action < torch.tensor(nvec)).all())
    log_probs = [one.log_prob(chosen) for one, chosen in zip(theirs, action.unbind(-1), strict=True)]
    torch.testing.assert_close(mine.log_prob(p, action), torch.stack(log_probs).sum(0))
    torch.testing.assert_close(mine.entropy(p), torch.stack([one.entropy() for one in theirs]).sum(0))
    divergences = [reference.kl_divergence(*pair) for pair in zip(theirs, other, strict=True)]
    torch.testing.assert_close(mine.kl(p, q), torch.stack(divergences).sum(0))
    torch.testing.assert_close(mine.mode(p), torch.stack([one.mode for one in theirs], -1))


def test_choices_are_drawn_on_their_own() -> None:
    n, probabilities = 20_000, torch.tensor([0.2, 0.8, 0.5, 0.3, 0.2, 0.9, 0.1])
    actions = MultiCategorical((2, 3, 2)).sample(probabilities.log().expand(n, 7), torch.Generator().manual_seed(0))
    for at, expected in enumerate(probabilities.split((2, 3, 2))):
        share = torch.bincount(actions[:, at], minlength=len(expected)) / n
        assert bool(((share - expected).abs() < 5 * (expected * (1 - expected) / n).sqrt()).all())
    assert bool((torch.corrcoef(actions.T.double()).fill_diagonal_(0).abs() < 5 / n**0.5).all())


def test_gaussian_by_hand() -> None:
    one = DiagonalGaussian(1)
    assert one.parameters == 2
    p, q = torch.tensor([1.0, 0.0]), torch.tensor([3.0, math.log(2.0)])
    # -z^2 / 2 - log std - log(2 pi) / 2 with z = (5 - 3) / 2
    expected = -0.5 - math.log(2.0) - 0.5 * math.log(2 * math.pi)
    assert float(one.log_prob(q, torch.tensor([5.0]))) == pytest.approx(expected)
    assert float(one.entropy(p)) == pytest.approx(0.5 * math.log(2 * math.pi * math.e))
    # log 2 + (1 + (1 - 3)^2) / (2 * 4) - 1/2
    assert float(one.kl(p, q)) == pytest.approx(math.log(2.0) + 5 / 8 - 0.5)
    torch.testing.assert_close(one.mode(q), torch.tensor([3.0]))


@given(actions=st.integers(1, 6), seed=st.integers(0, 2**31), scale=st.floats(0.01, 30.0))
def test_categorical_equals_torchs(actions: int, seed: int, scale: float) -> None:
    p, q = scale * draw(seed, 2, 3, 2, actions)  # [3, 2, A] each
    mine, theirs, other = Categorical(actions), reference.Categorical(logits=p), reference.Categorical(logits=q)
    action = torch.randint(actions, (3, 2), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(mine.log_prob(p, action), theirs.log_prob(action))
    torch.testing.assert_close(mine.log_prob(p, action.to(torch.int16)), theirs.log_prob(action))
    torch.testing.assert_close(mine.entropy(p), theirs.entropy())
    torch.testing.assert_close(mine.kl(p, q), reference.kl_divergence(theirs, other))
    torch.testing.assert_close(mine.mode(p), theirs.mode)


@given(size=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_gaussian_equals_torchs(size: int, seed: int) -> None:
    p, q = draw(seed, 2, 3, 2, 2 * size)  # [3, 2, P] each
    mine, action = DiagonalGaussian(size), 2 * draw(seed + 1, 3, 2, size)
    torch.testing.assert_close(mine.log_prob(p, action), normal(p).log_prob(action))
    torch.testing.assert_close(mine.entropy(p), normal(p).entropy())
    torch.testing.assert_close(mine.kl(p, q), reference.kl_divergence(normal(p), normal(q)))
    torch.testing.assert_close(mine.mode(p), normal(p).mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_extreme_logits_stay_finite_and_so_do_gradients(dtype: torch.dtype) -> None:
    extremes = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0], [1e4, 1e4, -1e4]], dtype=dtype)
    three = Categorical(3)
    for i in range(4):
        p = extremes.clone().requires_grad_()
        q = extremes.roll(i, 0).clone().requires_grad_()
        kl, entropy = three.kl(p, q), three.entropy(p)
        log_prob = three.log_prob(p, torch.tensor([1, 1, 1, 2]))
        (kl + entropy + log_prob).sum().backward()
        assert p.grad is not None and q.grad is not None
        assert all(bool(torch.isfinite(x).all()) for x in (kl, entropy, log_prob, p.grad, q.grad))
    # Of certain and opposite policies: one action, whose log probability under the other is -2e4.
    far = three.kl(extremes[0].double(), extremes[1].double())
    assert float(far) == pytest.approx(2e4, rel=1e-2)
    assert float(three.kl(extremes[0], extremes[0])) == 0.0
    assert not three.sample(extremes[:1].expand(1000, -1)).any()


def test_sharp_gaussians_stay_finite_and_alike_ones_have_no_divergence() -> None:
    params = torch.tensor([3.0, -2.0, -20.0, 5.0])
    two = DiagonalGaussian(2)
    p, q = params.clone().requires_grad_(), params.clone().requires_grad_()
    kl = two.kl(p, q)
    kl.backward()
    assert float(kl.detach()) == 0.0
    assert p.grad is not None and not p.grad.any() and q.grad is not None and not q.grad.any()
    # A deviation 1e-4 wider: log_s^2 to first order, lost in rounding if s^2 - 1 were taken as written.
    wider = params + torch.tensor([0.0, 0.0, 0.0, 1e-4])
    assert float(two.kl(wider, params)) == pytest.approx(1e-8, abs=1e-9)


@pytest.mark.parametrize("distribution", ALL)
def test_divergence_has_the_right_gradient(distribution: ActionDistribution) -> None:
    p, q = draw(0, 2, 3, 4).unbind()
    assert torch.autograd.gradcheck(distribution.kl, (p.clone().requires_grad_(), q.clone().requires_grad_()))
    assert torch.autograd.gradcheck(distribution.entropy, (p.clone().requires_grad_(),))
    assert bool((distribution.kl(p, q) > 0).all())


def test_categorical_samples_have_the_right_frequencies() -> None:
    probabilities, n = torch.tensor([0.5, 0.3, 0.15, 0.05]), 40_000
    params = (probabilities.log() + 7.0).expand(n, 4)
    actions = Categorical(4).sample(params, torch.Generator().manual_seed(0))
    assert actions.shape == (n,) and actions.dtype == torch.int64
    counts = torch.bincount(actions, minlength=4)
    # Pearson's statistic with three degrees of freedom is above 16.3 once in a thousand.
    assert float(((counts - n * probabilities).square() / (n * probabilities)).sum()) < 16.3


def test_gaussian_samples_have_the_right_moments() -> None:
    params, n = torch.tensor([1.0, -2.0, math.log(0.5), math.log(3.0)]), 40_000
    actions = DiagonalGaussian(2).sample(params.expand(n, 4), torch.Generator().manual_seed(0))
    assert actions.shape == (n, 2)
    # Five standard errors: of the mean std / sqrt(n), of the deviation std / sqrt(2 n).
    std = torch.tensor([0.5, 3.0])
    assert bool(((actions.mean(0) - params[:2]).abs() < 5 * std / n**0.5).all())
    assert bool(((actions.std(0) - std).abs() < 5 * std / (2 * n) ** 0.5).all())
    assert abs(float(torch.corrcoef(actions.T)[0, 1])) < 5 / n**0.5


@pytest.mark.parametrize("distribution", ALL)
def test_actions_are_reproducible_and_carry_no_gradient(distribution: ActionDistribution) -> None:
    assert distribution.parameters == 4
    params = draw(3, 5, 2, 4).float().requires_grad_()
    once, again = (distribution.sample(params, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(distribution.sample(params), distribution.sample(params))  # torch's own generator
    assert not once.requires_grad and not distribution.mode(params).requires_grad
    assert distribution.log_prob(params, once).shape == (5, 2)
    assert distribution.mode(params).shape == once.shape
    assert pickle.loads(pickle.dumps(distribution)) == distribution


@pytest.mark.parametrize("distribution", ALL)
def test_refusals_name_the_shape(distribution: ActionDistribution) -> None:
    params = torch.zeros(3, 4)
    action = distribution.mode(params)
    with pytest.raises(ValueError, match=r"params must be \[..., 4\], got shape \(3, 5\)"):
        distribution.entropy(torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"params must be \[..., 4\], got shape \(\)"):
        distribution.sample(torch.tensor(0.0))
    with pytest.raises(TypeError, match="params must be floating point"):
        distribution.mode(params.long())
    with pytest.raises(ValueError, match=r"p and q must have one shape, got \(3, 4\), \(1, 4\)"):
        distribution.kl(params, params[:1])
    with pytest.raises(ValueError, match="action must be of shape"):
        distribution.log_prob(params, action[:2])
    with pytest.raises(TypeError, match="action must be"):
        distribution.log_prob(params, action.bool())


def test_sizes_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="num_actions must be at least 1, got 0"):
        Categorical(0)
    with pytest.raises(ValueError, match=r"nvec must be numbers of at least 1, got \(2, 0\)"):
        MultiCategorical((2, 0))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        DiagonalGaussian(0)
