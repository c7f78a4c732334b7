"""Divides a batch among the parts of a mixture. Separate from the selectors, so that settings are checked without
loading numba.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import ConfigError

NEAR = 256
"""How far from the asked size to search for a batch that divides."""


def check_ratios(ratios: Sequence[float]) -> None:
    """Refuses ratios that are not positive or do not sum to 1."""
    total = sum(ratios)
    if not ratios or abs(total - 1.0) > 1e-9 or any(ratio <= 0 for ratio in ratios):
        listed = " + ".join(f"{ratio:g}" for ratio in ratios)
        raise ConfigError(f"The ratios of a mixture must be positive and sum to 1: {listed} = {total:g}.")


def divides(ratios: Sequence[float], n: int) -> bool:
    """Whether a batch of n divides by the ratios."""
    return len(ratios) == 1 or all(abs(ratio * n - round(ratio * n)) <= 1e-6 for ratio in ratios)


def shares(ratios: Sequence[float], n: int) -> list[int]:
    """How many of n draws each part gets; refuses a batch that does not divide and names the nearest that do."""
    if not divides(ratios, n):
        fits = [m for m in range(max(1, n - NEAR), n + NEAR + 1) if divides(ratios, m)]
        nearest = sorted(sorted(fits, key=lambda m: abs(m - n))[:2])
        remedy = f"the nearest that do: {nearest}" if nearest else "none near it does: use rounder ratios"
        listed = ", ".join(f"{ratio:g}" for ratio in ratios)
        raise ConfigError(f"A batch of {n} does not divide by the ratios {listed}; {remedy}.")
    return [round(ratio * n) for ratio in ratios]
