"""Parameters as one vector, the optimiser that changes it, and target networks.

Small networks spend their time in the overhead of many small operations. With all parameters in one vector and all
gradients in another, clipping and the optimiser are a handful of operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from shoal.errors import CheckpointError
from shoal.networks import EnsembleMLP

Rule = Literal["adam", "rmsprop"]
_STATE: dict[Rule, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}
RMSPROP_ALPHA = 0.99


class FlatParameters:
    """Parameters and gradients of a module, moved into one vector each. The module keeps working, on views."""

    def __init__(self, module: nn.Module) -> None:
        """The module must already be on its device. Parameters that need no gradient stay where they are."""
        self.parameters = [one for one in module.parameters() if one.requires_grad]
        self.vector = _into_one_vector(self.parameters)
        self.grad = torch.zeros_like(self.vector)
        self._ensembles = [one for one in module.modules() if isinstance(one, EnsembleMLP)]
        for parameter, grad in zip(self.parameters, _split_like(self.grad, self.parameters), strict=True):
            parameter.grad = grad

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss as one vector, valid until the next call. Parameters it does not depend on get 0."""
        if torch.compiler.is_compiling():
            found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            return torch.cat([one.reshape(-1) for one in found])
        for ensemble in self._ensembles:
            ensemble.write_gradients_in_place(True)
        try:
            found = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
        finally:
            for ensemble in self._ensembles:
                ensemble.write_gradients_in_place(False)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            assert parameter.grad is not None
            if gradient.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(gradient)
        return self.grad


def _into_one_vector(parameters: Sequence[Tensor]) -> Tensor:
    """Moves parameters into one vector. They become views of it."""
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, _split_like(vector, parameters), strict=True):
        parameter.data = part
    return vector


def _split_like(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    parts = vector.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]


def _as_one_vector(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The same memory as one vector, where the parameters lie one behind the other; else the parameters."""
    first, end = parameters[0].detach(), parameters[0].data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != end:
            return list(parameters)
        end += parameter.numel() * parameter.element_size()
    return [first.as_strided((sum(parameter.numel() for parameter in parameters),), (1,))]


def clip_gradient(gradient: Tensor, largest: float | None) -> Tensor:
    """Scales a gradient, in place, down to a norm of at most `largest` (None: any); returns the norm it had."""
    norm: Tensor = torch.linalg.vector_norm(gradient)
    if largest is not None:
        gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
    return norm


class Optimizer:
    """Adam or RMSprop on one vector.

    Adam is torch's fused one, called as a function: of 35 us that `torch.optim.Adam` takes on 10,000 parameters, 9 are
    arithmetic; called as a function it takes 18. Everything that changes is a tensor on the device, so that a step can
    be captured in a CUDA graph.
    """

    def __init__(self, vector: Tensor, rule: Rule, epsilon: float) -> None:
        self._vector, self._rule, self._epsilon = vector, rule, epsilon
        self._state = {name: torch.zeros_like(vector) for name in _STATE[rule]}
        self._state["step"] = torch.zeros((), device=vector.device)
        # A captured step reads its rate from the device. On a CPU a float keeps all of its digits.
        self._rate: float | Tensor = 0.0 if vector.device.type == "cpu" else torch.zeros((), device=vector.device)
        self._rate_set = 0.0

    def set_rate(self, rate: float) -> None:
        """Sets the step size of the next steps."""
        if rate == self._rate_set:  # most are constant, and a kernel's launch takes longer than this question
            return
        self._rate_set = rate
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        else:
            self._rate = rate

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """One step against the gradient."""
        state = self._state
        if self._rule == "adam":
            adam(
                [self._vector],
                [gradient],
                [state["exp_avg"]],
                [state["exp_avg_sq"]],
                [],
                [state["step"]],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._rate,
                weight_decay=0.0,
                eps=self._epsilon,
                maximize=False,
            )
        else:
            state["step"].add_(1.0)
            square = state["square_avg"].mul_(RMSPROP_ALPHA).addcmul_(gradient, gradient, value=1 - RMSPROP_ALPHA)
            self._vector.sub_(gradient.mul(self._rate).div_(square.sqrt().add_(self._epsilon)))

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Its state under `prefix` + names. No copy: save before the next step."""
        return {prefix + name: tensor for name, tensor in self._state.items()}

    def load(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        """The inverse of `tensors`; CheckpointError when it does not fit."""
        for name, kept in self._state.items():
            given = tensors.get(prefix + name, tensors.get(f"{prefix}0.{name}"))  # the latter in older checkpoints
            if given is None or given.shape != kept.shape:
                found = "is missing" if given is None else f"has shape {list(given.shape)}"
                raise CheckpointError(f"The checkpoint's {prefix}{name} {found}; {list(kept.shape)} is needed here.")
            kept.copy_(given)


class TargetNetwork:
    """A slower copy of a network, which gets no gradients."""

    def __init__(self, target: nn.Module, online: nn.Module, period: int, tau: float = 1.0) -> None:
        """Args:
        target: the copy.
        online: the network it follows.
        period: updates between two moves.
        tau: how far it moves towards the network; 1 copies it.
        """
        self._target: list[Tensor] = list(target.requires_grad_(False).parameters())
        self._online: list[Tensor] = list(online.parameters())
        self._buffers: tuple[list[Tensor], list[Tensor]] = (list(target.buffers()), list(online.buffers()))
        _into_one_vector(self._target)
        self.period, self.tau = period, tau

    @torch.no_grad()
    def move(self, tau: float) -> None:
        """Moves the parameters by `tau` of the way; 1 copies them, and the buffers."""
        target, online = self._target, _as_one_vector(self._online)
        if len(online) == 1:
            target = _as_one_vector(target)
        for mine, theirs in zip(target, online, strict=True):
            mine.lerp_(theirs, tau) if tau < 1.0 else mine.copy_(theirs)
        if tau == 1.0:
            for mine, theirs in zip(*self._buffers, strict=True):
                mine.copy_(theirs)
