"""Several MLPs of one shape, evaluated as one.

Twin critics are two small networks: one after the other they are twice the calls for the same arithmetic, and small
networks spend their time in calls. Here the members' weights lie in one tensor and a layer of all of them is one
batched product, forwards and backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoal.errors import ConfigError
from shoal.networks.activations import Activation, activation_backward_in_place, activation_in_place


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
        self._activation: Activation = activation
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for width_in, width_out in itertools.pairwise(sizes):
            bound = 1.0 / math.sqrt(width_in)
            self.weights.append(nn.Parameter(torch.empty(members, width_in, width_out).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(members, 1, width_out).uniform_(-bound, bound)))
        # Looking into a ParameterList takes as long as a small layer.
        self._layers = list(zip(self.weights, self.biases, strict=True))

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self._layers[0][0].dtype
        return dtype

    def forward(self, x: Tensor, first: int | None = None, constant: bool = False) -> Tensor:
        """[B, in_features] -> [M, B, out_features].

        Args:
            x: the inputs.
            first: of the first so many members only.
            constant: the weights are constants here; only `x` gets a gradient.
        """
        layers: Sequence[tuple[Tensor, Tensor]] = self._layers
        if constant:
            layers = [(weight.detach(), bias.detach()) for weight, bias in layers]
        if first is not None:
            layers = [(weight[:first], bias[:first]) for weight, bias in layers]
        x = x.expand(first or self.members, -1, -1)  # [M, B, F]
        parameters = itertools.chain.from_iterable(layers)
        out: Tensor = _Layers.apply(x, self._activation, *parameters)  # type: ignore[no-untyped-call]
        return out


class _Layers(torch.autograd.Function):
    """All layers as one step of autograd.

    Large tensors are overwritten while they are still in the processor's cache: biases are added and activations
    applied to what a product has just written, and backwards the same. Left to autograd, each is a pass over memory
    of its own into a new tensor; that was a tenth of an update.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        activate, inputs, last = activation_in_place(activation), [x], len(parameters) // 2 - 1
        for layer in range(last + 1):
            x = torch.bmm(x, parameters[2 * layer]).add_(parameters[2 * layer + 1])
            if layer < last:
                inputs.append(activate(x))
        ctx.save_for_backward(*inputs, *parameters[::2])
        ctx.activation = activation
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        wanted = ctx.needs_input_grad
        of_parameters: list[Tensor | None] = [None] * (2 * count)
        for layer in range(count - 1, -1, -1):
            if wanted[2 + 2 * layer]:
                of_parameters[2 * layer] = torch.bmm(inputs[layer].transpose(1, 2), gradient)
                of_parameters[2 * layer + 1] = gradient.sum(dim=1, keepdim=True)
            if layer == 0 and not wanted[0]:
                return None, None, *of_parameters
            gradient = torch.bmm(gradient, weights[layer].transpose(1, 2))
            if layer > 0:
                activation_backward_in_place(ctx.activation, gradient, inputs[layer])
        return gradient, None, *of_parameters
