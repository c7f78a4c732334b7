"""Source: where a learner's batches come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from shoal.replay.ledger import Ledger, LedgerWord
from shoal.replay.pace import Pace
from shoal.types import Keys, Sample

if TYPE_CHECKING:
    from shoal.replay.replay import Replay


class Source(Protocol):
    """Batches, and the way back for their priorities."""

    draws_ahead: bool
    """Whether another thread draws, so that all the time in `sample` is spent waiting."""

    def sample(self) -> Sample | None:
        """The next batch; None when there is none yet."""

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> None:
        """Sets the priorities of rows drawn earlier, before the next draw."""

    def metrics(self) -> dict[str, float]:
        """What is reported under `replay/`."""

    def close(self) -> None:
        """Stops its threads."""


class PacedReplay:
    """A run's replay: draws when the pace allows it, and counts the draws. For one thread."""

    draws_ahead = False

    def __init__(self, replay: Replay, pace: Pace, ledger: Ledger) -> None:
        self.replay, self._pace, self._ledger = replay, pace, ledger
        self._dropped = 0
        pace.grant(0)  # an earlier learner may have lacked more

    def sample(self) -> Sample | None:
        if not self._pace.may_learn():
            return None
        before = self.replay.rows_drawn
        sample = self.replay.sample()
        self._ledger.add(LedgerWord.SAMPLES, self.replay.rows_drawn - before)
        if self.replay.lacking:
            self._pace.grant(self.replay.lacking)
        return sample

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> None:
        self._dropped += self.replay.update_priorities(keys, priorities)

    def metrics(self) -> dict[str, float]:
        replay = self.replay
        counts = {"rows": replay.size, "dropped_priorities": self._dropped, "mean_batch": replay.mean_batch}
        return {**counts, **replay.metrics()}

    def close(self) -> None:
        pass
