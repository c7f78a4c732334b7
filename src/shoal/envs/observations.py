"""From an environment's raw observations to a policy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import batch_space, iterate

from shoal.envs.parts import PackedBox, needs_packing
from shoal.errors import ConfigError
from shoal.types import Array, EnvSpec

Space = spaces.Space[Any]


class ObservationMap:
    """From raw observations, one or a batch, to the policy's arrays: flattened and cast as in training.

    A batch is what Gymnasium's vector environments give: every array has the batch first, inside Dict and Tuple too.
    """

    def __init__(self, space: Space, spec: EnvSpec) -> None:
        """Args:
        space: of one observation, before anything is flattened.
        spec: what the policy sees.
        """
        self._space, self._spec = space, spec
        self._pack: Callable[[Any], Array] = lambda obs: np.asarray(flatten(space, obs))
        if needs_packing(space):
            self._pack = PackedBox(space).pack

    def __call__(self, obs: Any) -> tuple[Array, bool]:
        """Returns [N, *obs_shape], and whether `obs` was a single observation.

        Raises:
            ConfigError: it has another shape or type than the environment's observations, or is not finite.
        """
        flat, single = (self._array(obs), None) if isinstance(self._space, spaces.Box) else self._flattened(obs)
        shape, where = self._spec.obs_shape, self._spec.env_id
        if single is None:
            single = flat.shape == shape
            flat = flat[None] if single else flat
        if flat.shape[1:] != shape or flat.ndim != len(shape) + 1 or not len(flat):
            given = flat.shape[1:] if single else flat.shape
            batch_shape = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
            raise ConfigError(
                f"The observation has shape {given}; {where} has {shape}, a batch {batch_shape}.{self._stack_hint()}"
            )
        if not np.can_cast(flat.dtype, self._spec.obs_dtype, "same_kind"):
            raise ConfigError(f"The observation is of {flat.dtype}; {where} has {self._spec.obs_dtype}.")
        with np.errstate(over="ignore"):  # reported below
            batch = np.ascontiguousarray(flat, self._spec.obs_dtype)
        if batch.dtype.kind == "f" and not (fine := np.isfinite(batch)).all():
            wrong = flat[~fine][0]
            raise ConfigError(f"The observation holds {wrong}, which is no finite {batch.dtype}: no action follows.")
        return batch, single

    def _array(self, obs: Any) -> Array:
        try:
            return np.asarray(obs)
        except ValueError as error:
            raise ConfigError(
                f"The observation is no array: {error} {self._spec.env_id} has {self._spec.obs_shape}."
            ) from error

    def _flattened(self, obs: Any) -> tuple[Array, bool]:
        try:
            size = _batch_size(self._space, obs)
            if size is None:
                return self._pack(obs)[None], True
            batched = iterate(batch_space(self._space, size), obs)
            return np.stack([self._pack(one) for one in batched]), False
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"The observation does not fit {self._spec.env_id}, whose observations are {self._space}, "
                f"one or a batch with the batch first: {type(error).__name__}: {error}"
            ) from error

    def _stack_hint(self) -> str:
        frames = self._spec.frame_stack
        if frames == 1:
            return ""
        return f" An observation is the newest {frames} frames, oldest first, as run.make_env() gives them."


def _batch_size(space: Space, obs: Any) -> int | None:
    """The number of observations in a batch; None for a single observation. The first array decides."""
    if isinstance(space, spaces.Dict):
        name = next(iter(space))
        return _batch_size(space[name], obs[name])
    if isinstance(space, spaces.Tuple):
        return _batch_size(space[0], obs[0])
    if space.shape is None:  # Text, OneOf: no arrays
        return None if space.contains(obs) else len(obs)
    shape: tuple[int, ...] = np.shape(obs)
    if shape == space.shape:
        return None
    if shape[1:] != space.shape or not shape or not shape[0]:
        raise ValueError(f"an array of shape {shape} where {space} belongs")
    return shape[0]
