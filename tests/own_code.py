"""Algorithms and networks as a user writes them, in a module of their own: named by path in several tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.algorithms import Algorithm, AlgorithmConfig, Loss, TransitionBatch, ValueConfig, q_network, value_algorithm
from shoal.networks import QNetwork
from shoal.ops import huber, q_learning_target, td_error
from shoal.types import EnvSpec


class Config(ValueConfig):
    """Hyper-parameters of a plain Q-learner."""

    bonus: float = 0.0


def loss(network: QNetwork, target: QNetwork, batch: TransitionBatch) -> Loss:
    with torch.no_grad():
        goal = q_learning_target(target(batch.next_obs), batch.reward, batch.discount)
    error = td_error(network(batch.obs), batch.action, goal)
    return Loss(huber(error), error, {})


ALGORITHM = value_algorithm("plain", "plain Q-learning", Config, q_network, lambda config, device: loss)
NOT_ONE = "text"
WRONG_CONFIG = Algorithm("wrong", "", dict, *([lambda *_: None] * 5))  # type: ignore[arg-type]


def _deaf_network(config: AlgorithmConfig, spec: EnvSpec) -> QNetwork:
    return QNetwork(spec.obs_shape, spec.obs_dtype, spec.num_actions, (8,))


DEAF = value_algorithm("deaf", "ignores algorithm.network", Config, _deaf_network, lambda config, device: loss)
FORGETFUL = value_algorithm("forgetful", "", Config, q_network, lambda config, device: loss)
object.__setattr__(FORGETFUL, "columns", lambda config, spec: ())  # its policy records priorities
_widths = iter(range(8, 1000))
UNEQUAL = value_algorithm(
    "unequal",
    "another network each time",
    Config,
    lambda config, spec: QNetwork(spec.obs_shape, spec.obs_dtype, spec.num_actions, (next(_widths),)),
    lambda config, device: loss,
)


def _broken(config: Any, spec: Any) -> QNetwork:
    raise KeyError("no such layer")


BROKEN = value_algorithm("broken", "", Config, _broken, lambda config, device: loss)


def make_torso(spec: EnvSpec) -> nn.Module:
    """For anything but several inputs."""
    size = math.prod(spec.obs_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 24, bias=False), nn.LayerNorm(24), nn.ReLU())


def lazy(spec: EnvSpec) -> nn.Module:
    """Finds its sizes by itself."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.ReLU())


class Attention(nn.Module):
    """Relu with three axes, of whose meaning nothing is known."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.first = nn.Linear(1, 8)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.relu(self.first(obs.flatten(1).unsqueeze(2))).mean(dim=1)  # [B, F, 8] -> [B, 8]


class Parts(nn.Module):
    """For several inputs: it gets them by name."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({part.name: nn.Linear(part.size, 16) for part in spec.inputs})
        self.shapes = {part.name: part.shape for part in spec.inputs}

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        assert {name: tuple(part.shape[1:]) for name, part in obs.items()} == self.shapes
        assert all(part.dtype == torch.float32 and part.abs().max() <= 1 for part in obs.values())
        return torch.cat([torch.relu(self.layers[name](part.flatten(1))) for name, part in obs.items()], 1)


class _Returns(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(()))

    def forward(self, obs: Tensor) -> Any:
        return self.function(obs.flatten(1) * self.weight)


def wrong_rank(spec: EnvSpec) -> nn.Module:
    return _Returns(lambda x: x.unsqueeze(1))


def wrong_batch(spec: EnvSpec) -> nn.Module:
    return _Returns(lambda x: x.reshape(1, -1))


def squeezed(spec: EnvSpec) -> nn.Module:
    """Right for every batch but one of a single observation."""
    return _Returns(torch.squeeze)


def not_a_number(spec: EnvSpec) -> nn.Module:
    return _Returns(lambda x: torch.where(x == 0, x, torch.nan))


def not_a_tensor(spec: EnvSpec) -> nn.Module:
    return _Returns(lambda x: (x, x))


def whole_numbers(spec: EnvSpec) -> nn.Module:
    return _Returns(lambda x: x.long())


def detached(spec: EnvSpec) -> nn.Module:
    return _Returns(torch.detach)


def raises_later(spec: EnvSpec) -> nn.Module:
    return nn.Linear(3, 4)  # of another width than any observation here


def raises(spec: EnvSpec) -> nn.Module:
    raise ZeroDivisionError("no layers")


def no_module(spec: EnvSpec) -> Any:
    return [1, 2]
