"""Neural networks: torsos (observation to features), heads (features to values), and both put together."""

from __future__ import annotations

from shoal.networks.actor_critic import ActorCritic
from shoal.networks.continuous import CriticNetwork, PolicyNetwork, mark_as_learned, mean_and_log_std
from shoal.networks.ensemble import EnsembleMLP
from shoal.networks.heads import QHead
from shoal.networks.q_networks import QNetwork
from shoal.networks.residual import ResidualCNN
from shoal.networks.scratch import Scratch
from shoal.networks.torso import MLP, NatureCNN, SmallCNN, make_torso

__all__ = [
    "MLP",
    "ActorCritic",
    "CriticNetwork",
    "EnsembleMLP",
    "NatureCNN",
    "PolicyNetwork",
    "QHead",
    "QNetwork",
    "ResidualCNN",
    "Scratch",
    "SmallCNN",
    "make_torso",
    "mark_as_learned",
    "mean_and_log_std",
]
