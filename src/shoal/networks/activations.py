"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["relu", "tanh"]

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}
ACTIVATIONS_IN_PLACE: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_}
"""They overwrite their argument: a linear layer's backward pass does not need its output."""


def activation_backward_in_place(name: Activation, gradient: Tensor, output: Tensor) -> None:
    """Turns the gradient of an activation's output into that of its input."""
    if name == "relu":
        torch.ops.aten.threshold_backward.grad_input(gradient, output, 0.0, grad_input=gradient)
    else:
        torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)
