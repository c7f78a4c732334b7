"""Neural networks: torsos (observation to features), heads (features to values), and both put together."""

from __future__ import annotations

from shoal.networks.heads import QHead, QuantileHead
from shoal.networks.q_networks import QNetwork, QuantileNetwork
from shoal.networks.torso import MLP, NatureCNN, make_torso

__all__ = ["MLP", "NatureCNN", "QHead", "QNetwork", "QuantileHead", "QuantileNetwork", "make_torso"]
