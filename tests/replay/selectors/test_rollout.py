"""Rollouts: actors and learner meet at a row of every shard."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay import Header, Replay, SequenceView, ShardReader, ShardWriter
from shoal.replay.pace import BarrierPace
from shoal.replay.selectors import Rollout
from shoal.replay.views import Span
from shoal.types import Sample

STEPS = 4


class Meeting:
    """Two shards of 2 lanes, their writers, and a reader of rollouts of 4 steps."""

    def __init__(self, marked: ModuleType, shards: Any, lag: Any = 0, share: float = 1.0) -> None:
        self._marked, self._lag, self._share = marked, lag, share
        self.paths = [shards.make(marked.info(64, 2)) for _ in range(2)]
        self.writers = [ShardWriter(path) for path in self.paths]
        self.start_learner()

    def start_learner(self) -> None:
        view = SequenceView(self._marked.schema(), STEPS, 0, ("tag",))
        readers = [ShardReader(path) for path in self.paths]
        least = 2 if self._share < 1 else None
        self.replay = Replay(readers, Rollout(self._lag), view, 4, batch_min=least)
        self.pace = BarrierPace(self.paths, self._share)

    def sample(self) -> Sample | None:
        """As `PacedReplay` does it."""
        return self.replay.sample() if self.pace.may_learn() else None

    def write(self, index: int, most: int = 99) -> int:
        """As an actor does it: one row after the other, while it may. Returns how many."""
        writer = self.writers[index]
        pace = BarrierPace(self.paths, self._share, writer)
        for count in range(most):
            if not pace.may_act():
                return count
            writer.append_chunk(self._marked.block_of(index, 2, writer.head, 1))
        return most


def starts(sample: Sample | None) -> list[int]:
    """First rows: two lanes of each shard that took part."""
    assert sample is not None
    return [int(row) for row in sample.keys.logical]


@pytest.fixture
def meeting(marked: ModuleType, shards: Any) -> Meeting:
    return Meeting(marked, shards)


def test_they_take_turns(meeting: Meeting) -> None:
    assert meeting.write(0) == 0, "nobody acts before the learner has published weights"
    assert meeting.sample() is None
    assert meeting.write(0) == STEPS + 1, "the last row is to bootstrap from"
    assert meeting.sample() is None and not meeting.pace.may_learn() and meeting.pace.batches_due(8) == 0
    assert meeting.write(0) == 0, "no rows in place of the other's: they would be of old weights"
    assert meeting.write(1) == STEPS + 1
    sample = meeting.sample()
    assert starts(sample) == [0] * 4
    assert sample is not None and sample.keys.lane.tolist() == [0, 1, 0, 1] and sample.fresh.all()
    assert [meeting.write(index) for index in (0, 1)] == [0, 0], "not while it learns"
    assert meeting.sample() is None, "it comes back for the next one"
    assert [meeting.write(index) for index in (0, 1)] == [STEPS, STEPS]
    assert starts(meeting.sample()) == [4] * 4


def test_a_lag_of_one(marked: ModuleType, shards: Any) -> None:
    meeting = Meeting(marked, shards, lag=1)
    meeting.sample()
    for start in (0, 4, 8):
        for index in (0, 1):
            assert meeting.write(index) == STEPS + (start == 0), "no second one"
        assert starts(meeting.sample()) == [start] * 4


def test_a_share_is_enough(marked: ModuleType, shards: Any) -> None:
    """The late one completes its rollout and joins the next."""
    meeting = Meeting(marked, shards, share=0.5)
    meeting.sample()
    meeting.write(0)
    meeting.write(1, most=2)
    assert starts(meeting.sample()) == [0, 0]
    assert meeting.write(1, most=1) == 1 and meeting.write(0) == 0
    meeting.sample()
    assert meeting.write(1) == 2 and meeting.write(0) == STEPS
    assert starts(meeting.sample()) == [4, 4, 0, 0]
    meeting.sample()
    assert meeting.write(1) == meeting.write(0) == STEPS


def test_an_actor_that_was_restarted_begins_again(meeting: Meeting) -> None:
    meeting.sample()
    meeting.write(0)
    meeting.write(1, most=2)
    meeting.writers[1] = ShardWriter(meeting.paths[1])  # marks the break at row 2
    assert meeting.write(1) == 2, "to where it was granted"
    assert meeting.sample() is None
    assert meeting.write(1) == 3 and meeting.write(0) == 0
    assert starts(meeting.sample()) == [0, 0, 3, 3]
    meeting.sample()
    assert meeting.write(0) == meeting.write(1) == STEPS


@pytest.mark.parametrize("lag", [0, 1])
def test_a_learner_that_was_restarted_goes_on(marked: ModuleType, shards: Any, lag: int) -> None:
    """A rollout that was drawn and not learned from is lost, as with any queue."""
    meeting = Meeting(marked, shards, lag)
    meeting.sample()
    for index in (0, 1):
        meeting.write(index)
    assert starts(meeting.sample()) == [0] * 4
    meeting.start_learner()  # killed while it learned
    assert meeting.sample() is None
    assert [meeting.write(index) for index in (0, 1)] == [STEPS, STEPS]
    assert starts(meeting.sample()) == [4] * 4
    meeting.sample()
    assert [meeting.write(index) for index in (0, 1)] == [STEPS, STEPS]


def test_nothing_is_overwritten(meeting: Meeting) -> None:
    meeting.sample()
    for start in range(0, 400, STEPS):
        for index in (0, 1):
            meeting.write(index)
        assert starts(meeting.sample()) == [start] * 4
        assert meeting.sample() is None
    assert meeting.replay.metrics() == {"rollout/dropped": 0.0} and meeting.replay.redrawn == 0
    assert all(writer.header[Header.CURSOR] == 400 for writer in meeting.writers)


def test_refused(marked: ModuleType, shards: Any) -> None:
    with pytest.raises(ConfigError, match="lag is 2"):
        Rollout(2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use it with sequences"):
        Rollout().attach(ShardReader(shards.make(marked.info(64, 2))), Span(0, 1))


def test_no_draws_from_nothing() -> None:
    assert Rollout().most(3) == 0 and not Rollout().ready(1) and Rollout().select(0, np.random.default_rng(0))
