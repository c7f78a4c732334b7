"""Selectors: which rows to learn from."""

from shoal.replay.selectors.attentive import Attentive as Attentive
from shoal.replay.selectors.base import Selector as Selector
from shoal.replay.selectors.circular import Circular as Circular
from shoal.replay.selectors.elite import Elite as Elite
from shoal.replay.selectors.fifo import Fifo as Fifo
from shoal.replay.selectors.held import HeldSequences as HeldSequences
from shoal.replay.selectors.mixture import Mixture as Mixture
from shoal.replay.selectors.mixture import Part as Part
from shoal.replay.selectors.prioritized import Prioritized as Prioritized
from shoal.replay.selectors.rollout import Rollout as Rollout
from shoal.replay.selectors.uniform import Uniform as Uniform
