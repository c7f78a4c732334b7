"""V-trace against hand-worked numbers and the paper's sum of products."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.ops import VTrace, discounts, gae, vtrace


class Rows(NamedTuple):
    """The arguments of `vtrace`, in order."""

    log_ratios: Tensor  # [T, B]
    values: Tensor  # [T+1, B]
    reward: Tensor  # [T, B]
    discount: Tensor  # [T, B]
    mask: Tensor  # [T, B]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]  # [T, 1]


def hand_rows() -> Rows:
    return Rows(column(2, 0.5, 1).log(), column(1, 2, 3, 4), column(1, 2, 3), column(0.5, 0.5, 0.5), column(1, 1, 1))


def random_rows(rng: np.random.Generator, steps: int, batch: int) -> Rows:
    """Episodes as they happen: a step may terminate or truncate, and a masked row follows; some rows are rejected."""
    discount, mask = np.full((steps, batch), 0.9), np.ones((steps, batch))
    for b in range(batch):
        final = rng.random() < 0.2
        for t in range(steps):
            mask[t, b] = not final
            ends = not final and rng.random() < 0.4
            if ends and rng.random() < 0.5:
                discount[t, b] = 0.0  # terminated; the others are truncated
            final = ends
    mask *= rng.random((steps, batch)) > 0.1  # as LASER rejects states
    log_ratios, reward = rng.normal(size=(2, steps, batch))
    values = rng.normal(size=(steps + 1, batch))
    return Rows(*(torch.from_numpy(x) for x in (log_ratios, values, reward, discount, mask)))


def slow_vtrace(rows: Rows, rho_clip: float, c_clip: float, pg_rho_clip: float, lambda_: float) -> VTrace:
    """Close to the notation of section 4.1: v_s = V_s + sum_t gamma^(t-s) (prod_{i<t} c_i) delta_t."""
    ratio, values, reward, discount, mask = (x.tolist() for x in (rows.log_ratios.exp(), *rows[1:]))
    steps, batch = rows.reward.shape
    v = rows.values.clone()
    advantages, rhos = torch.zeros(steps, batch).double(), torch.zeros(steps, batch).double()
    for b in range(batch):
        for s in range(steps):
            for t in range(s, steps):
                if any(mask[i][b] == 0 for i in range(s, t + 1)):
                    break  # nothing from a row without a step, nor from beyond it
                gammas = math.prod(discount[i][b] for i in range(s, t))
                traces = math.prod(lambda_ * min(c_clip, ratio[i][b]) for i in range(s, t))
                delta = min(rho_clip, ratio[t][b]) * (reward[t][b] + discount[t][b] * values[t + 1][b] - values[t][b])
                v[s, b] += gammas * traces * delta
        for s in range(steps):
            if mask[s][b]:
                rhos[s, b] = min(rho_clip, ratio[s][b])
                q = reward[s][b] + discount[s][b] * v[s + 1, b]
                advantages[s, b] = min(pg_rho_clip, ratio[s][b]) * (q - values[s][b])
    return VTrace(v[:-1], advantages, rhos)


def test_discounts_are_zero_only_where_terminated() -> None:
    out = discounts(torch.tensor([[False, True], [True, False]]), 0.9)
    torch.testing.assert_close(out, torch.tensor([[0.9, 0.0], [0.0, 0.9]]))
    with pytest.raises(TypeError, match="terminated must be bool"):
        discounts(torch.zeros(2), 0.9)
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got 1.5"):
        discounts(torch.zeros(2, dtype=torch.bool), 1.5)


def test_hand_worked_numbers() -> None:
    out = vtrace(*hand_rows())
    # ratios 2, .5, 1 clipped to 1, .5, 1
    # deltas: 1 (1 + .5*2 - 1) = 1 ; .5 (2 + .5*3 - 2) = .75 ; 1 (3 + .5*4 - 3) = 2
    # v_2 = 3 + 2 = 5 ; v_1 = 2 + .75 + .5*.5*2 = 3.25 ; v_0 = 1 + 1 + .5*1*(3.25 - 2) = 2.625
    torch.testing.assert_close(out.targets, column(2.625, 3.25, 5.0))
    # 1 (1 + .5*3.25 - 1) ; .5 (2 + .5*5 - 2) ; 1 (3 + .5*4 - 3)
    torch.testing.assert_close(out.advantages, column(1.625, 1.25, 2.0))
    torch.testing.assert_close(out.rhos, column(1.0, 0.5, 1.0))


def test_each_clip_has_its_own_place() -> None:
    rows = hand_rows()
    # Unclipped c: v_0 = 1 + 1 + .5*2*1.25
    torch.testing.assert_close(vtrace(*rows, c_clip=None).targets, column(3.25, 3.25, 5.0))
    # Unclipped rho: delta_0 = 2, so v_0 = 1 + 2 + .5*1.25; advantages do not see it
    free = vtrace(*rows, rho_clip=None)
    torch.testing.assert_close(free.targets, column(3.625, 3.25, 5.0))
    torch.testing.assert_close(free.rhos, column(2.0, 0.5, 1.0))
    torch.testing.assert_close(free.advantages, column(1.625, 1.25, 2.0))
    # Unclipped advantage: 2 * 1.625
    eager = vtrace(*rows, pg_rho_clip=None)
    torch.testing.assert_close(eager.advantages, column(3.25, 1.25, 2.0))
    torch.testing.assert_close(eager.targets, column(2.625, 3.25, 5.0))
    # lambda 0: one step only, V + delta
    torch.testing.assert_close(vtrace(*rows, lambda_=0.0).targets, column(2.0, 2.75, 5.0))


def test_truncation_bootstraps_from_the_masked_row() -> None:
    # Step 0 is truncated: row 1 holds the final observation, worth 2, and no step; row 2 begins the next episode.
    rows = hand_rows()._replace(mask=column(1, 0, 1))
    out = vtrace(*rows)
    # v_0 = 1 + (1 + .5*2 - 1) ; v_1 = V_1 ; v_2 as before. Advantages: 1 + .5*2 - 1 ; 0 ; 3 + .5*4 - 3
    torch.testing.assert_close(out.targets, column(2.0, 2.0, 5.0))
    torch.testing.assert_close(out.advantages, column(1.0, 0.0, 2.0))
    torch.testing.assert_close(out.rhos, column(1.0, 0.0, 1.0))
    # Terminated instead: the final observation's value is not used either. v_0 = 1 + (1 - 1)
    terminated = vtrace(*rows._replace(discount=column(0, 0.5, 0.5)))
    torch.testing.assert_close(terminated.targets, column(1.0, 2.0, 5.0))
    torch.testing.assert_close(terminated.advantages, column(0.0, 0.0, 2.0))


@given(
    steps=st.integers(1, 8),
    batch=st.integers(1, 3),
    clips=st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, None])] * 3),
    lambda_=st.sampled_from([0.0, 0.7, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_slow_reference(
    steps: int, batch: int, clips: tuple[float | None, float | None, float | None], lambda_: float, seed: int
) -> None:
    rows = random_rows(np.random.default_rng(seed), steps, batch)
    rho, c, pg = clips
    expected = slow_vtrace(rows, *(math.inf if clip is None else clip for clip in clips), lambda_=lambda_)
    for mask in (rows.mask, rows.mask.bool()):
        out = vtrace(*rows._replace(mask=mask), rho_clip=rho, c_clip=c, pg_rho_clip=pg, lambda_=lambda_)
        torch.testing.assert_close(tuple(out), tuple(expected))
    assert torch.equal(out.targets[rows.mask == 0], rows.values[:-1][rows.mask == 0])
    assert not out.advantages[rows.mask == 0].any()


def slow_returns(r: Tensor, d: Tensor, v: Tensor, cut: Tensor) -> Tensor:
    """Close to the notation: add rewards one by one; at a cut or at the end, bootstrap and stop."""
    steps, batch = r.shape
    out = torch.zeros_like(r)
    for b in range(batch):
        for k in range(steps):
            product = 1.0
            for i in range(k, steps):
                out[k, b] += product * r[i, b]
                product *= float(d[i, b])
                if bool(cut[i, b]) or i == steps - 1:
                    out[k, b] += product * v[i, b]
                    break
    return out


@given(steps=st.integers(1, 8), seed=st.integers(0, 2**31))
def test_on_policy_targets_are_n_step_returns(steps: int, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), steps, 2)
    rows = rows._replace(log_ratios=torch.zeros_like(rows.reward))
    cut = torch.zeros_like(rows.mask, dtype=torch.bool)
    cut[:-1] = rows.mask[1:] == 0
    returns = slow_returns(rows.reward, rows.discount, rows.values[1:], cut)
    out = vtrace(*rows)
    on = rows.mask == 1
    torch.testing.assert_close(out.targets[on], returns[on])
    torch.testing.assert_close(out.advantages[on], (returns - rows.values[:-1])[on])


@given(steps=st.integers(3, 8), seed=st.integers(0, 2**31), data=st.data())
def test_nothing_passes_a_masked_row_but_its_value(steps: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    rows, other = random_rows(rng, steps, 2), random_rows(rng, steps, 2)
    wall = data.draw(st.integers(1, steps - 1))
    rows.mask[wall] = 0
    changed = Rows(*(torch.cat([x[:wall], y[wall:]]) for x, y in zip(rows, other, strict=True)))
    changed.mask[wall] = 0
    changed.values[wall] = rows.values[wall]
    before, after = vtrace(*rows), vtrace(*changed)
    assert all(torch.equal(x[:wall], y[:wall]) for x, y in zip(before, after, strict=True))
    if bool(rows.mask[wall - 1].any()):
        changed.values[wall] += 1.0
        reaches = (rows.mask[wall - 1] == 1) & (rows.discount[wall - 1] > 0)
        differs = vtrace(*changed).targets[wall - 1] != before.targets[wall - 1]
        assert torch.equal(differs, reaches)


@given(steps=st.integers(2, 8), seed=st.integers(0, 2**31), data=st.data())
def test_burn_in_is_a_slice(steps: int, seed: int, data: st.DataObject) -> None:
    rows = random_rows(np.random.default_rng(seed), steps, 2)
    burn_in = data.draw(st.integers(0, steps - 1))
    whole, part = vtrace(*rows), vtrace(*(x[burn_in:] for x in rows))
    assert all(torch.equal(x[burn_in:], y) for x, y in zip(whole, part, strict=True))


def test_masked_rows_may_hold_anything() -> None:
    rows = hand_rows()._replace(mask=column(1, 0, 1))
    expected = vtrace(*rows)
    for bad in (math.nan, math.inf, -math.inf):
        broken = rows._replace(log_ratios=column(2, bad, 1), reward=column(1, bad, 3), discount=column(0.5, bad, 0.5))
        broken.log_ratios[[0, 2]] = rows.log_ratios[[0, 2]]
        torch.testing.assert_close(tuple(vtrace(*broken)), tuple(expected))


def test_large_ratios_are_clipped_and_not_infinite() -> None:
    rows = hand_rows()._replace(log_ratios=column(1e4, -1e4, 1e4))
    ones = hand_rows()._replace(log_ratios=column(0, -1e4, 0))
    torch.testing.assert_close(tuple(vtrace(*rows)), tuple(vtrace(*ones)))


def test_no_gradient_inputs_untouched_and_dtypes_kept() -> None:
    rows = Rows(*(x.float() for x in hand_rows()))
    copies = [x.clone() for x in rows]
    out = vtrace(rows.log_ratios.requires_grad_(), rows.values.requires_grad_(), *rows[2:])
    assert not any(x.requires_grad for x in out)
    assert all(x.dtype == torch.float32 for x in out)
    assert all(torch.equal(x, y) for x, y in zip(rows, copies, strict=True))
    half = vtrace(*rows._replace(values=rows.values.detach().bfloat16()))
    torch.testing.assert_close(half.targets, out.targets)


def test_refusals_name_the_argument() -> None:
    x, values = torch.zeros(3, 2), torch.zeros(4, 2)
    with pytest.raises(ValueError, match=r"values must be \[T\+1, B\] with T = 3, got shape \(3, 2\)"):
        vtrace(x, x, x, x, x)
    with pytest.raises(ValueError, match=r"values must be \[S, B\] with B = 2, got shape \(4, 1\)"):
        vtrace(x, torch.zeros(4, 1), x, x, x)
    with pytest.raises(ValueError, match=r"reward must be \[T, B\] \(rank 2\), got shape \(3,\)"):
        vtrace(x, values, x[:, 0], x, x)
    with pytest.raises(TypeError, match=r"discount must be floating point, got torch.bool"):
        vtrace(x, values, x, x.bool(), x)
    with pytest.raises(TypeError, match=r"mask must be floating point, got torch.int64"):
        vtrace(x, values, x, x, x.long())
    for name in ("rho_clip", "c_clip", "pg_rho_clip"):
        with pytest.raises(ValueError, match=f"{name} must be positive, or None for no clipping, got 0"):
            vtrace(x, values, x, x, x, **{name: 0.0})
    with pytest.raises(ValueError, match=r"lambda_ must be in \[0, 1\], got 2"):
        vtrace(x, values, x, x, x, lambda_=2.0)


def slow_gae(rows: Rows, lambda_: float) -> Tensor:
    """Sums of products, equation 16 of the paper; a masked row has no step, and nothing beyond it counts."""
    values, reward, discount, mask = (x.tolist() for x in rows[1:])
    found = torch.zeros_like(rows.reward)
    for b in range(rows.reward.shape[1]):
        for s in range(len(reward)):
            factor = 1.0
            for t in range(s, len(reward)):
                if not mask[t][b]:
                    break
                found[s, b] += factor * (reward[t][b] + discount[t][b] * values[t + 1][b] - values[t][b])
                factor *= discount[t][b] * lambda_
    return found


def test_gae_by_hand() -> None:
    """Deltas 1 + 0.5 * 2 - 1 = 1, 2 + 0.5 * 3 - 2 = 1.5 and 3 + 0.5 * 4 - 3 = 2; the trace falls by a quarter."""
    found = gae(*hand_rows()[1:], lambda_=0.5)
    assert found.advantages.flatten().tolist() == [1 + 0.25 * (1.5 + 0.25 * 2), 1.5 + 0.25 * 2, 2.0]
    assert torch.equal(found.targets, found.advantages + hand_rows().values[:-1])


def test_gae_at_the_ends_of_episodes() -> None:
    """A step that terminates counts its reward alone; one that is truncated bootstraps from the masked row after it."""
    values, reward, ones = column(1, 2, 30, 4, 5), column(1, 1, 100, 1), column(1, 1, 1, 1)
    mask = column(1, 1, 0, 1)
    truncated = gae(values, reward, ones, mask, lambda_=1.0).advantages
    assert truncated.flatten().tolist() == [1 + 1 + 30 - 1, 1 + 30 - 2, 0, 1 + 5 - 4]
    terminated = gae(values, reward, column(1, 0, 1, 1), mask, lambda_=1.0).advantages
    assert terminated.flatten().tolist() == [1 + 1 - 1, 1 - 2, 0, 1 + 5 - 4]


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.95, 1.0]))
def test_gae_is_the_sum_of_the_paper(seed: int, steps: int, batch: int, lambda_: float) -> None:
    rows = random_rows(np.random.default_rng(seed), steps, batch)
    torch.testing.assert_close(gae(*rows[1:], lambda_=lambda_).advantages, slow_gae(rows, lambda_))
