"""Networks for continuous actions: policies and critics.

Actions are in [-1, 1] here. A policy's network carries, beside its weights, what an actor has to know of the learner:
whether anything was learned yet (`learned`), and how observations are normalised (`norm`). Both are buffers, so they
travel with the weights and are saved with them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shoal.networks.activations import Activation
from shoal.networks.ensemble import EnsembleMLP
from shoal.networks.normalization import ObservationNorm
from shoal.networks.own import MakeOwn

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


class PolicyNetwork(nn.Module):
    """From observations to `outputs` numbers: tanh of them is an action, or they describe a distribution.

    Args:
        obs_shape: shape of one observation.
        outputs: how many numbers.
        hidden: layer widths.
        activation: after every hidden layer.
        normalize: whether observations are normalised.
        tanh: whether the numbers are squeezed into (-1, 1).
        own: a torso of the user's between the observation and the layers.
    """

    learned: Tensor

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        outputs: int,
        hidden: tuple[int, ...],
        activation: Activation,
        *,
        normalize: bool,
        tanh: bool,
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        size = math.prod(obs_shape)
        self.norm = ObservationNorm(size) if normalize else None
        self.torso = None if own is None else own()
        self.body = EnsembleMLP(1, self.torso.out_features if self.torso else size, hidden, outputs, activation)
        self.register_buffer("learned", torch.zeros(()))
        self._tanh = tanh

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape] of any dtype -> [B, outputs]"""
        return self.from_normalized(self.normalized(obs))

    def normalized(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape] of any dtype -> [B, F] in the dtype of the weights."""
        flat = obs.reshape(obs.shape[0], -1)
        if self.norm is not None:
            flat = self.norm(flat.to(self.norm.mean.dtype))
        return flat.to(self.body.dtype)

    def from_normalized(self, obs: Tensor) -> Tensor:
        """[B, F] -> [B, outputs]. Of a batch that several networks look at, normalised once."""
        out: Tensor = self.body(self.features(obs))[0]
        return torch.tanh(out) if self._tanh else out

    def features(self, obs: Tensor) -> Tensor:
        """[B, F] normalised -> what the layers see."""
        return obs if self.torso is None else self.torso(obs)


def mark_as_learned(module: nn.Module) -> None:
    """Tells the actors that get these weights to stop acting at random."""
    for one in module.modules():
        if isinstance(one, PolicyNetwork):
            one.learned.fill_(1.0)


def mean_and_log_std(out: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of a Gaussian policy's output: [B, 2A] -> [B, A] each, the second one kept within reason."""
    mean, log_std = out.chunk(2, dim=1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


class CriticNetwork(nn.Module):
    """M critics of one shape: `outputs` numbers each of a (normalised) observation and an action.

    Args:
        obs_shape: shape of one observation.
        action_size: values in one action.
        hidden: layer widths; the action joins the observation before the first layer.
        activation: after every hidden layer.
        members: M; 2 for twins.
        outputs: 1 for a value, N for a distribution.
        own: a torso of the user's before the action joins; one for all members, learned with them.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        action_size: int,
        hidden: tuple[int, ...],
        activation: Activation,
        *,
        members: int = 1,
        outputs: int = 1,
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        self.torso = None if own is None else own()
        size = self.torso.out_features if self.torso else math.prod(obs_shape)
        self.body = EnsembleMLP(members, size + action_size, hidden, outputs, activation)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """[B, F], [B, A] -> [M, B, outputs]"""
        out: Tensor = self.body(self.features(obs), action)
        return out

    def features(self, obs: Tensor) -> Tensor:
        """[B, F] normalised -> what the layers see beside the action."""
        return obs if self.torso is None else self.torso(obs)

    def judge(self, obs: Tensor, action: Tensor, first: int | None = None) -> Tensor:
        """The same for a policy's loss: the weights are constants, so no time goes into a gradient for them. Of the
        `first` so many members only, if given.
        """
        with torch.no_grad():
            features = self.features(obs)
        out: Tensor = self.body(features, action, first=first, constant=True)
        return out
