"""Features of observations by the newest network, for selectors that compare features.

The selector has its own network, refreshed from the weight board: the learner's may change while it is read. It runs on
the learner's device, in a CUDA stream of its own, because batches may be drawn in another thread than the learner's.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Protocol, cast

import torch

from shoal.algorithms.interface import Policy
from shoal.loops.weights import BoardModule
from shoal.types import Array


class _Featured(Protocol):
    def to(self, device: torch.device) -> None:
        """Moves the network to a device."""

    def features(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""


class BoardFeatures:
    """Features by the newest published weights."""

    def __init__(self, policy: Policy, board: Path, device: torch.device) -> None:
        """Args:
        policy: one that has `features`; nobody else may use it.
        board: the file of the weight board.
        device: where to compute.
        """
        self._policy = cast(_Featured, policy)
        self._stream = None
        if device.type == "cuda":
            self._policy.to(device)
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights' way there
        self._weights = BoardModule(policy.module, board, in_place=True)

    def __call__(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._weights.refresh()
            return self._policy.features(obs)
