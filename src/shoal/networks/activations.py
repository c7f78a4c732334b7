"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["relu", "tanh"]

_NEW: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}
_IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_}


def activation_function(name: Activation) -> Callable[[Tensor], Tensor]:
    """A function that leaves its argument as it is."""
    return _NEW[name]


def activation_in_place(name: Activation) -> Callable[[Tensor], Tensor]:
    """A function that overwrites its argument: a linear layer's backward pass does not need its output."""
    return _IN_PLACE[name]


def activation_backward_in_place(name: Activation, gradient: Tensor, output: Tensor) -> None:
    """Turns the gradient of an activation's output into that of its input."""
    if name == "relu":
        torch.ops.aten.threshold_backward.grad_input(gradient, output, 0.0, grad_input=gradient)
    else:
        torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)
