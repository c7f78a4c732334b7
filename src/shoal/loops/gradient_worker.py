"""GradientWorker: an actor's half of learning. It computes the gradient of each rollout and pushes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from shoal.algorithms.pushes import PushLearner, count_steps
from shoal.loops.gradient_board import GradientBoard
from shoal.loops.weights import BoardModule
from shoal.replay import Ledger
from shoal.types import Array, Keys, Sample, Sequence


class GradientWorker:
    """Collects rollouts of the weights it has taken; they change only between two of them."""

    def __init__(
        self,
        learner: PushLearner,
        policy: nn.Module,
        weights: BoardModule,
        board: GradientBoard,
        unroll: int,
        ledger: Ledger,
    ) -> None:
        """Args:
        learner: computes gradients.
        policy: the network that acts. From now on it has the learner's weights, not a copy of them.
        weights: of the learner's network.
        board: where gradients go.
        unroll: steps of a rollout.
        ledger: the run's counts.
        """
        self._learner, self._weights, self._board, self._ledger = learner, weights, board, ledger
        both = (one.state_dict(keep_vars=True).values() for one in (policy, learner.module))
        for mine, learned in zip(*both, strict=True):
            mine.data = learned.data
        self._unroll = unroll
        self._columns: dict[str, Array] = {}
        self._steps = 0

    def refresh(self) -> int:
        """Takes the newest weights between two rollouts; returns the version of those it has."""
        return self._weights.version if self._steps else self._weights.refresh()

    def cut(self) -> None:
        """The stream was broken: a rollout begins with the next row."""
        self._steps = 0

    def add(self, row: Mapping[str, Any], next_obs: Array, next_boundary: npt.NDArray[np.uint8]) -> None:
        """Takes one row of every lane, and what it led to; pushes the gradient of a complete rollout."""
        if not self._columns:
            arrays = {name: np.asarray(value) for name, value in row.items()}
            self._columns = {name: np.zeros((self._unroll + 1, *one.shape), one.dtype) for name, one in arrays.items()}
        for name, column in self._columns.items():
            column[self._steps] = row[name]
        self._steps += 1
        if self._steps == self._unroll:
            # The last observation is known before an action is chosen for it: all of a rollout is of one policy.
            self._columns["obs"][-1], self._columns["boundary"][-1] = next_obs, next_boundary
            self._push()
            self._steps = 0

    def _push(self) -> None:
        columns = self._columns
        kept: tuple[str, ...] = ("behaviour", "raw_action")
        extras = {name: columns[name] for name in kept if name in columns}
        if "state" in columns:
            extras["state"] = columns["state"][0]
        steps = {name: columns[name][:-1] for name in ("action", "reward", "terminated", "truncated")}
        data = Sequence(obs=columns["obs"], boundary=columns["boundary"], extras=extras, **steps)
        lanes, rows, version = data.reward.shape[1], count_steps(data), self._weights.version
        if rows and not self._ledger.stop:  # after the end nobody would take it
            sample = Sample(data, Keys.empty(0), np.ones(lanes), lanes, float(version), np.ones(lanes, np.bool_))
            self._board.push(self._learner.push(sample), rows, version)
