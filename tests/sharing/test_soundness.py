"""Which rows of others nobody may learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.sharing.soundness import Soundness, limits_of
from shoal.types import EnvSpec, ObsPart, Transition

EVERYWHERE = np.arange(6)


def batch(**changed: Any) -> Transition:
    zeros = {"obs": np.zeros((6, 3)), "action": np.zeros(6, np.int64), "next_obs": np.zeros((6, 3))}
    return Transition(**{**zeros, "reward": np.zeros(6, np.float32), **changed, "discount": np.ones(6)})


@pytest.mark.parametrize("name", ["obs", "next_obs", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found(name: str, value: float) -> None:
    rows = getattr(batch(), name)
    rows[3] = value
    faults = Soundness().faults(batch(**{name: rows}), EVERYWHERE)
    assert list(faults) == [3] and f"it wrote {value}" in faults[3]


def test_only_the_places_that_are_asked_for_count() -> None:
    rows = np.zeros((6, 3))
    rows[2] = np.nan
    assert Soundness().faults(batch(obs=rows), np.array([0, 1, 3])) == {}
    assert list(Soundness().faults(batch(obs=rows), np.array([5, 2]))) == [2]


def test_floats_in_rows_of_bytes_are_found() -> None:
    spec = EnvSpec("Fake-v0", (7,), "uint8", 1, 2, (), obs_parts=(ObsPart("speed", (1,), 3, width=4),))
    rows = np.full((6, 7), 255, np.uint8)
    rows[:, 3:] = np.ones((6, 1), np.float32).view(np.uint8)
    check = Soundness(None, {"speed": None}, spec.floats)
    assert check.faults(batch(obs=rows, next_obs=rows), EVERYWHERE) == {}
    wrong = rows.copy()
    wrong[4, 3:] = np.full(1, np.nan, np.float32).view(np.uint8)
    assert list(check.faults(batch(obs=rows, next_obs=wrong), EVERYWHERE)) == [4]


def test_pictures_may_hold_any_byte() -> None:
    assert Soundness(action=(0, 1)).faults(batch(obs=np.full((6, 8, 8), 255, np.uint8)), EVERYWHERE) == {}


@pytest.mark.parametrize(
    ("space", "fine", "bad"),
    [
        (spaces.Discrete(3), 2, 3),
        (spaces.Discrete(3, start=-1), -1, 2),
        (spaces.MultiDiscrete([2, 5]), [1, 4], [2, 0]),
        (spaces.MultiBinary(2), [1, 0], [0, 2]),
    ],
)
def test_whole_numbers_lie_within_their_space(space: Any, fine: Any, bad: Any) -> None:
    actions = np.array([fine] * 5 + [bad])
    check = Soundness(limits_of(space))
    faults = check.faults(batch(action=actions), EVERYWHERE)
    assert list(faults) == [5] and "in an action" in faults[5]
    assert check.faults(batch(action=actions), EVERYWHERE[:5]) == {}


def test_parts_of_an_observation_are_looked_at_one_by_one() -> None:
    space = spaces.Dict(
        {"far": spaces.Box(-1, 1, (2,)), "floor": spaces.Discrete(3), "picture": spaces.Box(0, 1, (4,))}
    )

    def unpack(rows: Any) -> dict[str, Any]:
        return {"far": rows[:, :2], "floor": rows[:, 2:].astype(int), "picture": np.zeros((6, 4), np.uint8)}

    check = Soundness.of(space, spaces.Discrete(2), unpack)
    rows = np.zeros((6, 3))
    assert check.faults(batch(obs=rows), EVERYWHERE) == {}
    rows[1, 2] = 7  # a floor that the space does not have
    assert list(check.faults(batch(obs=rows), EVERYWHERE)) == [1]
