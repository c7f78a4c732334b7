"""Action values of agents that talk: an encoder and a GRU for each agent, attention between neighbours, a dueling head.

"Distributed Heuristic Multi-Agent Path Finding with Communication", Ma et al. 2021, https://arxiv.org/abs/2106.11365
(DHC). All agents share all weights, and no weight depends on their number: a network trained with four agents plays
with sixteen.

    observation of each agent -> encoder -> GRU -> [attention to neighbours -> what it adds] x rounds -> dueling head
                                             ^                                            |
                                             +------------ state of the next step <-------+

Shapes: M rows (T * B in sequences), B rows of one time step, A agents, E features, H the state's width, N actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.networks.heads import QHead
from shoal.networks.inputs import make_torso, numbers
from shoal.networks.normalization import ValueNorm
from shoal.networks.own import MakeOwn
from shoal.networks.recurrent_q import RecurrentQNetwork
from shoal.networks.torso import FirstConvolution
from shoal.types import MIN_IMAGE, ObsPart, image_axes


class TeamObservation(NamedTuple):
    """A row of a team, taken apart."""

    agents: Tensor
    """[M, A, *shape] what each agent sees."""
    mask: Tensor
    """[M, A, A] bool: i may hear j; the diagonal says who is there."""
    reward: Tensor
    """[M, A] of the step that led here."""


class TeamParts:
    """Where the parts of a team's observation are in a row, also in one that was cut to the first few agents."""

    def __init__(self, parts: tuple[ObsPart, ...]) -> None:
        self._parts = {part.name: part for part in parts}
        agents = self._parts["agents"]
        self.agents, self.in_bytes = agents.shape[0], agents.width == 1
        shape = agents.shape[1:]
        self.one = replace(agents, name="", shape=shape, start=0, axes=image_axes(shape), width=1)
        """What one agent sees, as an observation of its own."""
        self.sizes = (*(2**n for n in range(10) if 2**n < self.agents), self.agents)
        """To how many agents rows may be cut."""
        self._layouts = {sum(part.stored for part in cut): {one.name: one for one in cut} for cut in self._cuts()}

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def _cuts(self) -> Iterator[tuple[ObsPart, ...]]:
        """The parts of a row for each of `sizes`. All have an axis of agents; the mask has two."""
        for agents in self.sizes:
            cut: list[ObsPart] = []
            for name, part in self._parts.items():
                shape = (agents, agents) if name == "mask" else (agents, *part.shape[1:])
                cut.append(replace(part, shape=shape, start=sum(one.stored for one in cut)))
            yield tuple(cut)

    def cut(self, rows: Tensor, agents: int) -> Tensor:
        """[..., F] -> rows of the first agents, one of `sizes`."""
        kept = []
        for name, part in self._parts.items():
            entries = rows[..., part.start : part.start + part.stored].unflatten(-1, (self.agents, -1))[..., :agents, :]
            if name == "mask":
                entries = entries.unflatten(-1, (self.agents, -1))[..., :agents, :].flatten(-2)
            kept.append(entries.flatten(-2))
        return torch.cat(kept, dim=-1)

    def __call__(self, rows: Tensor) -> TeamObservation:
        """[M, F] -> its parts."""
        return TeamObservation(self.part(rows, "agents"), self.part(rows, "mask") > 0.5, self.part(rows, "reward"))

    def part(self, rows: Tensor, name: str) -> Tensor:
        """[M, F] -> [M, *shape of the part]"""
        part = self._layouts[rows.shape[1]][name]
        return numbers(rows, part).reshape(len(rows), *part.shape)


class FieldOfView(nn.Module):
    """DHC's convolutions for what an agent sees around it, [B, C, h, w]: 3x3 without padding, residual blocks of two
    3x3 each, and 1x1 to few channels; flattened. Behind that comes the middle cell as it is: the
    agent's own in path finding, where it says which moves shorten the way.

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
        self._middle, self._scale = (sides["H"] // 2, sides["W"] // 2), part.scale
        self.first = FirstConvolution(sides.get("C", 1), channels, kernel_size=3)
        self.first.scale = part.scale
        self.blocks = nn.ModuleList(_Block(channels) for _ in range(blocks))
        self.squeeze = nn.Conv2d(channels, squeezed, kernel_size=1)
        self.out_features = squeezed * (sides["H"] - 2) * (sides["W"] - 2) + sides.get("C", 1)

    def forward(self, obs: Tensor) -> Tensor:
        """[B, *shape] -> [B, out_features]"""
        images = obs.unsqueeze(1) if self._flat else obs
        x = torch.relu(self.first.images(images, self._last))
        for block in self.blocks:
            x = block(x)
        row, column = self._middle
        own = images[:, row, column] if self._last else images[:, :, row, column]
        return torch.cat((torch.relu(self.squeeze(x)).flatten(1), own.to(x.dtype) * self._scale), dim=1)


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(torch.relu(self.conv1(x))))


class Communication(nn.Module):
    """Rounds of attention to those whom an agent hears; what it is told adds to its state, which stays within -1 and 1
    as a GRU's. All rounds share their weights.

    At first nothing is added: what others say is noise then, and a second GRU, as in DHC, replaced most of what an
    agent remembered. An agent that hears nobody but itself keeps its state.

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
        self.hidden = nn.Linear(width + head_size, width)
        self.added = nn.Linear(width, width)
        self.say_nothing()

    def say_nothing(self) -> None:
        """As at first: no message changes a state."""
        nn.init.zeros_(self.added.weight)
        nn.init.zeros_(self.added.bias)

    def forward(self, state: Tensor, mask: Tensor) -> Tensor:
        """[B, A, H] and [B, A, A] bool, the diagonal included -> [B, A, H]"""
        hears = (mask.sum(dim=2, keepdim=True) > 1) & mask.diagonal(dim1=1, dim2=2).unsqueeze(2)  # [B, A, 1]
        for _ in range(self.rounds):
            told = self.message(self._attention(state, mask))
            added = self.added(torch.relu(self.hidden(torch.cat((state, told.to(state.dtype)), dim=2))))
            state = torch.where(hears, (state + added).clamp(-1.0, 1.0).to(state.dtype), state)
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


class CommunicationNetwork(RecurrentQNetwork):
    """Action values of all agents of a team. Its state is that of all agents, [B, A * H].

    Args:
        parts: of a team's observation; see `EnvSpec.obs_parts`.
        num_actions: N, of one agent.
        width: H, of the GRU's state.
        hidden: MLP widths where agents see vectors.
        channels, blocks: see `FieldOfView`; where agents see images of less than 36x36.
        rounds: of communication; 0: agents do not talk, and learn independently of each other.
        heads, head_size: of the attention.
        causal: agents ask only those who change their decision; see `causal_mask`.
        dueling: value and advantage streams.
        normalize_values: the head predicts returns with mean 0 and deviation 1.
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
        causal: bool = False,
        dueling: bool = True,
        normalize_values: bool = False,
        own: MakeOwn = None,
    ) -> None:
        super().__init__()
        self.parts, self._causal = TeamParts(parts), causal
        self.encoder = own() if own is not None else _encoder(self.parts.one, hidden, channels, blocks)
        self.cell = nn.GRUCell(self.encoder.out_features, width)
        self.state_size = self.parts.agents * width
        self.communication = Communication(width, rounds, heads, head_size) if rounds else None
        self.head = QHead(width, num_actions, 0, dueling)
        if normalize_values:
            self.value_norm = ValueNorm()
        self._heard = torch.zeros(())
        _initialise(self, own is not None)

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """`heard`: whom an agent listened to in a step, on average."""
        return {} if self.communication is None else {"heard": self._heard}

    def q_values(self, obs: Tensor, state: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.zeros(1, len(obs), dtype=torch.bool, device=obs.device)
        values, state = self.unroll(obs.unsqueeze(0), state, first, last_action.unsqueeze(0))
        return values[0], state

    def unroll(self, obs: Tensor, state: Tensor, first: Tensor, last_action: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, F] -> [T, B, A, N], zeros for agents that are not there; rows may be cut (`TeamParts.cut`), the state
        likewise. `last_action` is not looked at.
        """
        steps = obs.shape[:2]
        seen = self.parts(obs.flatten(0, 1))
        present = seen.mask.diagonal(dim1=1, dim2=2)  # [M, A]
        embedded = self.embed(seen.agents, present).unflatten(0, steps)
        mask, keep = seen.mask.unflatten(0, steps), (~first).to(embedded.dtype)[..., None, None]
        now, states = state.unflatten(1, (-1, self.cell.hidden_size)), []  # [B, A, H]
        messages = seen.mask.new_zeros((), dtype=torch.int64)
        for time, (features, heard, kept) in enumerate(zip(embedded, mask, keep, strict=True)):
            now = now.to(features.dtype) * kept
            if self._causal:
                heard = self.causal_mask(obs[time], features, now)
            now = self.recur(features, now, heard)
            states.append(now)
            messages = messages + heard.sum()
        self._heard = (messages - present.sum()) / present.sum().clamp(min=1)
        values = self.values(torch.stack(states)) * present.unflatten(0, steps).unsqueeze(-1)
        return values, now.flatten(1)

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
        new: Tensor = self.cell(embedded.flatten(0, -2), state.flatten(0, -2))
        return new.view(state.shape)

    def values(self, state: Tensor) -> Tensor:
        """[..., H] -> [..., N]"""
        values: Tensor = self.head(state.flatten(0, -2))
        if self.value_norm is not None:
            values = self.value_norm(values)
        return values.float().view(*state.shape[:-1], -1)

    @torch.no_grad()
    def causal_mask(self, obs: Tensor, embedded: Tensor, state: Tensor) -> Tensor:
        """Who listens to whom if agents ask only those who change their decision, [B, A, A] bool.

        "Learning Selective Communication for Multi-Agent Path Finding", Ma et al. 2021,
        https://arxiv.org/abs/2109.05413: i listens to j if i would act differently, before any communication, without
        j in its field of view. Only those are asked that the mask of the observation allows.

        Args:
            obs: [B, F], with the part `position`; channel 0 of what agents see shows the others.
            embedded: [B, A, E] of the same rows.
            state: [B, A, H] before them.
        """
        seen, position = self.parts(obs), self.parts.part(obs, "position").long()  # [B, A, 2]
        radius = self.parts.one.shape[1] // 2
        offset = position.unsqueeze(1) - position.unsqueeze(2)  # [B, A, A, 2]: where i sees j, from i
        heard = torch.eye(seen.mask.shape[1], dtype=torch.bool, device=obs.device) & seen.mask
        row, i, j = (seen.mask & ~heard & (offset.abs() <= radius).all(dim=3)).nonzero(as_tuple=True)
        if len(row):
            without = seen.agents[row, i].clone()
            down, right = (offset[row, i, j] + radius).unbind(1)
            without[torch.arange(len(row), device=obs.device), 0, down, right] = 0
            alone = self.values(self.think(self.encoder(without), state[row, i])).argmax(dim=1)
            usual = self.values(self.think(embedded, state)).argmax(dim=2)[row, i]
            heard[row, i, j] = alone != usual
        return heard


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
    if network.communication is not None:
        network.communication.say_nothing()
