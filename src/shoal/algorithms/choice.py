"""What an environment is like, in words, and the algorithm to take when none is named."""

from __future__ import annotations

from shoal.types import EnvSpec


def described(spec: EnvSpec) -> str:
    """Observations and actions in a few words."""
    if spec.agents:
        return f"{spec.agents} agents, {spec.action_nvec[0]} discrete actions each"
    seen = f"images of shape {spec.inputs[0].shape}" if spec.sees_images else "vectors"
    if len(spec.inputs) > 1:
        seen = "images and vectors"
    actions = f"{spec.num_actions} discrete actions" if spec.num_actions else "continuous actions"
    if spec.action_nvec:
        actions = f"{len(spec.action_nvec)} discrete choices per action"
    return f"{seen}, {actions}"


def choose_algorithm(spec: EnvSpec) -> str:
    """The algorithm that learned most, and most surely, with its defaults; docs/learning.md has the figures."""
    if spec.agents:
        return "comm-dqn"
    if spec.sees_images:
        return "impala"
    return "sac" if spec.continuous else "ppo"
