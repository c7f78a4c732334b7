"""Tries the user's own algorithm and network on a real observation: here an error costs seconds, in a role's process it
costs the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.interface import LearnerContext, Outcome, Policy, PolicyContext
from shoal.algorithms.own_code import called, require_features
from shoal.envs import make_env
from shoal.errors import ConfigError
from shoal.loops.assembly import make_policy
from shoal.loops.plan import Plan
from shoal.networks import OwnTorso
from shoal.types import Array


def try_own_code(plan: Plan) -> None:
    """Raises ConfigError if an algorithm or a network that is not the package's cannot work; names it."""
    settings = plan.settings
    own_algorithm, network = settings.algo not in ALGORITHMS, settings.algorithm.network
    if not own_algorithm and network is None:
        return
    env = make_env(settings.env, 1, settings.seed)
    try:
        obs = env.reset()
    finally:
        env.close()
    context = PolicyContext(0, 1, 1, settings.seed, settings.replay.records_features)
    policy = called(f"algo = {settings.algo!r}", ": its make_policy", make_policy, plan, context)
    if network is not None:
        _try_network(policy.module, obs, network, settings.algo)
    if own_algorithm:
        called(f"algo = {settings.algo!r}", ": a trial", _try_algorithm, plan, policy, obs)


def _try_network(module: nn.Module, obs: Array, network: str, algo: str) -> None:
    torsos, wanted = [one for one in module.modules() if isinstance(one, OwnTorso)], f"algorithm.network = {network!r}"
    if not torsos:
        raise ConfigError(f"{wanted} would not be used: {algo} makes its networks without it. Set it to null.")
    for torso in torsos:
        features = require_features(torso, torch.from_numpy(obs), wanted)
        if not torch.isfinite(features).all():
            raise ConfigError(f"{wanted} returned NaN or infinity for the environment's first observation.")
        if any(one.requires_grad for one in torso.parameters()) and not features.requires_grad:
            raise ConfigError(f"{wanted} returned features without a gradient: it would not learn.")


def _try_algorithm(plan: Plan, policy: Policy, obs: Array) -> None:
    """One action of its policy, what that records, and its learner."""
    algo, settings, spec = plan.settings.algo, plan.settings, plan.spec
    action = policy.act(obs, policy.initial_state(1), np.ones(1, np.bool_), True).action
    if np.shape(action) != (1, *spec.action_shape):
        raise ConfigError(f"{algo}: act returned actions of shape {np.shape(action)} not (1, *{spec.action_shape}).")
    none = np.zeros(1, np.bool_)
    recorded = policy.record(Outcome(np.zeros(1, np.float32), none, none, np.zeros(1, np.uint8)))
    if set(recorded) != set(plan.schema.extras):
        names = sorted(recorded), sorted(plan.schema.extras)
        raise ConfigError(f"{algo}: record returned the columns {names[0]}, but its `columns` are {names[1]}.")
    learner = settings.definition.make_learner(settings.algorithm, spec, LearnerContext(torch.device("cpu")))
    learned, acting = _shapes(learner.module), _shapes(policy.module)
    if learned != acting:
        differ = sorted({name for name, _ in {*learned} ^ {*acting}})[:4] or "their order"
        raise ConfigError(f"{algo}: learner.module and policy.module must have one state dict, but differ: {differ}.")


def _shapes(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, tuple(tensor.shape)) for name, tensor in module.state_dict().items()]
