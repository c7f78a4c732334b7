"""Which buffers a batch is drawn from. A batch holds `ratio * batch` draws from the *pool*, the rest from its own run.

| strategy | the pool | each buffer in it is drawn |
|---|---|---|
| `self_heavy` | the other runs | in proportion to its size |
| `uniform` | all runs, its own included | equally often |
| `weighted` | all runs, its own included | in proportion to its size |
| `newest` | the newest fifth of every run, its own included | in proportion to its size |
| `local_only` | nobody | |

So with `self_heavy` a ratio of 0.2 means 20 % foreign rows; with `uniform` and four runs it means 15 %.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError, UnknownName

Strategy = Literal["self_heavy", "uniform", "weighted", "newest", "local_only"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
STRATEGY, RATIO = "SHOAL_SHARE_STRATEGY", "SHOAL_CROSS_SAMPLE_RATIO"
"""Environment variables: the defaults of the arguments."""
NEWEST = 0.2
"""The share of each buffer that `newest` draws from."""


def ratio_of(variable: str) -> float:
    """The ratio that an environment variable says; 0.2 when there is none."""
    named = os.environ.get(variable, "0.2")
    try:
        return float(named)
    except ValueError as error:
        raise ConfigError(f"{variable} = {named!r} is no number; set it to a fraction such as 0.2.") from error


def check_strategy(strategy: str, ratio: float) -> None:
    """Refuses an unknown strategy, or a ratio that is no fraction."""
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, STRATEGIES)
    if not isinstance(ratio, int | float) or not 0.0 <= ratio <= 1.0:
        raise ConfigError(
            f"cross_sample_ratio is {ratio!r}; it is the fraction of a batch from the pool, within [0, 1]."
        )


def pool_weights(strategy: Strategy, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """[K] the probability of each buffer; all zero when there is nobody to share with.

    Args:
        strategy: one of `STRATEGIES`.
        sizes: [K] rows of each buffer, the run's own first; 0 for one that has too few.
    """
    weights = np.zeros(len(sizes))
    if strategy == "local_only" or not (sizes[1:] > 0).any():
        return weights
    if strategy == "uniform":
        weights[:] = sizes > 0
    else:
        weights[:] = sizes
    if strategy == "self_heavy":
        weights[0] = 0.0
    weights /= weights.sum()
    return weights


def pool_draws(ratio: float, batch: int, rng: np.random.Generator) -> int:
    """How many draws of a batch come from the pool: `ratio * batch`, rounded at random so that the mean is exact."""
    exact = ratio * batch
    whole = int(exact)
    return whole + (exact > whole and rng.random() < exact - whole)
