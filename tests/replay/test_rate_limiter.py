"""RateLimiter: hand-worked numbers, and actors and learners of any speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay import RateLimiter


@pytest.mark.parametrize(
    ("inserts", "samples", "error", "may_sample", "may_insert"),
    [
        (0, 0, -400.0, False, True),  # nothing there
        (99, 0, -4.0, False, True),  # below the minimum
        (100, 0, 0.0, True, True),  # (100 - 100) * 4 - 0
        (100, 16, -16.0, True, True),
        (100, 20, -20.0, False, True),  # ahead by the tolerance
        (104, 0, 16.0, True, True),
        (105, 0, 20.0, True, False),  # behind by the tolerance
        (105, 1, 19.0, True, True),
        (200, 380, 20.0, True, False),
        (200, 420, -20.0, False, True),
        (90, 400, -440.0, False, True),
    ],
)
def test_hand_worked(inserts: int, samples: int, error: float, may_sample: bool, may_insert: bool) -> None:
    limiter = RateLimiter(min_size=100, samples_per_insert=4.0, tolerance=20.0)
    assert limiter.error(inserts, samples) == error
    assert limiter.may_sample(inserts, samples) is may_sample
    assert limiter.may_insert(inserts, samples) is may_insert


def test_up_to_what_is_granted_nobody_waits() -> None:
    limiter = RateLimiter(min_size=100, samples_per_insert=4.0, tolerance=20.0)
    assert not limiter.may_insert(105, 0, 105)
    assert limiter.may_insert(105, 0, 106)
    assert not limiter.may_insert(106, 0, 106)
    assert limiter.may_insert(104, 0, 50), "an old grant takes nothing away"


def test_without_a_ratio_only_the_minimum_counts() -> None:
    limiter = RateLimiter(min_size=10, samples_per_insert=None, tolerance=0.0)
    assert not limiter.may_sample(9, 0)
    assert limiter.may_sample(10, 10**9)
    assert limiter.may_insert(10**9, 0)


def test_an_empty_replay_is_never_sampled() -> None:
    assert not RateLimiter(min_size=0, samples_per_insert=1.0, tolerance=5.0).may_sample(0, 0)


def test_the_ratio_reached() -> None:
    limiter = RateLimiter(min_size=100, samples_per_insert=4.0, tolerance=20.0)
    assert limiter.achieved(50, 0) == 0.0
    assert limiter.achieved(600, 2000) == 4.0


@pytest.mark.parametrize(("ratio", "tolerance"), [(0.0, 10.0), (-1.0, 10.0), (4.0, 3.9), (0.1, 0.9)])
def test_numbers_that_would_block_for_ever_are_refused(ratio: float, tolerance: float) -> None:
    with pytest.raises(ConfigError, match=str(ratio if ratio <= 0 else tolerance)):
        RateLimiter(10, ratio, tolerance)


@given(
    min_size=st.integers(0, 200),
    ratio=st.floats(0.05, 32.0),
    slack=st.floats(1.0, 20.0),
    batch=st.integers(1, 64),
    lanes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    learner_speed=st.floats(0.01, 100.0),
    actor_speed=st.floats(0.01, 100.0),
)
def test_any_speeds_reach_the_ratio_and_nobody_blocks(
    min_size: int, ratio: float, slack: float, batch: int, lanes: list[int], learner_speed: float, actor_speed: float
) -> None:
    """Actors and a learner take turns as their speeds say; the error stays within the tolerance and one step."""
    limiter = RateLimiter(min_size, ratio, tolerance=max(1.0, ratio) * slack)
    inserts = samples = 0
    due = {"learner": 0.0, **{f"actor {i}": 0.0 for i in range(len(lanes))}}
    for _ in range(1500):
        able = {
            name: when
            for name, when in due.items()
            if (limiter.may_sample if name == "learner" else limiter.may_insert)(inserts, samples)
        }
        assert able, f"deadlock at {inserts} inserts and {samples} samples"
        name = min(able, key=lambda one: able[one])
        now = able[name]
        if name == "learner":
            samples += batch
            due[name] = now + 1.0 / learner_speed
        else:
            inserts += lanes[int(name.split()[1])]
            due[name] = now + 1.0 / actor_speed
        due = {one: max(when, now) for one, when in due.items()}  # who had to wait is late
        if inserts >= min_size and samples:
            error = limiter.error(inserts, samples)
            rounding = 1e-9 * max(1.0, inserts * ratio)
            assert -limiter.tolerance - batch - rounding <= error
            assert error <= limiter.tolerance + ratio * max(lanes) + rounding
    if inserts > min_size:
        off = (limiter.tolerance + batch + ratio * max(lanes)) / (inserts - min_size)
        assert abs(limiter.achieved(inserts, samples) - ratio) <= off + 1e-9
