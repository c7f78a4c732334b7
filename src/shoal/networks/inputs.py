"""The one door from an observation to a network's torso: convolutions that fit an image's size, an MLP for a vector, or
both for an observation of several parts.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.networks.residual import ResidualCNN
from shoal.networks.torso import MLP, Convolutions, FirstConvolution, NatureCNN, SmallCNN, TinyCNN
from shoal.types import MIN_IMAGE, ObsPart

Torso = Literal["small", "shallow", "deep"]
_KINDS: dict[Torso, type[SmallCNN | NatureCNN | ResidualCNN]]
_KINDS = {"small": SmallCNN, "shallow": NatureCNN, "deep": ResidualCNN}


class ImageTorso(nn.Module):
    """Convolutions for images with any order of axes, and stacks of them: [B, *shape] -> [B, out_features]."""

    def __init__(self, part: ObsPart, torso: Torso) -> None:
        super().__init__()
        self.convolutions = convolutions(part, torso)
        self.out_features = self.convolutions.out_features
        order = sorted(range(len(part.axes)), key=lambda at: "SCHW".index(part.axes[at]))
        self._order, self._extra = (0, *(at + 1 for at in order)), len(part.axes) - 2

    def forward(self, obs: Tensor) -> Tensor:
        x = obs.permute(self._order)  # [B, (S,) (C,) H, W]
        x = x.flatten(1, self._extra) if self._extra > 1 else x if self._extra else x.unsqueeze(1)
        out: Tensor = self.convolutions(x)
        return out


class SeveralInputs(nn.Module):
    """Images through convolutions, all vectors through one MLP, joined: the layer after it sees both.

    Args:
        parts: of the row of numbers that an observation is.
        hidden: widths of the MLP's layers.
        torso: the convolutions of large images.
        activation: of the MLP.
    """

    def __init__(
        self, parts: tuple[ObsPart, ...], hidden: tuple[int, ...], torso: Torso, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        seen = [part for part in parts if part.axes]
        vectors = [part for part in parts if not part.axes and part.size]
        self.images = nn.ModuleList(_image_torso(part, torso) for part in seen)
        self.vectors = MLP(sum(part.size for part in vectors), hidden, activation) if vectors else None
        self._seen, self._vectors = seen, vectors
        wide = [*self.images, self.vectors] if self.vectors is not None else [*self.images]
        self.out_features = sum(int(one.out_features) for one in wide)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, F] -> [B, out_features]"""
        features = [
            image(numbers(obs, part).unflatten(1, part.shape))
            for part, image in zip(self._seen, self.images, strict=True)
        ]
        if self.vectors is not None:
            joined = torch.cat([numbers(obs, part) for part in self._vectors], 1)
            features.append(self.vectors(joined).to(features[0].dtype))
        return torch.cat(features, 1)


def numbers(obs: Tensor, part: ObsPart) -> Tensor:
    """One part of a batch of rows, [B, size]."""
    entries = obs[:, part.start : part.start + part.stored]
    # A copy, because a float32 must not begin between two multiples of four bytes.
    return entries if part.width == 1 else entries.clone(memory_format=torch.contiguous_format).view(torch.float32)


def is_several(parts: tuple[ObsPart, ...]) -> bool:
    """Whether an observation is a row of parts, not one image or vector."""
    return len(parts) > 1 or bool(parts[0].start or parts[0].name)


def convolutions(part: ObsPart, torso: Torso) -> Convolutions | ResidualCNN:
    """Those of the name for large images, smaller ones for small images; [B, C, H, W], or [B, H, W, C] for "HWC"."""
    sides = dict(zip(part.axes, part.shape, strict=True))
    height, width, last = sides["H"], sides["W"], part.axes == "HWC"
    kind: type[SmallCNN | NatureCNN | ResidualCNN | TinyCNN] = _KINDS[torso]
    if kind is not ResidualCNN and min(height, width) < MIN_IMAGE:
        kind = TinyCNN
    made = kind(sides.get("C", 1) * sides.get("S", 1), height, width, channels_last=last)
    for module in made.modules():
        if isinstance(module, FirstConvolution):
            module.scale = part.scale
    return made


def make_torso(
    parts: tuple[ObsPart, ...],
    hidden: tuple[int, ...],
    torso: Torso = "shallow",
    activation: type[nn.Module] = nn.ReLU,
) -> MLP | Convolutions | ResidualCNN | ImageTorso | SeveralInputs:
    """Chooses the torso for an observation.

    Args:
        parts: the observation's; see `EnvSpec.inputs`.
        hidden: widths of the MLP's layers; the convolutions have their own.
        torso: the convolutions of images of at least 36x36: A3C's, Nature's, or IMPALA's residual ones.
        activation: of the MLP.

    Returns:
        Convolutions for one image, `MLP` for one vector, else `SeveralInputs`.
    """
    if any(side < 1 for part in parts for side in part.shape):
        raise ConfigError(f"An observation of shape {', '.join(str(part.shape) for part in parts)} is empty.")
    if is_several(parts):
        return SeveralInputs(parts, hidden, torso, activation)
    return _image_torso(parts[0], torso) if parts[0].axes else MLP(parts[0].size, hidden, activation)


def _image_torso(part: ObsPart, torso: Torso) -> Convolutions | ResidualCNN | ImageTorso:
    return convolutions(part, torso) if part.axes in ("CHW", "HWC") else ImageTorso(part, torso)
