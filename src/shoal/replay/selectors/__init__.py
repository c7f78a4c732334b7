"""Selectors: which rows to learn from."""

from shoal.replay.selectors.attentive import Attentive
from shoal.replay.selectors.base import Selector
from shoal.replay.selectors.circular import Circular
from shoal.replay.selectors.elite import Elite
from shoal.replay.selectors.fifo import Fifo
from shoal.replay.selectors.held import HeldSequences
from shoal.replay.selectors.mixture import Mixture, Part
from shoal.replay.selectors.prioritized import Prioritized
from shoal.replay.selectors.uniform import Uniform

__all__ = [
    "Attentive",
    "Circular",
    "Elite",
    "Fifo",
    "HeldSequences",
    "Mixture",
    "Part",
    "Prioritized",
    "Selector",
    "Uniform",
]
