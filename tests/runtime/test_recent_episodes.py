"""Means over the newest episodes."""

from __future__ import annotations

from shoal.runtime.recent_episodes import RECENT_EPISODES, RecentEpisodes
from shoal.types import Episode


def test_means_are_over_those_that_say_something() -> None:
    recent = RecentEpisodes()
    assert recent.metrics == {} and recent.mean_return is None
    recent.extend([Episode(0, 1.0, 10), Episode(1, 3.0, 20, {"is_success": 1.0}), Episode(0, 5.0, 30, {"hits": 4.0})])
    recent.extend([Episode(1, 3.0, 20, {"is_success": 0.0, "hits": 2.0})])
    assert recent.mean_return == 3.0
    assert recent.metrics == {
        "rollout/ep_rew_mean": 3.0,
        "rollout/ep_len_mean": 20.0,
        "rollout/success_rate": 0.5,
        "rollout/hits": 3.0,
    }


def test_old_ones_are_forgotten() -> None:
    recent = RecentEpisodes()
    recent.extend([Episode(0, 100.0, 1, {"is_success": 1.0})])
    recent.extend([Episode(0, 0.0, 2)] * RECENT_EPISODES)
    assert recent.metrics == {"rollout/ep_rew_mean": 0.0, "rollout/ep_len_mean": 2.0}
