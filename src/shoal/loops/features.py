"""What the newest network makes of observations, for selectors that compare features.

The network is the selector's own, refreshed from the weight board: the learner's may change while it is read.
"""

from __future__ import annotations

from typing import Protocol, cast

from shoal.algorithms.interface import Policy
from shoal.loops.weights import FlatModule, WeightBoard
from shoal.types import Array


class _Featured(Protocol):
    def features(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""


class BoardFeatures:
    """Features by the newest published weights."""

    def __init__(self, policy: Policy, board: WeightBoard) -> None:
        """Args:
        policy: one that has `features`; nobody else may use it.
        board: where weights come from.
        """
        self._policy, self._board = cast(_Featured, policy), board
        self._weights, self._version = FlatModule(policy.module), 0

    def __call__(self, obs: Array) -> Array:
        """[M, *obs_shape] -> [M, F]"""
        if self._board.version != self._version:
            self._version = self._weights.load(self._board)
        return self._policy.features(obs)
