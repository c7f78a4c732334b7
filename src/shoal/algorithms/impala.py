"""IMPALA: many actors, one learner, V-trace; and replay mixed into it.

"IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", Espeholt et al. 2018,
https://arxiv.org/abs/1802.01561. Actors run a policy some updates old; V-trace corrects for the difference with clipped
importance ratios. Fresh sequences come from a queue over the shards; `replay.selectors` may add old ones from the same
shards, as another part of every batch.

Two options make old sequences safer:
- `clear`: "Experience Replay for Continual Learning", Rolnick et al. 2019, https://arxiv.org/abs/1811.11682. On
  replayed steps the policy is held near the one that acted, KL(mu || pi), and the value near the one it had.
- `laser`: "Off-Policy Actor-Critic with Shared Experience Replay", Schmitt et al. 2019,
  https://arxiv.org/abs/1909.11583. States where KL(pi || mu) is not below a threshold are not learned from, and end
  the trace.

Deviations from the papers:
1. Losses are means over the steps of a batch, not sums: the step size does not depend on the batch.
2. Adam by default; `optimizer: rmsprop` with `optimizer_epsilon: 0.01` is the paper's choice.
3. Truncated episodes bootstrap from their final observation; the paper cuts the return there.
4. A state that LASER rejects is not cloned by CLEAR either.
5. Continuous actions: a diagonal Gaussian whose deviations do not depend on the state.
6. `trace_lambda` below 1 shortens the trace, as in later work; 1 is the paper's.
7. Where observations are vectors, policy and value have a torso each: one torso follows the larger of the two losses.
8. An LSTM sees the torso's output, and not the last action and reward beside it.
9. `repeat_exploration`: noise that lasts, see `HeldNoise`. Off by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.algorithms import actor_critic as common
from shoal.algorithms.actor_critic import ActorCriticConfig
from shoal.algorithms.batches import SequenceBatch, after_burn_in
from shoal.algorithms.interface import Learner, LearnerContext
from shoal.algorithms.kinds import refuse_priorities
from shoal.algorithms.learner import Loss
from shoal.errors import ConfigError
from shoal.networks import ActorCritic
from shoal.ops import (
    ActionDistribution,
    discounts,
    explained_variance,
    masked_mean,
    normalized,
    policy_gradient_loss,
    relevance_mask,
    vtrace,
)
from shoal.types import EnvSpec


class _Option(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    SHORTHAND: ClassVar[str] = "enabled"


class Clear(_Option):
    """Policy and value cloning on replayed steps."""

    enabled: bool = Field(False, description="Whether to clone.")
    on: Literal["replay", "all"] = Field("replay", description="Which steps are cloned.")
    policy_cost: float = Field(0.01, ge=0, description="Weight of KL(mu || pi).")
    value_cost: float = Field(0.005, ge=0, description="Weight of the squared difference of values.")


class Laser(_Option):
    """A trust region: states the policy has left behind are not learned from."""

    enabled: bool = Field(False, description="Whether to reject states.")
    threshold: float = Field(0.3, gt=0, description="The largest KL(pi || mu) that is still used.")


class Config(ActorCriticConfig):
    """Hyper-parameters of IMPALA."""

    rho_clip: float = Field(1.0, gt=0, description="Largest importance ratio in the value targets.")
    c_clip: float = Field(1.0, gt=0, description="Largest importance ratio along the trace.")
    pg_rho_clip: float = Field(1.0, gt=0, description="Largest importance ratio of the policy gradient.")
    trace_lambda: float = Field(1.0, ge=0, le=1, description="Shortens the trace.")
    normalize_advantages: bool = Field(False, description="Divide advantages by their deviation within the batch.")
    clear: Clear = Field(Clear(), description="Policy and value cloning on replayed steps.")
    laser: Laser = Field(Laser(), description="A trust region: states the policy has left behind are left out.")


def check_replay(config: Config, selectors: tuple[str, ...]) -> None:
    """Refuses cloning where nothing is replayed."""
    refuse_priorities(config, selectors)
    if config.clear.enabled and config.clear.on == "replay" and set(selectors) <= {"fifo", "circular"}:
        raise ConfigError(
            "clear clones on replayed steps, and nothing is replayed: use "
            "replay=[{type: fifo, ratio: 0.5}, {type: uniform, ratio: 0.5}] or the like, or set clear.on=all."
        )


def impala_loss(
    network: ActorCritic,
    batch: SequenceBatch,
    config: Config,
    distribution: ActionDistribution,
    total: common.Total | None = None,
) -> Loss:
    """Policy gradient, value error, entropy, and cloning where it is asked for; `total` sums over all learners."""
    params, values = network.unroll(batch.obs, batch.state, batch.first)
    params = params[:-1]
    log_prob = distribution.log_prob(params, batch.action)  # [T, B]
    log_ratio = log_prob.detach() - distribution.log_prob(batch.behaviour, batch.action)
    mask = used = batch.mask
    if config.laser.enabled:
        used = used * relevance_mask(distribution.kl(params.detach(), batch.behaviour), config.laser.threshold)
    discount = discounts(batch.terminated, config.gamma)
    clips = {"rho_clip": config.rho_clip, "c_clip": config.c_clip, "pg_rho_clip": config.pg_rho_clip}
    trace = vtrace(log_ratio, values, batch.reward, discount, used, lambda_=config.trace_lambda, **clips)
    advantages = trace.advantages / network.value_scale
    if config.normalize_advantages:
        advantages = normalized(advantages, used, total, least=network.least_deviation)
    if network.value_norm is not None:
        network.value_norm.observe(trace.targets, used)

    policy = masked_mean(used * policy_gradient_loss(log_prob, advantages), mask)
    value = masked_mean(used * 0.5 * ((trace.targets - values[:-1]) / network.value_scale).square(), mask)
    entropy = masked_mean(used * distribution.entropy(params), mask)
    loss = policy + config.value_cost * value - config.entropy_cost * entropy
    metrics = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "rho": masked_mean(trace.rhos, used)}
    metrics |= {"explained_variance": explained_variance(trace.targets, values[:-1], used), "value_mean": values.mean()}
    if config.laser.enabled:
        metrics["laser_used"] = masked_mean(used, mask)
    if config.clear.enabled:
        assert batch.value is not None
        cloned = used if config.clear.on == "all" else used * batch.replayed
        policy_clone = masked_mean(cloned * distribution.kl(batch.behaviour, params), mask)
        value_clone = masked_mean(cloned * ((values[:-1] - batch.value) / network.value_scale).square(), mask)
        loss = loss + config.clear.policy_cost * policy_clone + config.clear.value_cost * value_clone
        metrics |= {"clear_policy": policy_clone, "clear_value": value_clone}
    return Loss(loss, None, metrics, mask.sum())


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    network = common.make_network(config, spec).to(context.device)
    distribution = common.make_distribution(spec)
    total = None if context.exchange is None else context.exchange.total

    def loss(batch: SequenceBatch) -> Loss:
        return impala_loss(network, after_burn_in(network, batch, config.burn_in), config, distribution, total)

    return common.sequence_learner(config, context, network, loss, sums=3 * config.normalize_advantages)


def suited_settings(spec: EnvSpec) -> Mapping[str, Any]:
    """What learns on most environments."""
    own: dict[str, Any] = {"laser": {"enabled": True}}
    if not spec.sees_images and not spec.tabular:
        # Twice as many updates as the family's, of twice the size: Acrobot, docs/learning.md.
        own |= {"unroll": 16, "learning_rate": 1e-3}
    return common.suited_settings(
        spec,
        own=own,
        selectors=({"type": "fifo", "ratio": 0.125}, {"type": "uniform", "ratio": 0.875, "capacity": 500}),
        image_selectors=({"type": "fifo", "ratio": 0.5}, {"type": "uniform", "ratio": 0.5, "capacity": 1000}),
        batch_size=8,
    )


ALGORITHM = common.sequence_algorithm(
    "impala",
    "V-trace actor-critic, fresh sequences from a queue; replay, CLEAR and LASER as options",
    Config,
    make_learner,
    queue={"type": "fifo", "ratio": 1.0},
    suited=suited_settings,
    check_replay=check_replay,
    records_value=lambda config: config.clear.enabled,
)
