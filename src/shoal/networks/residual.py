"""The deep torso of "IMPALA", https://arxiv.org/abs/1802.01561: fifteen convolutions in three sections."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.networks.torso import FirstConvolution

SECTIONS = (16, 32, 32)
"""Channels of the three sections; each halves the image and adds two residual blocks."""


class _Block(nn.Module):
    """x + conv(relu(conv(relu(x))))"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv2(torch.relu_(self.conv1(torch.relu(x))))
        return x + out


class ResidualCNN(nn.Module):
    """Residual convolutions, flattened.

    Args:
        in_channels: channels of the image, the frame stack included.
        height: rows of the image.
        width: columns of the image.
        channels_last: True if images come as [B, H, W, C].
    """

    def __init__(self, in_channels: int, height: int = 84, width: int = 84, channels_last: bool = False) -> None:
        super().__init__()
        if in_channels < 1 or min(height, width) < 8:
            raise ConfigError(f"ResidualCNN needs 1 channel and 8x8 pixels, got {in_channels} and {height}x{width}.")
        self.channels_last = channels_last
        layers: list[nn.Module] = []
        channels = in_channels
        for section in SECTIONS:
            kind = nn.Conv2d if layers else FirstConvolution
            layers.append(kind(channels, section, kernel_size=3, padding=1))
            layers.append(nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
            layers += [_Block(section), _Block(section)]
            channels, height, width = section, (height + 1) // 2, (width + 1) // 2
        self.layers = nn.Sequential(*layers)
        self.out_features = channels * height * width

    def forward(self, obs: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, out_features]. uint8 is scaled to [0, 1]; floating point is taken as it is."""
        x = cast(FirstConvolution, self.layers[0]).images(obs, self.channels_last)
        return torch.relu(self.layers[1:](x)).flatten(1)
