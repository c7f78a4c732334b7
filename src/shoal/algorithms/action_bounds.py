"""The scaling of actions: networks and losses use [-1, 1], environments their own bounds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.types import Array, EnvSpec


class ActionBounds:
    """Between a network's actions and the environment's: -1 and 1 are its bounds, in each dimension. A dimension
    without bounds is taken as it is.
    """

    def __init__(self, spec: EnvSpec, *, drop_fixed: bool = True) -> None:
        """Args:
        spec: the environment.
        drop_fixed: networks do not see dimensions of one value only. The replay cannot teach a critic its slope
            there, and a policy that follows the critic would climb it for ever.
        """
        low, high = np.array(spec.action_low, np.float64), np.array(spec.action_high, np.float64)
        self._low, self._high, self._shape = low.astype(np.float32), high.astype(np.float32), spec.action_shape
        bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        wide = self._low < self._high  # as float32: that is what actions are
        self._free = np.flatnonzero(wide) if drop_fixed and not wide.all() else slice(None)
        self.size = len(low[self._free])
        """Values that are to be chosen."""
        self._center, self._half = (high / 2 + low / 2), (high / 2 - low / 2)[self._free]

    def to_env(self, squashed: Array) -> npt.NDArray[np.float32]:
        """[N, size] -> [N, *action_shape], never beyond a bound, also not by rounding."""
        action = np.tile(self._center, (len(squashed), 1))
        action[:, self._free] += self._half * squashed
        clipped: npt.NDArray[np.float32] = np.minimum(np.maximum(action.astype(np.float32), self._low), self._high)
        return clipped.reshape(len(clipped), *self._shape)

    def from_env(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """A function for batches on this device: [B, *action_shape] -> [B, size] in [-1, 1]."""
        if (self._low == -1).all() and (self._high == 1).all():
            return lambda action: action.reshape(action.shape[0], -1)
        center, half = (torch.from_numpy(x).float().to(device) for x in (self._center[self._free], self._half))
        free = self._free if isinstance(self._free, slice) else torch.from_numpy(self._free).to(device)
        return lambda action: (action.reshape(action.shape[0], -1)[:, free] - center) / half
