"""Attentive: the candidates most like the states that actors have just visited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.replay import Attentive, Replay, SequenceView, Span
from shoal.types import Keys

SPAN = Span(0, 4, crosses_episodes=True)


def _fill(writer: Any, blank: Any, values: Any, boundary: Any = 0) -> None:
    """Rows whose observation is (value, 1) in every lane."""
    obs = np.ones((len(values), writer.info.lanes, 2), np.float32)
    obs[..., 0] = np.asarray(values)[:, None]
    writer.append_chunk(blank(writer.info, len(values), obs=obs, boundary=boundary))


def _attentive(readers: list[Any], **settings: Any) -> Attentive:
    given = {"candidates": 5.0, "anneal": 1e6} | settings
    attentive = Attentive(lambda obs: obs, **given)
    for reader in readers:
        attentive.attach(reader, SPAN)
    attentive.refresh()
    return attentive


@pytest.mark.parametrize("distance", ["l2", "cosine", "kl"])
def test_what_is_like_the_newest_state_is_drawn(shards: Any, blank: Any, distance: str) -> None:
    """A stream that was near 5, went away, and has come back."""
    writer, reader = shards.small(256, 2)
    _fill(writer, blank, np.concatenate([np.linspace(4, 6, 40), np.linspace(-9, -3, 120), np.full(8, 5.0)]))
    attentive, rng = _attentive([reader], distance=distance), np.random.default_rng(0)
    drawn = np.concatenate([attentive.select(6, rng).keys.logical for _ in range(40)])
    near = (drawn < 40) | (drawn >= 160)
    assert near.mean() > 0.9
    metrics = attentive.metrics()
    assert metrics["distance"] < metrics["candidate_distance"] and metrics["lambda"] == pytest.approx(5.0, abs=1e-3)


def test_every_shard_gives_a_reference_and_the_nearest_counts(shards: Any, blank: Any) -> None:
    (one, first), (two, second) = shards.small(256, 1), shards.small(256, 1)
    _fill(one, blank, np.linspace(-10, 0, 200))
    _fill(two, blank, np.linspace(-10, -10, 200))
    attentive, rng = _attentive([first, second]), np.random.default_rng(0)
    assert attentive._newest(rng).logical.tolist() == [199, 199]
    far = attentive._far(Keys(np.array([0, 0, 1], np.int32), np.zeros(3, np.int32), np.array([0, 100, 50])), rng)
    assert far[0] < 0.3 and far[2] < 1e-3, "the start of the first stream is like the end of the second"
    assert far[1] > 5


def test_a_cut_is_no_state(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, 2)
    attentive, rng = _attentive([reader]), np.random.default_rng(0)
    assert len(attentive._newest(rng).logical) == 0
    _fill(writer, blank, np.arange(30))
    writer.cut(2)
    assert attentive._newest(rng).logical.tolist() == [29]
    _fill(writer, blank, [1.0, 2.0], boundary=1)
    assert attentive._newest(rng).logical.tolist() == [33], "a FINAL row is a state as well"


def test_a_stream_of_cuts_is_drawn_from_all_the_same(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, 1)
    _fill(writer, blank, np.arange(30))
    writer.cut(12)
    attentive = _attentive([reader])
    assert len(attentive.select(4, np.random.default_rng(0)).keys.logical) == 4


def test_a_replay_draws_whole_sequences(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(128, 1)
    _fill(writer, blank, np.arange(100))
    view = SequenceView(writer.info.schema, 4)
    replay = Replay([reader], Attentive(lambda obs: obs, candidates=4.0, capacity=10), view, 8)
    sample = replay.sample()
    assert sample is not None and not sample.fresh.any()
    assert np.array_equal(sample.data.obs[:, :, 0], sample.keys.logical + np.arange(5)[:, None])
    assert sample.keys.logical.min() >= 100 - 4 - 40
    assert sample.keys.logical.mean() > 75, "the newest are the most alike here"
    assert set(replay.metrics()) == {"attentive/lambda", "attentive/distance", "attentive/candidate_distance"}


def test_at_one_nothing_is_scored(shards: Any, blank: Any) -> None:
    writer, reader = shards.small(64, 1)
    _fill(writer, blank, np.arange(60))

    def never(obs: Any) -> Any:
        raise AssertionError("scored")

    attentive = Attentive(never, candidates=1.0)
    attentive.attach(reader, SPAN)
    attentive.refresh()
    assert len(attentive.select(4, np.random.default_rng(0)).keys.logical) == 4
    assert attentive.size == 56
