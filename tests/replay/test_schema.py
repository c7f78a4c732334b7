"""Schema: the columns of one step."""

from __future__ import annotations

import json

import pytest

from shoal.errors import CorruptShard, WrongSchema
from shoal.replay import Column, Schema, step_schema
from shoal.types import EnvSpec

PONG = EnvSpec("Pong", (4, 84, 84), "uint8", 4, num_actions=6, action_shape=())
HOPPER = EnvSpec(
    "Hopper", (11,), "float64", 1, num_actions=0, action_shape=(3,), action_low=(-1,) * 3, action_high=(1,) * 3
)


def test_a_stacked_environment_stores_one_frame() -> None:
    schema = step_schema(PONG, (Column("priority", "float32"),))
    assert schema["obs"] == Column("obs", "uint8", (84, 84))
    assert schema["action"] == Column("action", "int64")
    assert (schema.frame_stack, schema.extras) == (4, ("priority",))
    assert schema.bytes_per_step == 84 * 84 + 8 + 4 + 1 + 1 + 1 + 4 + 4


def test_a_continuous_environment() -> None:
    schema = step_schema(HOPPER)
    assert schema["obs"] == Column("obs", "float64", (11,))
    assert schema["action"] == Column("action", "float32", (3,))
    assert (schema.frame_stack, schema.extras) == (1, ())
    assert "obs" in schema and "logits" not in schema


@pytest.mark.parametrize("spec", [PONG, HOPPER])
def test_json_and_back(spec: EnvSpec) -> None:
    schema = step_schema(spec, (Column("core", "float32", (2, 8)),))
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_equal_schemas_are_equal_whatever_their_dtypes_were_called() -> None:
    called = Schema((Column("obs", "f4", (2,)),))
    assert Schema.from_json(called.to_json()) == Schema((Column("obs", "float32", (2,)),))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"columns": [], "frame_stack": "x"},
        {"columns": [{"name": "obs"}], "frame_stack": 1},
        {"columns": [{"name": "obs", "dtype": "float33", "shape": []}], "frame_stack": 1},
        {"columns": 3, "frame_stack": 1},
        {"columns": [{"name": "obs", "dtype": "uint8", "shape": []}] * 2, "frame_stack": 1},
        {"columns": [{"name": "obs", "dtype": "uint8", "shape": []}], "frame_stack": 0},
    ],
)
def test_unreadable_json_is_a_corrupt_shard(data: dict[str, object]) -> None:
    with pytest.raises(CorruptShard):
        Schema.from_json(data)


def test_repeated_names_are_refused() -> None:
    with pytest.raises(WrongSchema, match="repeat"):
        step_schema(HOPPER, (Column("reward", "float32"),))


def test_an_impossible_stack_is_refused() -> None:
    with pytest.raises(WrongSchema, match="frame_stack is 0"):
        Schema((Column("obs", "uint8"),), 0)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(WrongSchema, match=r"No column 'rewrad'; this schema has obs, action, reward"):
        step_schema(HOPPER)["rewrad"]
