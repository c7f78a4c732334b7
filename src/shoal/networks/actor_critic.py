"""Actor-critic networks: a torso, an optional LSTM, and two heads: the action distribution's parameters and the value.

The features that both heads read are also what `elite` and `attentive` replay compare: they are trained, unlike a
projection beside the heads would be.

Actors need actions only. `ActorCritic.policy` leaves out what they do not use, `unroll` computes everything for whole
sequences at once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.networks.inputs import Torso, make_torso
from shoal.networks.normalization import LEAST_DEVIATION, ObservationNorm, ValueNorm
from shoal.networks.own import MakeOwn, OwnTorso
from shoal.types import ObsPart

State = tuple[Tensor, Tensor]
"""Hidden and cell state of the LSTM, [B, H] each."""
LOG_STD_RANGE = (-5.0, 2.0)


class Unrolled(NamedTuple):
    """What the network says about a stretch of T + 1 observations."""

    params: Tensor
    """[T + 1, B, P] parameters of the action distribution."""
    value: Tensor
    """[T + 1, B]"""


class ActorCritic(nn.Module):
    """Policy and value of an observation.

    Args:
        obs_shape: shape of one observation, frame stack included.
        obs_dtype: numpy name of its dtype.
        params: P, the number of parameters of the action distribution.
        gaussian: the second half of them is log standard deviations, learned but the same for every observation.
        hidden: layer widths for vectors.
        torso: for images: small is A3C's network, shallow is Nature's, deep is IMPALA's residual one. Images too small
            for the first two get smaller filters.
        image_hidden: width of the layer after the convolutions.
        lstm: width of the LSTM; 0 for none.
        share_torso: both heads read one torso; if not, the value has a torso of its own. Images always share.
        normalize_observations: vectors are seen with mean 0 and deviation 1.
        normalize_values: the value head predicts returns with mean 0 and deviation 1.
        parts: the observation's inputs; none: the observation as a whole, by its shape and dtype.
        own: a torso of the user's instead of the package's; no layer is put behind it.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        obs_dtype: str,
        params: int,
        *,
        gaussian: bool = False,
        hidden: tuple[int, ...] = (64, 64),
        torso: Torso = "shallow",
        image_hidden: int = 512,
        lstm: int = 0,
        share_torso: bool = True,
        initial_log_std: float = -0.5,
        normalize_observations: bool = False,
        normalize_values: bool = False,
        parts: tuple[ObsPart, ...] = (),
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        parts = parts or (ObsPart.of(obs_shape, obs_dtype),)
        images = any(part.axes for part in parts)
        make = own or partial(make_torso, parts, hidden, torso, nn.Tanh)
        made, dense = make(), images and own is None
        self.torso = _Dense(made, made.out_features, image_hidden) if dense else made
        width = image_hidden if dense else made.out_features
        self.value_torso = None if share_torso or images or lstm else make()
        self.lstm = nn.LSTMCell(width, lstm) if lstm else None
        self.state_size = lstm
        """H of the LSTM; 0 without one."""
        self.embedding = width
        outputs = params // 2 if gaussian else params
        self.policy_head = nn.Linear(lstm or width, outputs)
        self.value_head = nn.Linear(lstm or width, 1)
        self.log_std = nn.Parameter(torch.full((outputs,), initial_log_std)) if gaussian else None
        self.norm = ObservationNorm(math.prod(obs_shape)) if normalize_observations and not images else None
        self.value_norm = ValueNorm() if normalize_values else None
        _initialise(self, small_policy_head=not images)

    def embed(self, obs: Tensor) -> Tensor:
        """[M, *obs_shape] -> [M, F], before any recurrence: what replay selectors compare."""
        embedded: Tensor = self.torso(self._seen(obs))
        return embedded

    def _seen(self, obs: Tensor) -> Tensor:
        return obs if self.norm is None else self.norm(obs.reshape(obs.shape[0], -1).to(self.norm.mean.dtype))

    def policy(self, embedded: Tensor) -> Tensor:
        """[..., F] -> [..., P]"""
        out: Tensor = self.policy_head(embedded)
        if self.log_std is not None:
            spread = self.log_std.clamp(*LOG_STD_RANGE).expand_as(out)
            out = torch.cat((out, spread), dim=-1)
        return out

    def value(self, obs: Tensor, embedded: Tensor) -> Tensor:
        """[M, *obs_shape] and its embedding (behind the LSTM, if there is one) -> [M]"""
        return self._value_of(obs if self.value_torso is None else self._seen(obs), embedded)

    def _value_of(self, seen: Tensor, embedded: Tensor) -> Tensor:
        if self.value_torso is not None:
            embedded = self.value_torso(seen)
        out: Tensor = self.value_head(embedded)
        return (out if self.value_norm is None else self.value_norm(out)).squeeze(-1)

    def follow_returns(self) -> None:
        """Lets the value head follow the returns observed so far; values stay as they are."""
        if self.value_norm is not None:
            self.value_norm.follow(self.value_head)

    @property
    def value_scale(self) -> Tensor | float:
        """What errors of values are divided by; 1 where values are not normalised."""
        return 1.0 if self.value_norm is None else self.value_norm.error_scale

    @property
    def least_deviation(self) -> float:
        """Of advantages, for `ops.normalized`; 0 where values are not normalised: the size of returns is not known."""
        return 0.0 if self.value_norm is None else LEAST_DEVIATION

    def recur(self, embedded: Tensor, state: State) -> State:
        """One step of the LSTM: [B, F] -> its new state, whose first part both heads read."""
        assert self.lstm is not None
        new: State = self.lstm(embedded, state)
        return new

    def unroll(self, obs: Tensor, state: Tensor | None = None, first: Tensor | None = None) -> Unrolled:
        """Policy and value of whole sequences.

        Args:
            obs: [T + 1, B, *obs_shape].
            state: [B, 2H] hidden and cell state of the LSTM before the first observation; None without one.
            first: [T + 1, B] where an episode begins and the state with it.
        """
        steps, batch = obs.shape[:2]
        seen = self._seen(obs.flatten(0, 1))  # once, for both torsos
        embedded = self.torso(seen)
        if self.lstm is not None:
            assert state is not None and first is not None
            embedded = self._recur_all(embedded.view(steps, batch, -1), state, first).flatten(0, 1)
        params = self.policy(embedded).float().view(steps, batch, -1)
        return Unrolled(params, self._value_of(seen, embedded).float().view(steps, batch))

    def _recur_all(self, embedded: Tensor, before: Tensor, first: Tensor) -> Tensor:
        state = before.chunk(2, dim=1)
        keep = (~first).to(embedded.dtype).unsqueeze(-1)  # [T + 1, B, 1]
        outputs = []
        for step, alive in zip(embedded, keep, strict=True):
            state = self.recur(step, (state[0] * alive, state[1] * alive))
            outputs.append(state[0])
        return torch.stack(outputs)


class _Dense(nn.Module):
    """Convolutions and the layer after them."""

    def __init__(self, convolutions: nn.Module, features: int, width: int) -> None:
        super().__init__()
        self.convolutions = convolutions
        self.dense = nn.Linear(features, width)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.relu(self.dense(self.convolutions(obs)))


def _initialise(network: ActorCritic, *, small_policy_head: bool) -> None:
    """Orthogonal weights and zero biases; a torso of the user's stays as it was made.

    With a small policy head all actions start equally likely. But where policy and value share a torso, the head's size
    is also that of the policy's gradient in it: with a hundredth, the torso would follow the value alone for long.
    """
    own = {part for torso in network.modules() if isinstance(torso, OwnTorso) for part in torso.modules()}
    for module in network.modules():
        if module not in own and isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(module.weight, math.sqrt(2.0))
            assert module.bias is not None  # a layer may be made without one; none here is
            nn.init.zeros_(module.bias)
    nn.init.orthogonal_(network.policy_head.weight, 0.01 if small_policy_head else 1.0)
    nn.init.orthogonal_(network.value_head.weight, 1.0)
