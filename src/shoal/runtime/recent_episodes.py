"""RecentEpisodes: what the newest episodes of training were like."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from shoal.loops.reports import mean_episode_metrics
from shoal.types import Episode

RECENT_EPISODES = 100
"""How many."""


class RecentEpisodes:
    """The newest episodes of all actors.

    Attributes:
        returns: of each.
    """

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._told: deque[Mapping[str, float]] = deque(maxlen=RECENT_EPISODES)

    def extend(self, episodes: Iterable[Episode]) -> None:
        """Adds some."""
        for episode in episodes:
            self.returns.append(episode.episode_return)
            self._lengths.append(episode.length)
            self._told.append(episode.metrics)

    @property
    def mean_return(self) -> float | None:
        """None before the first."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def metrics(self) -> dict[str, float]:
        """Means, by metric name; empty before the first."""
        if not self.returns:
            return {}
        told = mean_episode_metrics(self._told)
        usual = {"ep_rew_mean": float(np.mean(self.returns)), "ep_len_mean": float(np.mean(self._lengths))}
        return {f"rollout/{name}": value for name, value in (usual | told).items()}
