"""A torso that the user wrote, in the place of one of the package's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.networks.inputs import is_several, numbers
from shoal.types import EnvSpec, ObsPart


class OwnTorso(nn.Module):
    """Gives a module of the user's observations as floats, whatever they are stored as.

    The module gets [B, *obs_shape] in the dtype of the weights, images in [0, 1] if their space is bounded. Where
    images and other inputs come together, it gets a dict of such tensors, by the name of the part (`EnvSpec.inputs`).

    Args:
        module: the user's.
        spec: the environment.
        out_features: F, the width of what it returns, [B, F].
    """

    _like: Tensor

    def __init__(self, module: nn.Module, spec: EnvSpec, out_features: int) -> None:
        super().__init__()
        self.module, self._parts, self.out_features = module, spec.inputs, out_features
        # Follows `to`, as the module's weights do; a module may have none. Not saved.
        self.register_buffer("_like", torch.zeros(()), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape] as stored, or normalised and flat -> [B, out_features]"""
        parts = self._parts
        if is_several(parts):
            out: Tensor = self.module({part.name: self._floats(numbers(obs, part), part) for part in parts})
        else:
            out = self.module(self._floats(obs, parts[0]))
        return out

    def _floats(self, x: Tensor, part: ObsPart) -> Tensor:
        x = x.reshape(len(x), *part.shape).to(self._like.dtype)
        return x if part.scale == 1.0 else x * part.scale


MakeOwn = Callable[[], OwnTorso] | None
"""Makes a torso with new weights; None: the package's are used."""
