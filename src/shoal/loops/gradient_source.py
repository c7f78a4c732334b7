"""The server's side of gradients: a learner's source of them, and who may go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from shoal.algorithms.interface import PushRules
from shoal.loops.gradient_board import GradientBoard, Push, PushCounts
from shoal.replay import Ledger, LedgerWord
from shoal.types import Gradients, Keys, Sample


class GradientPace:
    """Workers wait for their gradients to be applied, or not at all; the server takes what there is."""

    longest_wait = 0.0002  # an update takes no longer

    def __init__(self, boards: Sequence[GradientBoard], rules: PushRules, own: GradientBoard | None = None) -> None:
        """Args:
        boards: of all workers.
        rules: how they are used.
        own: of the worker that asks; None for those who do not act.
        """
        self._boards, self._rules, self._own = boards, rules, own

    def may_act(self) -> bool:
        return self._own is None or self._rules.on_full == "newest" or self._own.settled

    def may_learn(self) -> bool:
        return True

    def batches_due(self, rows: int) -> int:
        waiting = sum(board.counts.waiting for board in self._boards)
        return max(1, waiting // self._rules.k) if waiting else 0

    def grant(self, steps: int) -> None:
        """Nothing: no worker waits for rows."""


class GradientSource:
    """Takes gradients from all boards, in turn, and hands out k at a time.

    Those that were handed out count as applied when the learner comes back: then it has applied and published them. If
    it dies before, they are dropped, and the next server lets their workers go on.
    """

    draws_ahead = False

    def __init__(
        self, boards: Sequence[GradientBoard], rules: PushRules, version: Callable[[], int], ledger: Ledger
    ) -> None:
        """Args:
        boards: one of each worker.
        rules: how they are used.
        version: of the weights published last.
        ledger: the run's counts.
        """
        self._boards, self._rules, self._version, self._ledger = boards, rules, version, ledger
        self._next = 0
        self._held: list[tuple[GradientBoard, Push]] = []
        self._out: list[GradientBoard] = []
        for board in boards:
            board.settle(applied=0)  # what an earlier server took died with it

    def sample(self) -> Sample | None:
        self._settle()
        self._take()
        k = self._rules.k
        if len(self._held) < k:
            return None
        out, self._held = self._held[:k], self._held[k:]
        self._out = [board for board, _ in out]
        pushes = [push for _, push in out]
        rows, versions = np.array([one.rows for one in pushes]), np.array([one.version for one in pushes])
        data = Gradients(np.stack([one.vector for one in pushes]), rows, np.maximum(0, self._version() - versions))
        self._ledger.add(LedgerWord.SAMPLES, int(rows.sum()))
        return Sample(data, Keys.empty(0), np.ones(k), k, float(versions.mean()))

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> None:
        """Gradients have none."""

    def metrics(self) -> dict[str, float]:
        """How many gradients there were, ever, and what became of them."""
        self._settle()
        totals = PushCounts(*map(sum, zip(*(board.counts for board in self._boards), strict=True)))
        return {f"gradients/{name}": float(total) for name, total in totals._asdict().items()}

    def close(self) -> None:
        """What nobody will apply any more is dropped."""
        self._settle()
        for board in self._boards:
            board.take()
            board.settle(applied=0)

    def _take(self) -> None:
        """Looks at every board once, beginning behind the last one that had a gradient: none is preferred."""
        for board in (*self._boards[self._next :], *self._boards[: self._next]):
            if len(self._held) >= self._rules.k:
                return
            if (push := board.take()) is None:
                continue
            self._next = (self._boards.index(board) + 1) % len(self._boards)
            most = self._rules.max_staleness
            if most is not None and self._version() - push.version > most:
                board.settle(applied=0)
            else:
                self._held.append((board, push))

    def _settle(self) -> None:
        for board in self._out:
            board.settle(applied=1)
        self._out = []
