"""Action values of agents that talk: an encoder and a GRU for each agent, attention between neighbours, a dueling head.

"Distributed Heuristic Multi-Agent Path Finding with Communication", Ma et al. 2021, https://arxiv.org/abs/2106.11365
(DHC). All agents share all weights, and no weight depends on their number: a network trained with four agents plays
with sixteen.

    observation of each agent -> encoder -> GRU -> [attention to neighbours -> GRU] x rounds -> dueling head
                                             ^                                  |
                                             +------- state of the next step <--+

Shapes: M rows (T * B in sequences), B rows of one time step, A agents, E features, H the state's width, N actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.networks.heads import QHead
from shoal.networks.inputs import make_torso, numbers
from shoal.networks.torso import MIN_IMAGE, FirstConvolution
from shoal.types import ObsPart, image_axes


class TeamObservation(NamedTuple):
    """A row of a team, taken apart."""

    agents: Tensor
    """[M, A, *shape] what each agent sees."""
    mask: Tensor
    """[M, A, A] bool: i may hear j; the diagonal says who is there."""
    reward: Tensor
    """[M, A] of the step that led here."""


class TeamParts:
    """Where the parts of a team's observation are in a row."""

    def __init__(self, parts: tuple[ObsPart, ...]) -> None:
        self._parts = {part.name: part for part in parts}
        agents = self._parts["agents"]
        self.agents = agents.shape[0]
        shape = agents.shape[1:]
        self.one = replace(agents, name="", shape=shape, start=0, axes=image_axes(shape), width=1)
        """What one agent sees, as an observation of its own."""

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def __call__(self, rows: Tensor) -> TeamObservation:
        """[M, F] -> its parts."""
        return TeamObservation(self.part(rows, "agents"), self.part(rows, "mask") > 0.5, self.part(rows, "reward"))

    def part(self, rows: Tensor, name: str) -> Tensor:
        """[M, F] -> [M, *shape of the part]"""
        part = self._parts[name]
        return numbers(rows, part).reshape(len(rows), *part.shape)


class FieldOfView(nn.Module):
    """DHC's convolutions for what an agent sees around it, [B, C, h, w]: 3x3 without padding, residual blocks of two
    3x3 each, and 1x1 to few channels; flattened.

    Args:
        part: the image; its axes are CHW, HWC or HW.
        channels: of the convolutions; 128 in the paper.
        blocks: residual ones; 3 in the paper.
        squeezed: channels of the last layer; 16 in the paper.
    """

    def __init__(self, part: ObsPart, channels: int, blocks: int, squeezed: int = 16) -> None:
        super().__init__()
        sides = dict(zip(part.axes, part.shape, strict=True))
        self._last, self._flat = part.axes == "HWC", part.axes == "HW"
        self.first = FirstConvolution(sides.get("C", 1), channels, kernel_size=3)
        self.first.scale = part.scale
        self.blocks = nn.ModuleList(_Block(channels) for _ in range(blocks))
        self.squeeze = nn.Conv2d(channels, squeezed, kernel_size=1)
        self.out_features = squeezed * (sides["H"] - 2) * (sides["W"] - 2)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *shape] -> [B, out_features]"""
        x = torch.relu(self.first.images(obs.unsqueeze(1) if self._flat else obs, self._last))
        for block in self.blocks:
            x = block(x)
        return torch.relu(self.squeeze(x)).flatten(1)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(torch.relu(self.conv1(x))))


class Communication(nn.Module):
    """Rounds of attention to those whom an agent hears, each followed by a GRU; all rounds share their weights.

    An agent that hears nobody but itself keeps its state.

    Args:
        width: H, of the state.
        rounds: how often agents exchange messages in one step.
        heads: of the attention.
        head_size: width of each; also of a message.
    """

    def __init__(self, width: int, rounds: int = 2, heads: int = 2, head_size: int = 64) -> None:
        super().__init__()
        self.rounds, self.heads = rounds, heads
        self.asks = nn.Linear(width, 3 * heads * head_size)  # query, key and value in one product
        self.message = nn.Linear(heads * head_size, head_size, bias=False)
        self.update = nn.GRUCell(head_size, width)

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        """[B, A, H] and [B, A, A] bool, the diagonal included -> [B, A, H]"""
        hears = (mask.sum(dim=2, keepdim=True) > 1) & mask.diagonal(dim1=1, dim2=2).unsqueeze(2)  # [B, A, 1]
        for _ in range(self.rounds):
            told = self.message(self._attention(state, mask))
            new = self.update(told.flatten(0, 1), state.flatten(0, 1)).view_as(state)
            state = torch.where(hears, new.to(state.dtype), state)
        return state

    def _attention(self, state: Tensor, mask: Tensor) -> Tensor:
        """[B, A, H] -> [B, A, heads * head_size]"""
        query, key, value = (
            self.asks(state).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # [B, heads, A, d]
        scores = (query @ key.transpose(2, 3)).float() / math.sqrt(query.shape[3])
        # Not minus infinity: a row without anybody would become NaN. Beside a real score its weight is exactly 0.
        weights = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(torch.float32).min).softmax(dim=3)
        told: Tensor = weights.to(value.dtype) @ value  # [B, heads, A, d]
        return told.transpose(1, 2).flatten(2)


class CommunicationNetwork(nn.Module):
    """Action values of all agents of a team.

    Args:
        parts: of a team's observation; see `EnvSpec.obs_parts`.
        num_actions: N, of one agent.
        width: H, of the GRU's state.
        hidden: MLP widths where agents see vectors.
        channels, blocks: see `FieldOfView`; where agents see images of less than 36x36.
        rounds: of communication; 0: agents do not talk, and learn independently of each other.
        heads, head_size: of the attention.
        dueling: value and advantage streams.
        own: makes an encoder of the user's for one agent's observations.
    """

    def __init__(
        self,
        parts: tuple[ObsPart, ...],
        num_actions: int,
        *,
        width: int = 256,
        hidden: tuple[int, ...] = (128,),
        channels: int = 128,
        blocks: int = 3,
        rounds: int = 2,
        heads: int = 2,
        head_size: int = 64,
        dueling: bool = True,
        own: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self.parts = TeamParts(parts)
        self.encoder = own() if own is not None else _encoder(self.parts.one, hidden, channels, blocks)
        self.cell = nn.GRUCell(self.encoder.out_features, width)
        self.communication = Communication(width, rounds, heads, head_size) if rounds else None
        self.head = QHead(width, num_actions, 0, dueling)
        self.width = width
        _initialise(self, own is not None)

    def embed(self, agents: Tensor, present: Tensor) -> Tensor:
        """[M, A, *shape] and [M, A] bool -> [M, A, E]; zeros for agents that are not there."""
        if agents.device.type == "cpu" and not torch.compiler.is_compiling():
            # Only those who are there: a curriculum begins with one agent of sixteen. On a GPU, to count them would
            # wait for it, and a captured update needs fixed shapes.
            found: Tensor = self.encoder(agents[present])
            return found.new_zeros(*present.shape, found.shape[1]).index_put((present,), found)
        found = self.encoder(agents.flatten(0, 1))
        return found.view(*present.shape, -1) * present.unsqueeze(2)

    def recur(self, embedded: Tensor, state: Tensor, mask: Tensor) -> Tensor:
        """One step: [B, A, E], [B, A, H] and [B, A, A] bool -> the state after communication, [B, A, H]."""
        state = self.think(embedded, state)
        if self.communication is not None:
            state = self.communication(state, mask)
        return state * mask.diagonal(dim1=1, dim2=2).unsqueeze(2)

    def think(self, embedded: Tensor, state: Tensor) -> Tensor:
        """The state before communication: [..., E] and [..., H] -> [..., H]."""
        new: Tensor = self.cell(embedded.flatten(0, -2), state.to(embedded.dtype).flatten(0, -2))
        return new.view(state.shape)

    def values(self, state: Tensor) -> Tensor:
        """[..., H] -> [..., N]"""
        values: Tensor = self.head(state.flatten(0, -2))
        return values.float().view(*state.shape[:-1], -1)

    def unroll(self, rows: Tensor, state: Tensor, first: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Action values of whole sequences, and the state after them.

        Args:
            rows: [T, B, F].
            state: [B, A, H] before the first row.
            first: [T, B] bool: where an episode begins, and the state with it.
            mask: [T, B, A, A] bool: who hears whom, if that is not what the rows say.

        Returns:
            [T, B, A, N], zeros for agents that are not there; and [B, A, H].
        """
        steps = rows.shape[:2]
        seen = self.parts(rows.flatten(0, 1))
        mask = seen.mask.unflatten(0, steps) if mask is None else mask
        present = seen.mask.diagonal(dim1=1, dim2=2)  # [M, A]
        embedded = self.embed(seen.agents, present).unflatten(0, steps)
        keep = (~first).to(embedded.dtype)[..., None, None]
        states = []
        for step, heard, kept in zip(embedded, mask, keep, strict=True):
            state = self.recur(step, state.to(step.dtype) * kept, heard)
            states.append(state)
        return self.values(torch.stack(states)) * present.unflatten(0, steps).unsqueeze(-1), state

    @torch.no_grad()
    def causal_mask(self, rows: Tensor, embedded: Tensor, state: Tensor) -> Tensor:
        """Who listens to whom if agents ask only those who change their decision, [B, A, A] bool.

        "Learning Selective Communication for Multi-Agent Path Finding", Ma et al. 2021,
        https://arxiv.org/abs/2109.05413: i listens to j if i would act differently, before any communication, without
        j in its field of view. Only those are asked that the rows allow.

        Args:
            rows: [B, F], with the part `position`; channel 0 of what agents see shows the others.
            embedded: [B, A, E] of the same rows.
            state: [B, A, H] before them.
        """
        seen, position = self.parts(rows), self.parts.part(rows, "position").long()  # [B, A, 2]
        radius = self.parts.one.shape[1] // 2
        offset = position.unsqueeze(1) - position.unsqueeze(2)  # [B, A, A, 2]: where i sees j, from i
        themselves = torch.eye(self.parts.agents, dtype=torch.bool, device=rows.device) & seen.mask
        row, i, j = (seen.mask & ~themselves & (offset.abs() <= radius).all(dim=3)).nonzero(as_tuple=True)
        if len(row):
            without = seen.agents[row, i].clone()
            down, right = (offset[row, i, j] + radius).unbind(1)
            without[torch.arange(len(row), device=rows.device), 0, down, right] = 0
            alone = self.values(self.think(self.encoder(without), state[row, i])).argmax(dim=1)
            usual = self.values(self.think(embedded, state)).argmax(dim=2)[row, i]
            themselves[row, i, j] = alone != usual
        return themselves


def _encoder(one: ObsPart, hidden: tuple[int, ...], channels: int, blocks: int) -> Any:
    sides = [side for side, axis in zip(one.shape, one.axes, strict=False) if axis in "HW"]
    if sides and max(sides) < MIN_IMAGE and "S" not in one.axes:
        return FieldOfView(one, channels, blocks)
    return make_torso((one,), hidden)


def _initialise(network: CommunicationNetwork, own: bool) -> None:
    """Xavier-uniform weights and zero biases, as DHC; an encoder of the user's stays as it was made."""
    kept = set(network.encoder.modules()) if own else set()
    for module in network.modules():
        if module not in kept and isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
