"""IMPACT: IMPALA with a target network, a clipped surrogate and batches that are used several times.

"IMPACT: Importance Weighted Asynchronous Architectures with Clipped Target Networks", Luo et al. 2020,
https://arxiv.org/abs/1912.00167. A target network that changes rarely takes the place of PPO's "old policy": it gives
the V-trace targets and the denominator of the clipped ratio, so that batches from several workers, each with its own
weights, pull in one direction. The worker's own ratio enters clipped. A circular buffer of `slots` batches serves each
of them `passes` times.

Deviations from the paper:
1. Adam, losses as means over the steps.
2. Advantages are normalised within the batch by default, as PPO's implementations do.
3. No penalty on the divergence from the target policy beside the clip.
4. The circular buffer is an index over the shards: batches are read from them again, not kept.
"""

from __future__ import annotations

import copy

import torch
from pydantic import Field

from shoal.algorithms import actor_critic as common
from shoal.algorithms.actor_critic import ActorCriticConfig
from shoal.algorithms.batches import SequenceBatch, after_burn_in
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.algorithms.learner import Loss
from shoal.algorithms.optimizer import TargetNetwork
from shoal.networks import ActorCritic
from shoal.ops import (
    ActionDistribution,
    clipped_surrogate_loss,
    discounts,
    explained_variance,
    masked_mean,
    normalized,
    vtrace,
)
from shoal.types import EnvSpec


class Config(ActorCriticConfig):
    """Hyper-parameters of IMPACT."""

    target_period: int = Field(
        16, ge=1, description="Updates between two copies into the target network; slots x passes."
    )
    surrogate_clip: float = Field(0.2, gt=0, lt=1, description="How far the ratio to the target policy may go from 1.")
    worker_clip: float = Field(2.0, ge=1, description="Largest ratio of the worker's to the target's probability.")
    rho_clip: float = Field(1.0, gt=0, description="Largest importance ratio in the value targets.")
    c_clip: float = Field(1.0, gt=0, description="Largest importance ratio along the trace.")
    trace_lambda: float = Field(0.95, ge=0, le=1, description="Shortens the trace.")
    normalize_advantages: bool = Field(True, description="Divide advantages by their deviation within the batch.")


def impact_loss(
    network: ActorCritic,
    target: ActorCritic,
    batch: SequenceBatch,
    config: Config,
    distribution: ActionDistribution,
    total: common.Total | None = None,
) -> Loss:
    """Clipped surrogate against the target policy, value error and entropy; `total` sums over all learners."""
    mask, first = batch.mask, batch.first
    params, values = network.unroll(batch.obs, batch.state, first)
    params = params[:-1]
    with torch.no_grad():
        target_params, target_values = target.unroll(batch.obs, batch.target_state, first)
        target_log_prob = distribution.log_prob(target_params[:-1], batch.action)
        behaviour_log_prob = distribution.log_prob(batch.behaviour, batch.action)
        trace = vtrace(
            target_log_prob - behaviour_log_prob,
            target_values,
            batch.reward,
            discounts(batch.terminated, config.gamma),
            mask,
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            lambda_=config.trace_lambda,
        )
        advantages = trace.advantages / network.value_scale
        if network.value_norm is not None:
            network.value_norm.observe(trace.targets, mask)
        if config.normalize_advantages:
            advantages = normalized(advantages, mask, total, least=network.least_deviation)
    log_prob = distribution.log_prob(params, batch.action)
    surrogate = clipped_surrogate_loss(
        log_prob,
        target_log_prob,
        behaviour_log_prob,
        advantages,
        epsilon=config.surrogate_clip,
        worker_clip=config.worker_clip,
    )
    policy = masked_mean(surrogate, mask)
    value = masked_mean(0.5 * ((trace.targets - values[:-1]) / network.value_scale).square(), mask)
    entropy = masked_mean(distribution.entropy(params), mask)
    loss = policy + config.value_cost * value - config.entropy_cost * entropy
    drift = masked_mean(distribution.kl(target_params[:-1], params.detach()), mask)
    metrics = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "target_kl": drift}
    metrics |= {"explained_variance": explained_variance(trace.targets, values[:-1], mask), "value_mean": values.mean()}
    return Loss(loss, None, metrics, mask.sum())


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    network = common.make_network(config, spec).to(context.device)
    target, distribution = copy.deepcopy(network), common.make_distribution(spec)
    total = None if context.exchange is None else context.exchange.total

    def loss(batch: SequenceBatch) -> Loss:
        batch = after_burn_in(network, batch, config.burn_in, target)
        return impact_loss(network, target, batch, config, distribution, total)

    follows = TargetNetwork(target, network, period=config.target_period)
    sums = 3 * config.normalize_advantages
    return common.sequence_learner(config, context, network, loss, {"target": target}, (follows,), sums=sums)


ALGORITHM = common.sequence_algorithm(
    "impact",
    "IMPALA with a target network, a clipped surrogate and batches used several times",
    Config,
    make_learner,
    queue={"type": "circular", "ratio": 1.0, "slots": 4, "passes": 4},
    suited=lambda spec: common.suited_settings(
        spec,
        # Vectors: a new target after 512 fresh steps, not 2048. With 100,000 steps there would be only 48 of them.
        own={"target_period": 64 if spec.sees_images else 16}
        # Zeros and ones: twice the family's. CliffWalking's goal was found by three of five seeds with that.
        | ({"entropy_cost": 2 * common.TABULAR_ENTROPY} if spec.tabular else {}),
        selectors=(
            {"type": "circular", "ratio": 0.5, "slots": 2, "passes": 8},
            {"type": "uniform", "ratio": 0.5, "capacity": 500},
        ),
        image_selectors=({"type": "circular", "ratio": 1.0, "slots": 8, "passes": 8},),
        batch_size=16,
    ),
)
