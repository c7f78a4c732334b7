"""The data that is passed between the parts of Shoal.

Every type here is a NamedTuple or a frozen dataclass: no process or package passes a bare tuple or a dict of strings to
another. Arrays are numpy; only `networks/`, `ops/`, `algorithms/` and `loops/` use torch.

Shapes: B batch, T time, N lanes (the sub-environments of one actor).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Values of the `boundary` column of a shard.
STEP = 0
"""An ordinary row: the action was taken from this observation."""
FINAL = 1
"""The row after an episode's end: it holds the final observation, its action was ignored (NEXT_STEP autoreset)."""
CUT = 2
"""The stream is broken here (a writer was restarted, an environment was rebuilt): no view may look across it."""


SMALLEST_IMAGE = 8
"""Height and width from which a grid of numbers counts as an image."""
MIN_IMAGE = 36
"""Images with fewer rows or columns are small: Nature's convolutions would leave little of them."""
LARGEST_PIXEL = 65_535.0
"""A space with a larger bound than this does not say how large its values are."""


@dataclass(frozen=True)
class ObsPart:
    """One input of a network: a whole observation, or a part of one that is stored as one row of numbers.

    Attributes:
        name: where it comes from, such as `camera` or `0.near`; empty for a whole observation.
        shape: its own shape.
        start: where it begins in the row.
        width: entries of the row per number: 4 where a float32 is stored as bytes, beside an image of bytes.
        axes: of an image, one letter per axis: H, W, C (channels), S (a stack of frames). Empty for vectors.
        scale: what an image's numbers are multiplied by, so that networks see them in [0, 1].
    """

    name: str
    shape: tuple[int, ...]
    start: int = 0
    axes: str = ""
    scale: float = 1.0
    width: int = 1

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def stored(self) -> int:
        """How many entries of the row."""
        return self.size * self.width

    @staticmethod
    def of(
        shape: tuple[int, ...], dtype: str, bounds: tuple[float, float] | None = None, name: str = "", start: int = 0
    ) -> ObsPart:
        """An image if it looks like one: see `image_axes`. `bounds` are those of its space, if they are known."""
        low, high = bounds or ((0.0, 255.0) if dtype == "uint8" else (-math.inf, math.inf))
        scaled = low >= 0 and 0 < high <= LARGEST_PIXEL
        axes = image_axes(shape, bounded=scaled)
        return ObsPart(name, tuple(shape), start, axes, 1.0 / high if axes and scaled else 1.0)


def image_axes(shape: tuple[int, ...], *, bounded: bool = True) -> str:
    """The axes of an image, such as "CHW"; empty if this is none.

    Height and width must be at least `SMALLEST_IMAGE`. The channels are the shorter of the first and the last axis, the
    first if both are equal. With two axes it must be bounded: else it is more likely a table. With four axes, the first
    one stacks frames.
    """
    if len(shape) == 4:
        axes = image_axes(shape[1:])
        return f"S{axes}" if axes else ""
    if len(shape) == 3:
        axes = "HWC" if shape[2] < shape[0] else "CHW"
    else:
        axes = "HW" if len(shape) == 2 and bounded else ""
    sides = [side for side, axis in zip(shape, axes, strict=False) if axis in "HW"]
    return axes if sides and min(sides) >= SMALLEST_IMAGE else ""


@dataclass(frozen=True)
class EnvSpec:
    """The observations and actions of an environment, as an algorithm needs to know them.

    Attributes:
        env_id: the id it was made from.
        obs_shape: shape of one observation as the policy sees it, frame stack included.
        obs_dtype: numpy name of its dtype.
        frame_stack: 1, or the length of the leading axis of `obs_shape` that stacks the newest frames. Only the newest
            frame is stored; views stack again, with zeros before an episode's first frame.
        num_actions: number of discrete actions, or 0 for other action spaces.
        action_shape: shape of one action; `()` for discrete actions.
        action_low, action_high: bounds of a continuous action, flattened; empty for discrete actions.
        reward_threshold: the return at which the environment counts as solved, if it has one.
        unit_observations: whether all observed values are within [-1, 1] by their space, as one-hot vectors are.
        binary_observations: whether they are zeros and ones only, as Discrete and MultiBinary observations become.
        action_nvec: where an action is several discrete choices (MultiDiscrete, MultiBinary): the number of each.
        obs_parts: the inputs of a network, if there are images or several agents among them; empty for vectors.
        agents: how many agents a lane holds at most; 0 for an ordinary environment. With agents, an observation has the
            parts `agents` [A, ...], `mask` [A, A] and `reward` [A] (`envs/team.py`), and `action_nvec` has A entries.
        levels: the names of the numbers that make a level of difficulty; empty: it has no levels.
    """

    env_id: str
    obs_shape: tuple[int, ...]
    obs_dtype: str
    frame_stack: int
    num_actions: int
    action_shape: tuple[int, ...]
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    reward_threshold: float | None = None
    unit_observations: bool = False
    binary_observations: bool = False
    action_nvec: tuple[int, ...] = ()
    obs_parts: tuple[ObsPart, ...] = ()
    agents: int = 0
    levels: tuple[str, ...] = ()

    @property
    def continuous(self) -> bool:
        """Whether actions are numbers, not choices."""
        return not self.num_actions and not self.action_nvec

    @property
    def inputs(self) -> tuple[ObsPart, ...]:
        """What a network sees: `obs_parts`, or the observation as a whole."""
        return self.obs_parts or (ObsPart.of(self.obs_shape, self.obs_dtype),)

    @property
    def sees_images(self) -> bool:
        """Whether observations go through convolutions."""
        return any(part.axes for part in self.inputs)

    @property
    def sees_small_images(self) -> bool:
        """Whether all its images are so small that an update of them costs little more than one of vectors."""
        images = [dict(zip(part.axes, part.shape, strict=True)) for part in self.inputs if part.axes]
        return bool(images) and all(sides["H"] * sides["W"] < MIN_IMAGE**2 for sides in images)

    @property
    def tabular(self) -> bool:
        """Whether states are told apart by zeros and ones, for discrete actions: much is learned state by state."""
        return self.binary_observations and not self.continuous and not self.sees_images

    def floats(self, obs: Array) -> dict[str, Array]:
        """The floating-point numbers of stored observations [..., *obs_shape], by part: what must be finite."""
        if obs.dtype.kind == "f":
            return {"": obs}
        parts = [part for part in self.obs_parts if part.width > 1]
        rows = {part.name: obs[..., part.start : part.start + part.stored] for part in parts}
        return {name: np.ascontiguousarray(row).view(np.float32) for name, row in rows.items()}

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of what is stored per step: one frame, or the whole observation when nothing is stacked."""
        return self.obs_shape[1:] if self.frame_stack > 1 else self.obs_shape


class EnvStep(NamedTuple):
    """What a vector environment returns for one action per lane (NEXT_STEP autoreset).

    A lane that ended in the previous step is reset by this one: its action was ignored, its reward is 0.
    """

    obs: Array
    """[N, *obs_shape]"""
    reward: npt.NDArray[np.float32]
    """[N] what the algorithm learns from (clipped if the environment is set so)."""
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    finished: tuple[Episode, ...]
    """Episodes that ended in this step, with their true (unclipped) returns."""


NO_METRICS: Mapping[str, float] = {}
"""The default of `Episode.metrics`; shared, so never written to."""


class Episode(NamedTuple):
    """One finished episode."""

    lane: int
    episode_return: float
    length: int
    metrics: Mapping[str, float] = NO_METRICS
    """What the environment says of it, by name; `is_success` is 1 where it reached its goal."""


class Keys(NamedTuple):
    """Rows of shards. Logical numbers are never reused, so a key shows whether its row was overwritten."""

    shard: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    logical: npt.NDArray[np.int64]

    @staticmethod
    def empty(n: int) -> Keys:
        """Arrays for n keys, all of shard 0."""
        return Keys(np.zeros(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int64))

    @staticmethod
    def joined(*some: Keys) -> Keys:
        """Several keys concatenated."""
        shard, lane, logical = (np.concatenate(columns) for columns in zip(*some, strict=True))
        return Keys(shard, lane, logical)

    def at(self, places: Any) -> Keys:
        """Some of them: a slice gives a view, an index array a copy."""
        return Keys(self.shard[places], self.lane[places], self.logical[places])

    def put(self, places: Any, keys: Keys) -> None:
        """Overwrites the keys at some places."""
        self.shard[places], self.lane[places], self.logical[places] = keys


class Selection(NamedTuple):
    """What a selector drew: B starting rows and their probabilities."""

    keys: Keys
    probabilities: npt.NDArray[np.float64]
    """[B] exact probability of each draw among all rows of all shards that may be drawn; in a mixture, by its part."""


class Transition(NamedTuple):
    """n-step transitions. `discount` is gamma^m, or 0 where the episode terminated within the m steps."""

    obs: Array
    action: Array
    reward: npt.NDArray[np.float32]
    discount: npt.NDArray[np.float32]
    next_obs: Array


class Sequence(NamedTuple):
    """Unbroken sequences of steps, time-major. Rows with `boundary` set hold no transition: mask them."""

    obs: Array
    """[T + 1, B, *obs_shape] the last one is for bootstrapping."""
    action: Array
    """[T, B, ...]"""
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    boundary: npt.NDArray[np.uint8]
    """[T + 1, B] one of STEP, FINAL."""
    extras: Mapping[str, Array]
    """Other recorded columns, [T + 1, B, ...]; columns asked for at the start only are [B, ...]."""


UNKNOWN = np.empty(0, np.bool_)
"""The default of `Sample.fresh`; shared, so never written to."""


class Gradients(NamedTuple):
    """Gradients that other processes computed, each of its own steps; see `algorithms/pushes.py`."""

    vectors: npt.NDArray[np.float32]
    """[K, size]"""
    rows: npt.NDArray[np.int64]
    """[K] steps that each is the mean of."""
    staleness: npt.NDArray[np.int64]
    """[K] versions of the weights since those that it was computed with."""


class Sample(NamedTuple):
    """One batch. Its arrays are reused: use or copy them before `ring - 1` more samples are drawn."""

    data: Transition | Sequence | Gradients
    keys: Keys
    probabilities: npt.NDArray[np.float64]
    size: int | npt.NDArray[np.int64]
    """Number of rows that could have been drawn: N in the importance weight (N * P)^-beta. [B] in a mixture, the number
    of the draw's part: weights correct the preferences of a part, not the ratios of the mixture."""
    weights_version: float
    """Mean version of the weights that produced these rows; the learner's own version minus this is the staleness. NaN
    when all rows are of other runs."""
    fresh: npt.NDArray[np.bool_] = UNKNOWN
    """[B] True where the draw comes from a queue (fifo, circular), False where it is replayed. Empty in samples made by
    hand; `Replay` always fills it."""
