"""Steps down a loss, and slower copies that follow: of vectors, or piece by piece while torch.compile traces.

By hand, one operation on one vector is the least there can be. A compiler fuses what is done to each piece of it with
what made the piece; views into a vector it would have to put together again. Both work on the same memory.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.algorithms.flat import FlatAdam, FlatParameters
from shoal.networks import EnsembleMLP, split_biases


class Descent:
    """The parameters of a network, and of what is learned with it, with their optimiser."""

    def __init__(
        self, network: nn.Module, extra: nn.Module, learning_rate: float, epsilon: float, clip: float | None
    ) -> None:
        """Args:
        network: whose parameters are all in one ensemble.
        extra: more parameters, behind the network's.
        learning_rate: of Adam.
        epsilon: of Adam.
        clip: largest norm of a gradient; None: any.
        """
        both = nn.ModuleList([network, extra])
        self.flat = FlatParameters(both)
        self.parameters = list(both.parameters())
        self.optimizer = FlatAdam(self.flat, learning_rate, epsilon)
        self._body, self._clip = body_of(network), clip

    def split(self) -> None:
        """Prepares to be traced."""
        self._body.split()
        self.optimizer.split(self._divided)

    def minimise(self, loss: Tensor, bound: float | None = None) -> Tensor:
        """One step down, every element of the gradient kept within plus and minus `bound`; returns the gradient's norm.
        Other parameters that `loss` depends on get none.
        """
        if torch.compiler.is_compiling():
            return self._minimise_traced(loss, bound)
        self.flat.take_gradients(self._body.gradients_in_place(loss, self.parameters))
        if bound is not None:
            self.flat.grad.clamp_(-bound, bound)
        clip = self._clip
        norm = torch.linalg.vector_norm(self.flat.grad) if clip is None else self.flat.clip_gradients(clip)
        self.optimizer.step()
        return norm

    def _minimise_traced(self, loss: Tensor, bound: float | None) -> Tensor:
        pieces = [*self._body.pieces, *self.parameters[len(self._body.weights) :]]
        gradients = list(torch.autograd.grad(loss, pieces))
        if bound is not None:
            gradients = [one.clamp(-bound, bound) for one in gradients]
        norm = torch.stack([one.square().sum() for one in gradients]).sum().sqrt()
        if self._clip is not None:
            scale = (self._clip / (norm + 1e-6)).clamp(max=1.0)
            gradients = [one * scale for one in gradients]
        self.optimizer.step_traced(pieces, gradients)
        return norm

    def _divided(self, vector: Tensor) -> list[Tensor]:
        """A vector like that of the parameters in pieces like theirs."""
        places = zip(vector.split([one.numel() for one in self.parameters]), self.parameters, strict=True)
        views = [place.view_as(parameter) for place, parameter in places]
        layers = len(self._body.weights)
        return [piece for view in views[:layers] for piece in split_biases(view)] + views[layers:]


class Follower:
    """A slower copy of a network. It gets no gradients."""

    def __init__(self, target: nn.Module, online: nn.Module, learned: Descent) -> None:
        """`learned` has the parameters of `online`, before all others."""
        self._target, self._bodies = FlatParameters(target).vector.data, (body_of(target), body_of(online))
        self._online = learned.flat.vector.data[: len(self._target)]
        target.requires_grad_(False)

    def split(self) -> None:
        """Prepares to be traced, the network it follows being so."""
        self._bodies[0].split()

    @torch.no_grad()
    def move(self, tau: float) -> None:
        """So much of the way to the network."""
        if torch.compiler.is_compiling():
            for target, online in zip(*(body.pieces for body in self._bodies), strict=True):
                target.lerp_(online, tau)
        else:
            self._target.lerp_(self._online, tau)


def body_of(network: nn.Module) -> EnsembleMLP:
    """The ensemble that holds its parameters."""
    return next(one for one in network.modules() if isinstance(one, EnsembleMLP))
