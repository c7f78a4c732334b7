"""Several MLPs of one shape, evaluated as one.

Twin critics are two small networks: one after the other they are twice the calls for the same arithmetic, and small
networks spend their time in calls. Here the members' weights lie in one tensor and a layer of all of them is one
batched product, forwards and backwards.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.networks.activations import Activation, activation_in_place


class EnsembleMLP(nn.Module):
    """M networks, Linear and activation in turn, the last layer without one.

    Each member starts as torch's own `nn.Linear` layers do, from torch's global generator.

    Args:
        members: M.
        in_features: values in one input.
        hidden: widths of the hidden layers.
        out_features: width of the output.
        activation: after every hidden layer.
    """

    def __init__(
        self, members: int, in_features: int, hidden: tuple[int, ...], out_features: int, activation: Activation
    ) -> None:
        super().__init__()
        sizes = (in_features, *hidden, out_features)
        if members < 1 or any(size < 1 for size in sizes):
            raise ConfigError(f"An ensemble needs positive sizes, got {members} members of widths {sizes}.")
        self.members, self.in_features = members, in_features
        self._activate = activation_in_place(activation)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width_in, width_out in pairwise(sizes):
            bound = 1.0 / math.sqrt(width_in)
            self.weights.append(nn.Parameter(torch.empty(members, width_in, width_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, width_out).uniform_(-bound, bound)))
        # Looking into a ParameterList takes as long as a small layer.
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor, first: int | None = None) -> Tensor:
        """[B, in_features] -> [M, B, out_features]; of the `first` so many members only, if given."""
        members = first or self.members
        last = len(self._layers) - 1
        x = x.expand(members, -1, -1)  # [M, B, F]
        for layer, (weight, bias) in enumerate(self._layers):
            if first is not None:
                weight, bias = weight[:first], bias[:first]
            x = torch.baddbmm(bias, x, weight)
            if layer < last:
                x = self._activate(x)
        return x
