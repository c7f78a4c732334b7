"""Action values of observations seen one after the other: what a recurrent Q-network is, and the one for one agent.

State and previous action are arguments, so that the same weights act one step at a time and learn from sequences.

A cell begins with a bias of 1 for keeping what it holds. Without it, half is forgotten at every step at first, and no
gradient says what was worth keeping. "An Empirical Exploration of Recurrent Network Architectures", Jozefowicz et al.
2015, https://proceedings.mlr.press/v37/jozefowicz15.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.networks.heads import QHead
from shoal.networks.inputs import make_torso
from shoal.networks.normalization import ObservationNorm, ValueNorm
from shoal.networks.own import MakeOwn
from shoal.types import ObsPart

Cell = Literal["lstm", "gru"]


class RecurrentQNetwork(nn.Module):
    """What a recurrent learner asks of a network.

    `...` is empty for one agent, and the axis of agents for several: then q is [N, agents, A], and the state of all
    agents of a lane is one flat row. `last_action` holds the actions before these observations, as integers; -1 at an
    episode's start. A network may ignore it.
    """

    head: QHead
    state_size: int
    """S: numbers per lane."""

    def __init__(self) -> None:
        super().__init__()
        # Set here and not in the class, which would hide a submodule of the same name.
        self.norm: ObservationNorm | None = None
        self.value_norm: ValueNorm | None = None

    def q_values(self, obs: Tensor, state: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        """One step: [N, *obs_shape], [N, S] and [N, ...] -> action values [N, ..., A], and the next state [N, S]."""
        raise NotImplementedError

    def unroll(self, obs: Tensor, state: Tensor, first: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        """T steps: [T, B, *obs_shape], [B, S], [T, B] bool and [T, B, ...] -> [T, B, ..., A], and the state [B, S]
        after them. The state is zeroed before a row where `first` is set.
        """
        raise NotImplementedError

    def follow_returns(self) -> None:
        """Lets the head follow the returns observed so far; values stay as they are."""
        if self.value_norm is not None:
            value, advantage = self.head.streams.value, self.head.streams.advantage
            self.value_norm.follow(*((advantage,) if value is None else (value, advantage)))

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """Scalars of the last call, to report."""
        return {}

    @property
    def value_scale(self) -> Tensor | float:
        """What errors of values are divided by; 1 where values are not normalised."""
        return 1.0 if self.value_norm is None else self.value_norm.error_scale


class RecurrentQ(RecurrentQNetwork):
    """A torso, an LSTM or a GRU, and a head, for one agent. The cell also sees the previous action, one-hot.

    Args:
        obs_shape: shape of one observation, frame stack included.
        obs_dtype: numpy name of its dtype.
        num_actions: A.
        hidden: layer widths of the torso for vectors.
        image_hidden: width of the layer after the convolutions, for images.
        cell: lstm or gru.
        cell_size: H, the width of the cell.
        head_hidden: width of each of the head's streams; 0: the head is linear.
        dueling: value and advantage streams instead of one.
        last_action: whether the cell sees the previous action.
        normalize_observations: vectors are seen with mean 0 and deviation 1.
        normalize_values: the head predicts returns with mean 0 and deviation 1.
        parts: the observation's inputs; none: the observation as a whole, by its shape and dtype.
        own: a torso of the user's instead of the package's; no layer is put behind it.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        obs_dtype: str,
        num_actions: int,
        *,
        hidden: tuple[int, ...] = (128,),
        image_hidden: int = 512,
        cell: Cell = "lstm",
        cell_size: int = 512,
        head_hidden: int = 512,
        dueling: bool = True,
        last_action: bool = True,
        normalize_observations: bool = False,
        normalize_values: bool = False,
        parts: tuple[ObsPart, ...] = (),
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        parts = parts or (ObsPart.of(obs_shape, obs_dtype),)
        images = any(part.axes for part in parts)
        if normalize_observations and not images:
            self.norm = ObservationNorm(math.prod(obs_shape))
        if normalize_values:
            self.value_norm = ValueNorm()
        made = make_torso(parts, hidden) if own is None else own()
        width, self.torso = made.out_features, nn.Sequential(made)
        if images and own is None:
            self.torso.extend((nn.Linear(width, image_hidden), nn.ReLU()))
            width = image_hidden
        self._actions, self._last_action = num_actions, last_action
        kind = nn.LSTMCell if cell == "lstm" else nn.GRUCell
        self.cell: nn.LSTMCell | nn.GRUCell = kind(width + last_action * num_actions, cell_size)
        with torch.no_grad():  # of an LSTM's forget gate, and of a GRU's update gate: see the module
            self.cell.bias_ih[cell_size : 2 * cell_size] += 1.0
        self.state_size = cell_size * (2 if cell == "lstm" else 1)
        self.head = QHead(cell_size, num_actions, head_hidden, dueling)

    def q_values(self, obs: Tensor, state: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        state = self._recur(self._embed(obs, last_action), state)
        return self._values(state[:, : self.cell.hidden_size]), state

    def unroll(self, obs: Tensor, state: Tensor, first: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        steps, batch = first.shape
        embedded = self._embed(obs.flatten(0, 1), last_action.flatten()).unflatten(0, (steps, batch))
        keep = (~first).to(embedded.dtype).unsqueeze(-1)  # [T, B, 1]
        seen = []
        for row, alive in zip(embedded, keep, strict=True):
            state = self._recur(row, state * alive)
            seen.append(state[:, : self.cell.hidden_size])
        return self._values(torch.cat(seen)).unflatten(0, (steps, batch)), state

    def _embed(self, obs: Tensor, last_action: Tensor) -> Tensor:
        """[M, *obs_shape] and [M] -> [M, F], what the cell sees."""
        if self.norm is not None:
            obs = self.norm(obs.reshape(len(obs), -1).to(self.norm.mean.dtype))
        out: Tensor = self.torso(obs)
        if not self._last_action:
            return out
        known = functional.one_hot(last_action.long() + 1, self._actions + 1)[:, 1:]  # all zero for -1
        return torch.cat((out, known.to(out.dtype)), dim=1)

    def _recur(self, embedded: Tensor, state: Tensor) -> Tensor:
        """[B, F] and [B, S] -> the new state; its first H numbers are what the head reads."""
        state = state.to(embedded.dtype)
        if isinstance(self.cell, nn.LSTMCell):
            hidden, carried = state.chunk(2, dim=1)
            return torch.cat(self.cell(embedded, (hidden, carried)), dim=1)
        new: Tensor = self.cell(embedded, state)
        return new

    def _values(self, features: Tensor) -> Tensor:
        """[M, H] -> [M, A]"""
        out: Tensor = self.head(features)
        return out if self.value_norm is None else self.value_norm(out)
