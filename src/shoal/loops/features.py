"""What the newest network makes of observations, for selectors that compare features.

The network is the selector's own, refreshed from the weight board: the learner's may change while it is read. It
computes where the learner does, on a stream of its own: batches are drawn in another thread than they are learned from.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol, cast

import torch

from shoal.algorithms.interface import Policy
from shoal.loops.weights import BoardModule, WeightBoard
from shoal.types import Array


class _Featured(Protocol):
    def to(self, device: torch.device) -> None:
        """Computes there from now on."""

    def features(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""


class BoardFeatures:
    """Features by the newest published weights."""

    def __init__(self, policy: Policy, board: WeightBoard, device: torch.device) -> None:
        """Args:
        policy: one that has `features`; nobody else may use it.
        board: where weights come from.
        device: where to compute.
        """
        self._policy, self._board = cast(_Featured, policy), board
        self._stream = None
        if device.type == "cuda":
            self._policy.to(device)
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights' way there
        self._weights, self._version = BoardModule(policy.module), 0

    def __call__(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            if self._board.version != self._version:
                self._version = self._weights.load(self._board)
            return self._policy.features(obs)
