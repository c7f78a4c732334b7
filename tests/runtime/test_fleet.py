"""The order in which roles work and end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from shoal.replay import LedgerWord
from shoal.replay.ledger import HALT, RUN, WIND_DOWN
from shoal.runtime.fleet import supervise
from shoal.runtime.run_folder import Status
from shoal.runtime.supervisor import Supervisor


class Scripted:
    """A supervisor and a fleet in one. The run ends during its second round of training."""

    doing = ""

    def __init__(self, inline: bool, ends: Status) -> None:
        self.inline, self._ends = inline, ends
        self.ledger = {LedgerWord.STOP: RUN}
        self.calls: list[tuple[str, int]] = []

    def status(self) -> Status | None:
        return self._ends if self.calls.count(("train", RUN)) == 2 else None

    def work(self, *, trains: bool) -> None:
        self._called("train" if trains else "others")

    def end_training(self) -> None:
        self._called("end training")

    def evaluate(self) -> None:
        self._called("evaluate")

    def end(self) -> None:
        self._called("end")

    def record(self) -> None: ...

    def record_if_due(self) -> None: ...

    def tick(self) -> None: ...

    def _called(self, what: str) -> None:
        self.calls.append((what, self.ledger[LedgerWord.STOP]))


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("ends", ["finished", "solved", "interrupted"])
def test_nothing_begins_beside_training_that_has_ended(inline: bool, ends: Status) -> None:
    """Inline it is done before anything else, so that it is not cut."""
    run: Any = Scripted(inline, ends)
    assert supervise(cast(Supervisor, run), run) == ends
    last = [("others", RUN)] if inline else []
    final = [("end training", WIND_DOWN), ("evaluate", WIND_DOWN)] if ends == "finished" else []
    assert run.calls == [("train", RUN), ("others", RUN), ("train", RUN), *last, *final, ("end", HALT)]
