"""A network's parameters as one vector.

Small networks spend their time in the overhead of many small operations. With all parameters in one vector, and all
gradients in another, clipping and the optimiser are a handful of operations whatever the number of layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from shoal.errors import CheckpointError


class FlatParameters:
    """Parameters and gradients of a module, moved into one vector each. The module works on as before, on views."""

    def __init__(self, module: nn.Module) -> None:
        """The module must already be on its device; `zero_grad` of this object replaces the module's own."""
        parameters = list(module.parameters())
        data = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.vector = nn.Parameter(data)
        self.grad = torch.zeros_like(data)
        self.vector.grad = self.grad
        self._places: list[Tensor] = []
        done = 0
        for parameter in parameters:
            part = slice(done, done + parameter.numel())
            parameter.data = data[part].view_as(parameter)
            parameter.grad = self.grad[part].view_as(parameter)
            self._places.append(parameter.grad)
            done += parameter.numel()

    def zero_grad(self) -> None:
        """Forgets the gradients; the vector stays, so that the next ones are added into it."""
        self.grad.zero_()

    def take_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Gradients of all parameters, in their order, in the place of the ones before: fewer passes over memory than
        zeroing and adding. Those that were computed in their place stay where they are.
        """
        for place, gradient in zip(self._places, gradients, strict=True):
            if gradient.data_ptr() != place.data_ptr():
                place.copy_(gradient)

    def clip_gradients(self, largest: float) -> Tensor:
        """Scales the gradients down to a norm of at most `largest`; returns the norm they had."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        self.grad.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
        return norm


class FlatAdam:
    """Adam on one vector: what `torch.optim.Adam(fused=True)` computes, without what it does around it.

    "Adam: A Method for Stochastic Optimization", https://arxiv.org/abs/1412.6980. Of 52 us that torch's optimiser
    takes on 10,000 parameters, 17 are arithmetic, the rest looks up states and groups tensors. Everything it changes is
    a tensor on the device, so it can be captured in a CUDA graph.
    """

    def __init__(self, flat: FlatParameters, learning_rate: float, epsilon: float) -> None:
        self._vector, self._gradient = flat.vector, flat.grad
        self._learning_rate, self._epsilon = learning_rate, epsilon
        self._state = {
            "exp_avg": torch.zeros_like(flat.grad),
            "exp_avg_sq": torch.zeros_like(flat.grad),
            "step": torch.zeros((), device=flat.grad.device),
        }
        self._moments: list[list[Tensor]] = [[], []]
        self._rate, self._least = torch.zeros_like(self._state["step"]), torch.zeros_like(self._state["step"])

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradient."""
        state = self._state
        state["step"].add_(1.0)
        torch._fused_adam_(
            [self._vector],
            [self._gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=self._learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
        )

    def split(self, divide: Callable[[Tensor], list[Tensor]]) -> None:
        """Prepares `step_traced`: `divide` turns a vector like that of the parameters into pieces."""
        self._moments = [divide(self._state["exp_avg"]), divide(self._state["exp_avg_sq"])]

    def before_traced(self) -> None:
        """Computes the scalars of the next `step_traced`: a compiler would compute them for every element anew."""
        steps = float(self._state["step"]) + 1.0
        unbiased = math.sqrt(1.0 - 0.999**steps)
        self._rate.fill_(self._learning_rate * unbiased / (1.0 - 0.9**steps))
        self._least.fill_(self._epsilon * unbiased)

    @torch.no_grad()
    def step_traced(self, pieces: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """What `step` does, to the pieces of the parameters, in operations that torch.compile fuses."""
        self._state["step"].add_(1.0)
        for piece, gradient, mean, square in zip(pieces, gradients, *self._moments, strict=True):
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            piece.sub_(self._rate * mean / (square.sqrt() + self._least))

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Its state under `prefix` + names. No copy: save before the next step."""
        return {prefix + name: tensor for name, tensor in self._state.items()}

    def load(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        """The inverse of `tensors`; CheckpointError when it does not fit."""
        for name, kept in self._state.items():
            given = tensors.get(prefix + name)
            if given is None or given.shape != kept.shape:
                found = "is missing" if given is None else f"has shape {list(given.shape)}"
                raise CheckpointError(f"The checkpoint's {prefix}{name} {found}; {list(kept.shape)} is needed here.")
            kept.copy_(given)
