"""Trains with a network of one's own: a torso of residual blocks with layer normalisation, for any algorithm.

The function gets the environment's description and returns a module from observations [B, *obs_shape] to features
[B, F]. The algorithm puts its own heads on the features. It is named `module:function`, so that every process of a run
can import it.

    python examples/own_network.py
    PYTHONPATH=examples shoal train Pendulum-v1 --algo sac network=own_network:make_torso
"""

from __future__ import annotations

import math

from torch import Tensor, nn

import shoal
from shoal.types import EnvSpec

WIDTH = 64


class Block(nn.Module):
    """x + a small network of x."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def make_torso(spec: EnvSpec) -> nn.Module:
    """[B, *obs_shape] -> [B, WIDTH]"""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(spec.obs_shape), WIDTH), Block(), Block())


def main(runtime: str = "ray", steps: int = 20_000, out: str = "runs") -> shoal.Run:
    """Trains on CartPole."""
    return shoal.train(
        "CartPole-v1",
        algo="apex-dqn",
        steps=steps,
        runtime=runtime,
        out=out,
        settings={"algorithm.network": "own_network:make_torso"},
    )


if __name__ == "__main__":
    print(main())
