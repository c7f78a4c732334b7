"""Several MLPs of one shape, evaluated as one.

Twin critics are two small networks: one after the other they are twice the calls for the same arithmetic, and small
networks spend their time in calls. Here the members' weights lie in one tensor and a layer of all of them is one
batched product, forwards and backwards. Biases are the weights of an input that is always 1, so the product adds them,
and its gradient is theirs.

For torch.compile and autocast the same is written in plain operations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shoal.errors import ConfigError
from shoal.networks.activations import (
    ACTIVATIONS,
    ACTIVATIONS_IN_PLACE,
    Activation,
    activation_backward_in_place,
)
from shoal.networks.scratch import Block, Scratch, Sizes, make_blocks


class EnsembleMLP(nn.Module):
    """M networks, Linear and activation in turn, the last layer without one.

    Each member starts as torch's own `nn.Linear` layers do, from torch's global generator. A layer's weights are
    [M, width_in + 1, width_out]: the last row is the biases.

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
        self.members, self.in_features, self.hidden = members, in_features, hidden
        self.activation: Activation = activation
        self.weights = nn.ParameterList()
        for width_in, width_out in itertools.pairwise(sizes):
            bound = 1.0 / math.sqrt(width_in)
            weight = torch.empty(members, width_in, width_out).uniform_(-bound, bound)
            bias = torch.empty(members, 1, width_out).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(torch.cat((weight, bias), dim=1)))
        self._layers = list(self.weights)  # looking into a ParameterList takes as long as a small layer
        self._scratch, self._shared = Scratch(), False
        self._places: list[Tensor | None] | None = None
        self._ones = torch.ones(1, 1)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self._layers[0].dtype
        return dtype

    def work_in(self, scratch: Scratch) -> None:
        """From now on, hidden layers are computed in this memory, on a CPU. After an evaluation's backward pass other
        networks may overwrite it, so each evaluation has one backward pass only.
        """
        self._scratch, self._shared = scratch, True

    def write_gradients_in_place(self, wanted: bool) -> None:
        """Whether the next backward pass writes the gradients of the weights into their `.grad`."""
        self._places = [weight.grad for weight in self._layers] if wanted else None

    def forward(self, *parts: Tensor, first: int | None = None, constant: bool = False) -> Tensor:
        """[B, F1], [B, F2] ... -> [M, B, out_features].

        Args:
            parts: the inputs, which together have `in_features` values.
            first: of the first so many members only.
            constant: the weights are constants here; only the inputs get a gradient.
        """
        layers: Sequence[Tensor] = self._layers
        if constant:
            layers = [weight.detach() for weight in layers]
        if first is not None:
            layers = [weight[:first] for weight in layers]
        if torch.compiler.is_compiling() or torch.is_autocast_enabled(layers[0].device.type):
            return self.plain(*parts, layers=layers)
        weight, rows = layers[0], parts[0].shape[0]
        # Not on a GPU: its allocator does the same, and a captured update must own the memory it was captured with.
        on_cpu, ones = weight.device.type == "cpu", self._ones
        if not on_cpu or ones.shape[0] != rows or ones.dtype != weight.dtype:
            with torch.inference_mode(False):
                ones = torch.ones(rows, 1, dtype=weight.dtype, device=weight.device)
            self._ones = ones if on_cpu else self._ones
        x = torch.cat((*parts, ones), dim=1)
        differentiable = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        reused = on_cpu and (self._shared or not differentiable)
        sizes: Sizes = (weight.shape[0], rows, self.hidden, weight.dtype, weight.device)
        call = _Call(self, sizes, self._scratch if reused else None, differentiable)
        x = x.expand(weight.shape[0], -1, -1)  # [M, B, F + 1]
        out: Tensor = _Layers.apply(x, call, *layers)  # type: ignore[no-untyped-call]
        return out

    def plain(self, *parts: Tensor, layers: Sequence[Tensor] | None = None) -> Tensor:
        """The same in plain operations, which a compiler fuses and autocast casts. `layers`: other weights."""
        layers = self._layers if layers is None else layers
        x = torch.cat(tuple(parts), dim=1).expand(layers[0].shape[0], -1, -1)
        for number, weight in enumerate(layers):
            if number:
                x = ACTIVATIONS[self.activation](x)
            # Weights and biases in one product: apart, their gradients would have to be put together again.
            x = torch.bmm(torch.cat((x, torch.ones_like(x[..., :1])), dim=2), weight)
        return x

    def take_places(self, shape: torch.Size) -> list[Tensor | None]:
        """Where the gradients of the weights are written; None: new memory. Only once per backward pass: if a loss goes
        through a network twice, there are two gradients, and autograd adds them.
        """
        places, self._places = self._places, None
        if places is None or places[0] is None or places[0].shape != shape:
            return [None] * len(self._layers)
        return places


class _Call(NamedTuple):
    """One evaluation."""

    network: EnsembleMLP
    sizes: Sizes
    scratch: Scratch | None
    """Whose memory is used; None: new memory."""
    differentiable: bool

    def blocks(self, ones: bool = True) -> list[Block]:
        return make_blocks(self.sizes, ones) if self.scratch is None else self.scratch.take(self.sizes)

    def give_back(self, blocks: list[Block]) -> None:
        if self.scratch is not None:
            self.scratch.give(self.sizes, blocks)


class _Layers(torch.autograd.Function):
    """All layers as one step of autograd.

    Large tensors are overwritten while they are still in the processor's cache: products write to memory that was used
    just before, activations to what a product has just written, and backwards the same. Left to autograd, each is a
    pass over memory of its own into a new tensor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: _Call, *weights: Tensor) -> Tensor:
        activation, blocks, values = call.network.activation, call.blocks(), x
        for weight, block in zip(weights, blocks, strict=False):
            torch.bmm(values, weight, out=block.values)
            ACTIVATIONS_IN_PLACE[activation](_active(block, activation))
            values = block.extended
        out = torch.bmm(values, weights[-1])
        if call.differentiable:
            ctx.save_for_backward(x, *weights)
            ctx.call, ctx.blocks = call, blocks
        else:
            call.give_back(blocks)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), call, wanted, blocks = ctx.saved_tensors, ctx.call, ctx.needs_input_grad, ctx.blocks
        if blocks is None:
            raise RuntimeError(
                "This evaluation's memory was given to other networks by its backward pass; evaluate again."
            )
        learned, room, activation = wanted[2], call.blocks(ones=False), call.network.activation
        places: list[Tensor | None] = [None] * len(weights)
        if learned:
            places = call.network.take_places(weights[0].shape)
        for layer in range(len(weights) - 1, -1, -1):
            if learned:
                before = blocks[layer - 1].extended if layer else x
                places[layer] = torch.bmm(before.mT, gradient, out=places[layer])
            if layer:
                gradient = torch.bmm(gradient, weights[layer][:, :-1].mT, out=room[layer - 1].values)
                of_active, active = (_active(one[layer - 1], activation) for one in (room, blocks))
                activation_backward_in_place(activation, of_active, active)
        of_x = torch.bmm(gradient, weights[0].mT) if wanted[0] else None
        call.give_back(room)
        call.give_back(blocks)
        ctx.blocks = None if call.scratch is not None else blocks
        return of_x, None, *places


def _active(block: Block, activation: Activation) -> Tensor:
    """What the activation is applied to. A relu leaves the ones as they are, and one pass without gaps is faster."""
    return block.whole if activation == "relu" else block.values
