"""Torsos: from an observation to features.

A torso takes observations as they are stored (uint8, bool, float64, ...) and brings them to the dtype of its weights
itself, so batches cross the bus small and a network in bfloat16 needs no other caller. Every torso has `out_features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.errors import ConfigError

Strides = tuple[int, int]
Network = TypeVar("Network", bound=nn.Module)


class MLP(nn.Module):
    """Linear layers, each followed by the activation, the last one too.

    Without layers (`hidden=()`) it only flattens, and leaves the dtype as it is.

    Args:
        in_features: number of values in one observation, whatever its shape.
        hidden: widths of the layers.
        activation: class of the activation, made without arguments.
    """

    def __init__(self, in_features: int, hidden: tuple[int, ...], activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        if in_features < 1 or any(width < 1 for width in hidden):
            raise ConfigError(f"An MLP needs positive widths, got {in_features} inputs and hidden={tuple(hidden)}.")
        self.in_features = in_features
        self.out_features = hidden[-1] if hidden else in_features
        layers: list[nn.Module] = []
        for width_in, width_out in zip((in_features, *hidden), hidden, strict=False):
            layers += [nn.Linear(width_in, width_out), activation()]
        self.layers = nn.Sequential(*layers)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape] of any dtype -> [B, out_features]"""
        if obs.dim() == 0 or obs.numel() != obs.shape[0] * self.in_features:
            raise ValueError(f"obs must be [B, ...] with {self.in_features} values each, got shape {tuple(obs.shape)}.")
        x = obs.reshape(obs.shape[0], self.in_features)  # [B, F]
        if not len(self.layers):
            return x
        features: Tensor = self.layers(x.to(cast(nn.Linear, self.layers[0]).weight.dtype))
        return features


class FirstConvolution(nn.Conv2d):
    """A network's first layer on stored images: uint8 is scaled to [0, 1], floating point is taken as it is, unless
    `scale` says what all are multiplied by.

    It is the weights that are scaled, a few thousand values instead of all pixels of a batch: a tenth of an actor's
    convolutions.

    `centered`: the mean of each filter's weights is taken out, so that it answers to contrasts and not to brightness.
    Pixels are positive and mostly background. Without it every step of Adam moves all pixels' weights of a filter
    together, and a few steps of one sign switch the filter off for good.
    """

    centered = False
    scale: float | None = None

    def images(self, obs: Tensor, channels_last: bool, padding: Sequence[int] = ()) -> Tensor:
        """[B, C, H, W] (or [B, H, W, C]) -> [B, out, h, w]; `padding` is of columns and rows, as torch's."""
        x, weight = obs.to(self.weight.dtype), self.weight
        if self.centered:
            weight = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        scale = self.scale if self.scale is not None else 1.0 / 255.0 if obs.dtype == torch.uint8 else 1.0
        if scale != 1.0:
            weight = weight * scale
        if channels_last:
            x = x.permute(0, 3, 1, 2)
        if any(padding):
            x = functional.pad(x, padding)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


def center_images(network: Network) -> Network:
    """Sets `centered` in all first convolutions of a network."""
    for module in network.modules():
        if isinstance(module, FirstConvolution):
            module.centered = True
    return network


class Convolutions(nn.Module):
    """Convolutions with ReLU, one after the other, flattened.

    Where the strides do not reach the last rows or columns, zeros are put behind them. Otherwise these would not be
    seen: of 10x10 the last ones, which is where the player of MinAtar's Breakout is.

    Args:
        in_channels: channels of the image, the frame stack included.
        height: rows of the image.
        width: columns of the image.
        channels_last: True if images come as [B, H, W, C].
        layers: filters, side of a filter, and strides along rows and columns, of each.
    """

    def __init__(
        self, in_channels: int, height: int, width: int, channels_last: bool, layers: Sequence[tuple[int, int, Strides]]
    ) -> None:
        super().__init__()
        self.channels_last = channels_last
        self.in_shape = (height, width, in_channels) if channels_last else (in_channels, height, width)
        seen, sides = in_channels, [height, width]
        self._padding: list[list[int]] = []
        for number, (filters, side, strides) in enumerate(layers, 1):
            kind = FirstConvolution if number == 1 else nn.Conv2d
            rows, columns = (-(length - side) % stride for length, stride in zip(sides, strides, strict=True))
            self._padding.append([0, columns, 0, rows])
            fits = min(sides) >= side
            sides = [-((side - length) // stride) + 1 for length, stride in zip(sides, strides, strict=True)]
            if in_channels < 1 or not fits:
                needs = f"{type(self).__name__} needs at least 1 channel, and images that its filters fit into"
                raise ConfigError(f"{needs}; got {in_channels} and {height}x{width}.")
            self.add_module(f"conv{number}", kind(seen, filters, side, strides))
            seen = filters
        self.out_features = seen * sides[0] * sides[1]

    def forward(self, obs: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, out_features]. uint8 is scaled to [0, 1]; floating point is taken as it is."""
        if tuple(obs.shape[1:]) != self.in_shape:
            raise ValueError(f"obs must be [B, *{self.in_shape}], got shape {tuple(obs.shape)}.")
        first, *others = self.children()
        x = torch.relu_(cast(FirstConvolution, first).images(obs, self.channels_last, self._padding[0]))
        for convolution, padding in zip(others, self._padding[1:], strict=True):
            x = torch.relu_(convolution(functional.pad(x, padding) if any(padding) else x))
        return x.flatten(1)


class NatureCNN(Convolutions):
    """The three convolutions of "Human-level control through deep reinforcement learning".

    https://www.nature.com/articles/nature14236. The fully connected layer is left to the heads: a dueling network has
    one per stream. For images of at least `types.MIN_IMAGE` rows and columns.
    """

    def __init__(self, in_channels: int, height: int = 84, width: int = 84, channels_last: bool = False) -> None:
        layers = ((32, 8, (4, 4)), (64, 4, (2, 2)), (64, 3, (1, 1)))
        super().__init__(in_channels, height, width, channels_last, layers)


class SmallCNN(Convolutions):
    """The two convolutions of "Asynchronous Methods for Deep Reinforcement Learning": a third of the work.

    https://arxiv.org/abs/1602.01783, also the shallow network of IMPALA.
    """

    def __init__(self, in_channels: int, height: int = 84, width: int = 84, channels_last: bool = False) -> None:
        super().__init__(in_channels, height, width, channels_last, ((16, 8, (4, 4)), (32, 4, (2, 2))))


class TinyCNN(Convolutions):
    """Two convolutions of 3x3 for images too small for the others.

    The first has stride 2 along sides of at least 16, the second one always: 10x10 becomes 4x4, 32x32 becomes 8x8.
    """

    def __init__(self, in_channels: int, height: int, width: int, channels_last: bool = False) -> None:
        strides = (2 if height >= 16 else 1, 2 if width >= 16 else 1)
        super().__init__(in_channels, height, width, channels_last, ((32, 3, strides), (64, 3, (2, 2))))
