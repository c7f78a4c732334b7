"""Neural networks: torsos (observation to features), heads (features to values), and both put together."""

from __future__ import annotations

from shoal.networks.continuous import CriticNetwork, PolicyNetwork, mean_and_log_std
from shoal.networks.ensemble import EnsembleMLP
from shoal.networks.heads import QHead, QuantileHead
from shoal.networks.q_networks import QNetwork, QuantileNetwork
from shoal.networks.torso import MLP, NatureCNN, make_torso

__all__ = [
    "MLP",
    "CriticNetwork",
    "EnsembleMLP",
    "NatureCNN",
    "PolicyNetwork",
    "QHead",
    "QNetwork",
    "QuantileHead",
    "QuantileNetwork",
    "make_torso",
    "mean_and_log_std",
]
