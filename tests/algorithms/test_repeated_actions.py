"""Random actions that last: how long, in which lanes, and what they find."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.repeated_actions import LONGEST, LONGEST_NOISE, HeldNoise, RepeatedActions


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


def noise_of(lanes: int, steps: int, seed: int = 4) -> np.ndarray:
    """[T, N, 3], of one long episode per lane."""
    held, starts = HeldNoise(lanes, 3, seed), np.arange(steps) == 0
    return np.stack([held(np.full(lanes, first)).copy() for first in starts])


def test_noise_lasts_in_half_of_the_episodes() -> None:
    noise = noise_of(lanes=400, steps=300)
    kept = (noise[1:] == noise[:-1]).all(axis=2)  # [T, N]
    lasts = kept.any(axis=0)
    assert 0.42 < lasts.mean() < 0.58
    # floor(64^u) for u in [0, 1): a mean of about 15 steps, of which one is new
    assert 0.90 < kept[:, lasts].mean() < 0.95
    longest = max(len(run) for lane in kept.T for run in "".join(map(str, lane.astype(int))).split("0"))
    assert 50 < longest < LONGEST_NOISE


def test_every_action_by_itself_is_a_draw_from_the_policy() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1]))
    for step in (noise_of(lanes=40_000, steps=1)[0], noise_of(lanes=40_000, steps=10)[9]):
        shares = np.bincount((logits + step).argmax(axis=1)) / 40_000
        np.testing.assert_allclose(shares, [0.6, 0.3, 0.1], atol=0.01)


def test_noise_ends_with_the_episode_and_belongs_to_its_lane() -> None:
    held = HeldNoise(4, 2, 5)
    held(np.ones(4, bool))
    held._left[:] = 3  # as if all lasted
    before = held._noise.copy()
    np.testing.assert_array_equal(held(np.zeros(2, bool), np.array([3, 1])), before[[3, 1]])
    assert held._left.tolist() == [3, 2, 3, 2]
    after = held(np.array([True, False]), np.array([0, 2]))
    assert (after[0] != before[0]).all() and (after[1] == before[2]).all()
