"""A network's parameters as one vector.

Small networks spend their time in the overhead of many small operations. With all parameters in one vector, and all
gradients in another, clipping and the optimiser are a handful of operations whatever the number of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Parameters and gradients of a module, moved into one vector each. The module works on as before, on views."""

    def __init__(self, module: nn.Module) -> None:
        """The module must already be on its device; `zero_grad` of this object replaces the module's own."""
        parameters = list(module.parameters())
        data = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.vector = nn.Parameter(data)
        self.grad = torch.zeros_like(data)
        self.vector.grad = self.grad
        done = 0
        for parameter in parameters:
            part = slice(done, done + parameter.numel())
            parameter.data = data[part].view_as(parameter)
            parameter.grad = self.grad[part].view_as(parameter)
            done += parameter.numel()

    def zero_grad(self) -> None:
        """Forgets the gradients; the vector stays, so that the next ones are added into it."""
        self.grad.zero_()

    def clip_gradients(self, largest: float) -> Tensor:
        """Scales the gradients down to a norm of at most `largest`; returns the norm they had."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
        return norm
