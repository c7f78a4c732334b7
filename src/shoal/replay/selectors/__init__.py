"""Selectors: which rows to learn from."""

from shoal.replay.selectors.base import Selector
from shoal.replay.selectors.fifo import Fifo
from shoal.replay.selectors.mixture import Mixture, Part
from shoal.replay.selectors.prioritized import Prioritized
from shoal.replay.selectors.uniform import Uniform

__all__ = ["Fifo", "Mixture", "Part", "Prioritized", "Selector", "Uniform"]
