"""Random actions that last: how long, in which lanes, and what they find."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.repeated_actions import LONGEST, RepeatedActions


def test_lengths_fall_with_the_square() -> None:
    rng, repeated = np.random.default_rng(1), RepeatedActions(1)
    held, lengths = -1, []
    for step in range(60_000):
        explores, actions = repeated(np.ones(1, bool), np.array([step]), rng)
        assert explores.all()
        if actions[0] == held:
            lengths[-1] += 1
        else:
            assert actions[0] == step  # a new one begins with what was drawn now
            held = actions[0]
            lengths.append(1)
    counts = np.bincount(lengths, minlength=LONGEST + 1)
    assert max(lengths) <= LONGEST
    assert counts[1] / counts[2] == np.clip(counts[1] / counts[2], 3.6, 4.4)
    assert counts[1] / counts[3] == np.clip(counts[1] / counts[3], 8, 10)


def test_only_lanes_that_begin_explore_until_their_episode_ends() -> None:
    rng, repeated = np.random.default_rng(2), RepeatedActions(3)
    begins = np.array([False, True, True])
    explores, actions = repeated(begins, np.array([7, 8, 9]), rng)
    assert explores.tolist() == [False, True, True] and actions[1:].tolist() == [8, 9]
    repeated.end(np.array([False, False, True]))
    for _ in range(2 * LONGEST):
        explores, _ = repeated(np.zeros(3, bool), np.array([0, 0, 0]), rng)
        assert not explores[0] and not explores[2]
    assert not explores[1]


def test_continuous_actions_are_held_as_a_whole() -> None:
    rng, repeated = np.random.default_rng(3), RepeatedActions(2)
    first = rng.uniform(-1, 1, (2, 3))
    _, held = repeated(np.ones(2, bool), first, rng)
    np.testing.assert_array_equal(held, first)
