"""Learning action values from sequences, as R2D2 does: rescaled values, n-step returns, the priority of a sequence.

"Recurrent Experience Replay in Distributed Reinforcement Learning", Kapturowski et al. 2019,
https://openreview.net/forum?id=r1lyTjAqYX. Tensors are time-major, [T, B, ...]; the dots are an axis of agents, or
nothing. Rows are as they happened: after an episode's end comes one row that holds its final observation and no step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.ops._checks import check_floating

RESCALING_EPSILON = 1e-3
"""Keeps the inverse of the rescaling from growing too fast; the paper's."""


def rescaled(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x: makes large values smaller.

    "Observe and Look Further: Achieving Consistent Performance on Atari", https://arxiv.org/abs/1805.11593.

    Args:
        x: values, of any shape.

    Returns:
        h(x), shaped as `x`.
    """
    check_floating(x=x)
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + RESCALING_EPSILON * x


def unrescaled(x: Tensor) -> Tensor:
    """The inverse of `rescaled`.

    It solves epsilon y^2 + (1 + 2 epsilon) y = |x| for y = sqrt(|h^-1(x)| + 1) - 1, in the form 2c / (b + sqrt(...)).
    The paper's form takes a difference, which loses most digits of a float32 near 0.

    Args:
        x: rescaled values, of any shape.

    Returns:
        The values, shaped as `x`.
    """
    check_floating(x=x)
    b = 1.0 + 2.0 * RESCALING_EPSILON
    y = 2.0 * x.abs() / (b + (b * b + 4.0 * RESCALING_EPSILON * x.abs()).sqrt())
    return x.sign() * y * (y + 2.0)


def double_q_values(q_selector: Tensor, q: Tensor) -> Tensor:
    """Values of states by double Q-learning: one network picks the action, the other gives its value.

    "Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461.

    Args:
        q_selector: [..., A] action values that pick (online network).
        q: [..., A] action values that are taken (target network).

    Returns:
        [...] values, without gradient.
    """
    _require_same(q=q, q_selector=q_selector)
    with torch.no_grad():
        return q.gather(-1, q_selector.argmax(dim=-1, keepdim=True)).squeeze(-1)


def n_step_returns(values: Tensor, reward: Tensor, discount: Tensor, mask: Tensor, n: int) -> Tensor:
    """Returns of up to n steps, each within its episode and within the sequence.

        G_t = r_t + d_t (r_{t+1} + d_{t+1} (... V_{t+m})),    m = n, or less if a masked row or the last row is nearer

    Nothing flows through a masked row: the rows before it bootstrap from its value. So a truncated episode bootstraps
    from its final observation, and a terminated one from nothing, because its discount is 0.

    Args:
        values: [T+1, B, ...] of every row and of the one after the last, not rescaled.
        reward: [T, B, ...] rewards.
        discount: [T, B, ...] gamma, or 0 where the episode terminated (see `discounts`).
        mask: [T, B, ...] 1 where a row holds a step; what other rows say of reward and discount is ignored.
        n: steps, at least 1.

    Returns:
        [T, B, ...] returns, without gradient; the value itself where masked.
    """
    _require_same(values=values[1:], reward=reward, discount=discount, mask=mask)
    check_floating(values=values, reward=reward, discount=discount)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")
    with torch.no_grad():
        holds, returns = mask.bool(), values
        for _ in range(n):
            further = torch.where(holds, reward + discount * returns[1:], values[:-1])
            returns = torch.cat((further, values[-1:]))
        return returns[:-1]


def regret(q: Tensor, action: Tensor) -> Tensor:
    """How much worse an action is than the best one: 0 or less.

    A share of it in the target widens the gap between the best action and the others, 1 / (1 - share) times, and leaves
    the best one the best: "Increasing the Action Gap: New Operators for Reinforcement Learning", Bellemare et al. 2016,
    https://arxiv.org/abs/1512.04860 (advantage learning).

    Args:
        q: [..., A] action values, not rescaled.
        action: [...] integers.

    Returns:
        [...], without gradient.
    """
    with torch.no_grad():
        return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1) - q.amax(dim=-1)


def sequence_priority(td_error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """One priority per sequence: eta max |TD error| + (1 - eta) mean |TD error|, over the rows that hold steps.

    Args:
        td_error: [T, B, ...]
        mask: [T, B, ...] 1 where there is one.
        eta: in [0, 1].

    Returns:
        [B] priorities, without gradient; 0 for a sequence without steps.
    """
    _require_same(td_error=td_error, mask=mask)
    if not 0 <= eta <= 1:
        raise ValueError(f"eta must be in [0, 1], got {eta}.")
    with torch.no_grad():
        size = td_error.abs().masked_fill(~mask.bool(), 0.0)
        axes = [axis for axis in range(size.dim()) if axis != 1]
        mean = size.sum(dim=axes) / mask.to(size.dtype).sum(dim=axes).clamp(min=1.0)
        return eta * size.amax(dim=axes) + (1.0 - eta) * mean


def _require_same(**tensors: Tensor) -> None:
    """Refuses tensors that would broadcast."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"These must have the same shape: {', '.join(f'{n} {s}' for n, s in shapes.items())}.")
