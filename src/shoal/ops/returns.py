"""Returns over sequences: what a step was worth, from the rewards after it and a value to bootstrap from.

All tensors are time-major, [T, B]. Row k speaks of the step taken at k: `r_t[k]` is its reward, `discount_t[k]` is
gamma, or 0 if the episode terminated there, and `v_t[k]` is the value of the state it led to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.ops._checks import check_axes, check_bool, check_floating


def n_step_return(r_t: Tensor, discount_t: Tensor, v_t: Tensor, n: int, cut_t: Tensor | None = None) -> Tensor:
    """n-step bootstrapped return of every step of a sequence.

        G_k = r_k + d_k r_{k+1} + ... + (d_k ... d_{k+m-1}) v_{k+m-1}

    with m = n, or fewer where the sequence ends or is cut earlier: a shorter tail bootstraps with its own, shorter
    product of discounts. Termination needs no flag (its discount is 0). Truncation does: `cut_t` says where the
    return must not look further, because the next row belongs to no step or to another episode.

    "Reinforcement Learning: An Introduction", 2nd ed., chapter 7; as used with replay in "Rainbow: Combining
    Improvements in Deep Reinforcement Learning", https://arxiv.org/abs/1710.02298.

    Args:
        r_t: [T, B] rewards.
        discount_t: [T, B] discounts, 0 where the episode terminated.
        v_t: [T, B] value of the state each step led to; of the final observation where the episode was truncated.
        n: number of rewards to look at, at least 1; more than T is the same as T.
        cut_t: [T, B] bool, True where the return bootstraps from `v_t` at once (truncation). None: nowhere.

    Returns:
        [T, B] returns, without gradient.
    """
    check_axes(r_t=(r_t, "TB"), discount_t=(discount_t, "TB"), v_t=(v_t, "TB"))
    check_floating(r_t=r_t, discount_t=discount_t, v_t=v_t)
    if cut_t is not None:
        check_axes(r_t=(r_t, "TB"), cut_t=(cut_t, "TB"))
        check_bool(cut_t=cut_t)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}.")

    with torch.no_grad():
        one_step = r_t + discount_t * v_t
        returns = one_step
        # An m-step return is one reward and then the (m-1)-step return of the next row. The last row has no next one.
        for _ in range(min(n, r_t.shape[0]) - 1):
            longer = r_t[:-1] + discount_t[:-1] * returns[1:]
            if cut_t is not None:
                longer = torch.where(cut_t[:-1], one_step[:-1], longer)
            returns = torch.cat([longer, one_step[-1:]])
        return returns
