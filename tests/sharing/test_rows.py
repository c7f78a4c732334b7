"""Observations of dicts as rows of bytes, and the columns of a run."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.replay import Schema
from shoal.sharing.rows import Packing, describe_sb3

SHAPES = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.tuples(
        st.sampled_from(["uint8", "int8", "float32", "float64", "int64"]),
        st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
)


def packing_of(parts: dict[str, Any]) -> Packing:
    boxes = {key: spaces.Box(0, 100, shape, np.dtype(dtype)) for key, (dtype, shape) in parts.items()}
    return Packing(spaces.Dict(boxes), {key: shape for key, (_, shape) in parts.items()})


@given(SHAPES, st.integers(1, 4), st.data())
def test_what_is_packed_comes_back(parts: dict[str, Any], count: int, data: st.DataObject) -> None:
    packing = packing_of(parts)
    obs = {key: data.draw(arrays(dtype, (count, *shape))) for key, (dtype, shape) in parts.items()}
    rows = packing.pack(obs, np.full((count, packing.nbytes), 0xAA, np.uint8))
    back = packing.unpack(rows)
    assert back.keys() == obs.keys()
    for key, part in obs.items():
        assert back[key].dtype == part.dtype and np.array_equal(back[key], part, equal_nan=part.dtype.kind == "f")
    edges = sorted((start, start + np.dtype(d).itemsize * int(np.prod(s))) for start, s, d in packing.fields.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(edges)), "fields overlap"
    assert all(start % 8 == 0 for start, _ in edges) and edges[-1][1] <= packing.nbytes


def test_unpacking_is_in_place() -> None:
    packing = packing_of({"a": ("float32", (2,)), "b": ("uint8", (3,))})
    rows = np.zeros((2, 3, packing.nbytes), np.uint8)
    packing.unpack(rows)["a"][1, 2] = 7.0
    assert packing.unpack(rows)["a"][1, 2].tolist() == [7.0, 7.0] and rows.any()


def schema_of(observation: Any, action: Any, with_next: bool) -> Schema:
    """The columns that a buffer for these spaces writes."""
    sb3_buffer = pytest.importorskip("shoal.sharing.sb3_buffer")
    options = {"optimize_memory_usage": not with_next, "handle_timeout_termination": with_next}
    buffer = sb3_buffer.DistributedReplayBuffer(10, observation, action, "cpu", **options)
    buffer._open()
    schema: Schema = buffer._schema
    return schema


@pytest.mark.parametrize(
    ("action", "shape"),
    [(spaces.Discrete(3), ()), (spaces.Box(-1, 1, (2,)), (2,)), (spaces.MultiDiscrete([2, 2, 2]), (3,))],
)
@pytest.mark.parametrize("with_next", [True, False])
def test_columns(action: Any, shape: tuple[int, ...], with_next: bool) -> None:
    schema = schema_of(spaces.Box(-1, 1, (3, 2), np.float64), action, with_next)
    assert (schema["obs"].dtype, schema["obs"].shape) == ("float64", (3, 2))
    assert schema["action"].shape == shape and ("next_obs" in schema) == with_next
    if with_next:
        assert schema["next_obs"].shape == (3, 2) and schema["next_obs"].dtype == "float64"


def test_a_dict_is_one_column() -> None:
    parts = {"a": spaces.Box(0, 1, (2,), np.float32), "b": spaces.Box(0, 255, (3,), np.uint8)}
    schema = schema_of(spaces.Dict(parts), spaces.Discrete(2), True)
    assert (schema["obs"].dtype, schema["obs"].shape) == ("uint8", (16,)) == (schema["next_obs"].dtype, (16,))


def test_continuous_actions_are_scaled_discrete_ones_are_not() -> None:
    box = spaces.Box(-2, 2, (1,), np.float32)
    assert describe_sb3("Toy-v0", box, box).action_scaling == "unit"
    assert describe_sb3("Toy-v0", box, spaces.Discrete(2)).action_scaling == "env"
    assert describe_sb3("Toy-v0", box, box).reward == "raw"


def test_the_order_of_a_dict_makes_no_difference() -> None:
    box = spaces.Box(-9, 9, (1,), np.float32)
    spaces_of = [spaces.Dict(OrderedDict((key, box) for key in keys)) for keys in ("xy", "yx")]
    alike = describe_sb3("", spaces_of[0], box).difference(describe_sb3("", spaces_of[1], box)) == ""
    fields = [Packing(one, {key: (1,) for key in one.spaces}).fields for one in spaces_of]
    assert (fields[0] == fields[1]) == alike
