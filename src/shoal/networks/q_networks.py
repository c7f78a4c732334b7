"""Whole networks for value-based algorithms: a torso chosen by the observation, and a head.

Vectors (MLP): all of `hidden` but its last entry is the torso; the last entry is the width of the head's hidden layer.
With dueling that width is shared out, half to each stream (rounded up), so a dueling network costs what the plain one
of the same `hidden` does. Two full streams would double the largest matrix product of every update.

Images: convolutions (Nature's, or smaller ones for small images), then per stream Linear(512), ReLU, Linear, as in
"Distributed Prioritized Experience Replay" (Ape-X), https://arxiv.org/abs/1803.00933. That width is `image_hidden`;
`hidden` is for vectors only, also for those beside an image.

Weights start as torch's layers do by default, from torch's global generator.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from shoal.errors import ConfigError
from shoal.networks.heads import QHead
from shoal.networks.inputs import make_torso
from shoal.networks.normalization import ObservationNorm, ValueNorm
from shoal.networks.own import MakeOwn
from shoal.types import ObsPart


class QNetwork(nn.Module):
    """Action values of an observation, or quantiles of the return of each action, whose means are the action values.

    Quantiles: "Distributional Reinforcement Learning with Quantile Regression", https://arxiv.org/abs/1710.10044.

    Args:
        obs_shape: shape of one observation, frame stack included.
        obs_dtype: numpy name of its dtype.
        num_actions: A.
        hidden: layer widths for vectors; see the module.
        dueling: value and advantage streams instead of one.
        quantiles: N; None for values.
        image_hidden: width of each stream for images.
        normalize_observations: vectors are seen with mean 0 and deviation 1.
        normalize_values: the head predicts returns with mean 0 and deviation 1.
        parts: the observation's inputs; none: the observation as a whole, by its shape and dtype.
        own: a torso of the user's instead of the package's.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        obs_dtype: str,
        num_actions: int,
        hidden: tuple[int, ...] = (256, 256),
        dueling: bool = True,
        *,
        quantiles: int | None = None,
        image_hidden: int = 512,
        normalize_observations: bool = False,
        normalize_values: bool = False,
        parts: tuple[ObsPart, ...] = (),
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        if any(width < 1 for width in hidden):
            raise ConfigError(f"hidden must be positive widths, got {tuple(hidden)}.")
        parts = parts or (ObsPart.of(obs_shape, obs_dtype),)
        images = any(part.axes for part in parts)
        self.norm = ObservationNorm(math.prod(obs_shape)) if normalize_observations and not images else None
        self.value_norm = ValueNorm() if normalize_values else None
        self.torso = make_torso(parts, hidden[:-1]) if own is None else own()
        width = hidden[-1] if hidden else 0
        width = image_hidden if images else (width + 1) // 2 if dueling else width
        self.head = QHead(self.torso.out_features, num_actions, width, dueling, quantiles)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *obs_shape] of the observation's own dtype -> [B, A], or [B, A, N]"""
        if self.norm is not None:
            obs = self.norm(obs.reshape(obs.shape[0], -1).to(self.norm.mean.dtype))
        out: Tensor = self.head(self.torso(obs))
        return out if self.value_norm is None else self.value_norm(out)

    def follow_returns(self) -> None:
        """Lets the head follow the returns observed so far; values stay as they are."""
        if self.value_norm is not None:
            value, advantage = self.head.streams.value, self.head.streams.advantage
            self.value_norm.follow(*((advantage,) if value is None else (value, advantage)))

    @property
    def value_scale(self) -> Tensor | float:
        """What errors of values are divided by; 1 where values are not normalised."""
        return 1.0 if self.value_norm is None else self.value_norm.error_scale
