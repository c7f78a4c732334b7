"""Observations of several parts, and actions of several choices."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatten

from shoal.envs import ActionMap, EnvSettings, ObservationMap, describe_env, make_env, make_plain_env
from shoal.envs.parts import PackedBox
from shoal.errors import ConfigError, EnvError
from shoal.types import EnvSpec, ObsPart

PICTURE = spaces.Box(0, 255, (9, 9, 3), np.uint8)
OBSERVATIONS: dict[str, tuple[spaces.Space[Any], str, dict[str, str]]] = {
    "bytes": (spaces.Dict(eye=PICTURE, at=spaces.Discrete(4)), "uint8", {"at": "", "eye": "HWC"}),
    "mixed": (spaces.Dict(eye=PICTURE, speed=spaces.Box(-1, 1, (2,))), "uint8", {"eye": "HWC", "speed": ""}),
    "floats": (
        spaces.Dict({"a.b": spaces.Box(0, 1, (8, 12), np.float64), "c": spaces.Discrete(3)}),
        "float32",
        {"a.b": "HW", "c": ""},
    ),
    "tuple": (
        spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Dict(map=spaces.Box(0, 1, (8, 12))), PICTURE)),
        "uint8",
        {"0": "", "1.map": "HW", "2": "HWC"},
    ),
    "binary": (spaces.MultiBinary((4, 10, 10)), "uint8", {"": "CHW"}),
}


def made(observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> EnvSettings:
    return EnvSettings(id="ShoalTestSpaces-v0", kwargs={"observation": observation, "action": action})


def unpacked(row: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The numbers of one observation, in the order of `flatten`."""
    entries = [row.ravel()[part.start : part.start + part.stored] for part in spec.obs_parts]
    views = [e.copy().view(np.float32) if p.width > 1 else e for e, p in zip(entries, spec.obs_parts, strict=True)]
    return np.concatenate(views).astype(np.float32)


def test_floats_beside_bytes_are_checked_before_they_are_hidden() -> None:
    space = copy.deepcopy(OBSERVATIONS["mixed"][0])
    spec, env = describe_env(made(space)), make_env(made(space), 2, 0)
    rows = env.reset()
    assert spec.floats(rows)["speed"].shape == (2, 2) and abs(spec.floats(rows)["speed"]).max() <= 1
    wrong = {"eye": np.zeros((9, 9, 3), np.uint8), "speed": np.array([0, np.nan], np.float32)}
    env._vector.envs[1].unwrapped.observation_space.sample = lambda: wrong
    with pytest.raises(EnvError, match=r"lane \d.* nan in the observation's part 'speed'"):
        env.step(np.zeros(2, np.int64))
    observe = ObservationMap(space, spec)
    with pytest.raises(ConfigError, match="nan in the observation's part 'speed'"):
        observe(wrong)
    short = {"eye": np.zeros((9, 9, 3), np.uint8), "speed": np.zeros(1, np.float32)}
    with pytest.raises(ValueError, match=r"part 'speed' has not the shape \(2,\)"):
        PackedBox(space).pack(short)
    twice = {key: np.stack([value, value]) for key, value in (short | {"speed": np.ones(2, np.float32)}).items()}
    assert observe(twice)[0].shape == (2, 243 + 8)


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_images_among_the_parts_are_known(kind: str) -> None:
    space, dtype, axes = OBSERVATIONS[kind]
    settings = made(space)
    spec = describe_env(settings)
    assert {part.name: part.axes for part in spec.obs_parts} == axes and spec.obs_dtype == dtype
    assert spec.sees_images and int(np.prod(spec.obs_shape)) == sum(part.stored for part in spec.obs_parts)
    env, plain = make_env(settings, 2, 0), make_plain_env(settings)
    assert env.spec == spec
    assert env.reset().dtype == env.step(np.zeros(2, np.int64)).obs.dtype == dtype
    raw, _ = plain.reset(seed=0)
    row, single = ObservationMap(plain.observation_space, spec)(raw)  # what predict does
    assert single and np.array_equal(unpacked(row[0], spec), np.asarray(flatten(space, raw), np.float32))
    space.seed(0)  # all sample from it
    rows = env.reset()
    space.seed(0)
    assert np.array_equal(unpacked(rows[0], spec), np.asarray(flatten(space, plain.reset()[0]), np.float32))


def test_vectors_alone_are_one_input() -> None:
    spec = describe_env(made(spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Discrete(3))))
    assert spec.obs_parts == () and not spec.sees_images and spec.inputs == (ObsPart("", (7,)),)


@pytest.mark.parametrize(
    ("space", "axes", "scale"),
    [
        (spaces.Box(0, 255, (20, 20, 3), np.uint8), "HWC", 1 / 255),
        (spaces.Box(0, 1, (3, 20, 20), np.float64), "CHW", 1.0),
        (spaces.Box(0, 255, (20, 20, 3), np.float32), "HWC", 1 / 255),
        (spaces.Box(0, 1, (10, 10, 6), np.bool_), "HWC", 1.0),
        (spaces.Box(-1, 1, (10, 10, 6), np.float32), "HWC", 1.0),
        (spaces.Box(0, 255, (84, 84), np.uint8), "HW", 1 / 255),
    ],
)
def test_images(space: spaces.Box, axes: str, scale: float) -> None:
    spec = describe_env(made(space))
    assert spec.obs_shape == space.shape and spec.obs_parts == (ObsPart("", space.shape, 0, axes, scale),)
    assert spec.obs_dtype == ("uint8" if space.dtype in (np.uint8, np.bool_) else "float32")
    assert make_env(made(space), 1, 0).reset().dtype == spec.obs_dtype


@pytest.mark.parametrize(
    ("space", "nvec"),
    [
        (spaces.MultiDiscrete([3, 2, 5], start=[1, 0, -2]), (3, 2, 5)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5)),
        (spaces.MultiDiscrete([2, 3], dtype=np.int32), (2, 3)),
        (spaces.MultiBinary(3), (2, 2, 2)),
        (spaces.MultiBinary((2, 3)), (2,) * 6),
    ],
)
def test_actions_of_several_choices(space: spaces.Space[Any], nvec: tuple[int, ...]) -> None:
    env = make_env(made(spaces.Box(0, 1, (1,)), space), 2, 0)
    spec = env.spec
    assert (spec.action_nvec, spec.action_shape, spec.num_actions, spec.continuous) == (nvec, (len(nvec),), 0, False)
    env.reset()
    last = np.array(nvec) - 1
    env.step(np.stack((np.zeros(len(nvec), np.int64), last)))
    low, high = (one.unwrapped.last for one in env._vector.envs)
    start = np.asarray(getattr(space, "start", 0))
    assert space.contains(low) and space.contains(high)
    assert np.array_equal(low, np.zeros(space.shape) + start)
    assert np.array_equal(high, last.reshape(space.shape) + start)
    assert space.contains(ActionMap(space)(last))  # one action, as predict returns it
    for wrong in (last + (np.arange(len(nvec)) == 1), -np.ones(len(nvec), np.int64)):
        with pytest.raises(EnvError, match="is outside 0"):
            env.step(np.stack((wrong, last)))
