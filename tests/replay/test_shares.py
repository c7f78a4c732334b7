"""How a batch is divided; and that settings are checked without loading what draws."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay.shares import check_ratios, divides, shares


def test_by_hand() -> None:
    assert shares([0.5, 0.25, 0.25], 32) == [16, 8, 8]
    assert shares([1.0], 7) == [7]
    with pytest.raises(ConfigError, match=r"A batch of 10 .* 0\.25, 0\.75; the nearest that do: \[8, 12\]"):
        shares([0.25, 0.75], 10)
    with pytest.raises(ConfigError, match=r"A batch of 32 .* 0\.123, 0\.877; none near it does: use rounder ratios"):
        shares([0.123, 0.877], 32)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 500))
def test_shares_are_exact_or_refused(parts: list[int], n: int) -> None:
    ratios = [part / sum(parts) for part in parts]
    if divides(ratios, n):
        assert sum(shares(ratios, n)) == n
        assert all(abs(share - ratio * n) < 1e-5 for share, ratio in zip(shares(ratios, n), ratios, strict=True))
    else:
        with pytest.raises(ConfigError, match="does not divide"):
            shares(ratios, n)


@pytest.mark.parametrize("ratios", [[], [0.5, 0.4], [1.5, -0.5]])
def test_ratios_that_make_no_mixture(ratios: list[float]) -> None:
    with pytest.raises(ConfigError, match="sum to 1"):
        check_ratios(ratios)


def test_checking_settings_loads_no_compiler() -> None:
    """numba takes a second: the driver and the actors do without."""
    program = """
import sys
from shoal.config.load import settings_for
from shoal.loops.plan import make_plan
for algo in ("apex-dqn", "impala", "impact"):
    make_plan(settings_for("CartPole-v1", algo, [])).queue_capacity
print("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
