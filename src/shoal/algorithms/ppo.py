"""PPO: actors collect a rollout with one policy, the learner learns from it in epochs of minibatches.

"Proximal Policy Optimization Algorithms", Schulman et al. 2017, https://arxiv.org/abs/1707.06347. Advantages: GAE,
https://arxiv.org/abs/1506.02438. Actors and learner meet at a barrier, the selector `rollout`: every lane writes
`unroll` steps, the learner takes them all, and the next rollout is collected with the weights that it made of them
(`lag: 1`: with those before).

    values, advantages                     of the whole rollout, once
    for each of the epochs:
        for each of the minibatches:       random rows; whole sequences if there is an LSTM
            clipped surrogate, value error, entropy: gradient, exchange, apply

Deviations from the paper:
1. Policy and value have a torso each where observations are vectors, as in OpenAI's code.
2. The gradient's norm is clipped and advantages are normalised within a minibatch, as in most code since. With
   `normalize_values` they are divided by a fiftieth of the returns' deviation at least, see `LEAST_DEVIATION`.
3. Truncated episodes bootstrap from their final observation.
4. `normalize_values` is PopArt: the head predicts normalised returns, and rewards stay as they are.
5. The first step of a rollout was chosen by the policy before: its row is the last one's bootstrap. Its probability was
   recorded, so its weight is known.
6. `repeat_exploration`: noise that lasts, see `HeldNoise`. Off by default.
7. The ratio is clipped around the policy that the update begins with, not around the one that acted, and a step counts
   as much more as that policy is likelier to take it: "Batch size-invariance for policy optimization", Hilton et al.
   2021, https://arxiv.org/abs/2110.00641. They differ with `lag: 1`. Clipped around the policy that acted, updates from
   alternate rollouts drove the policy in opposite directions: 90 % of Pong's ratios were beyond the clip.
8. Clipped values (`value_clip`) are an option, in units of the returns' deviation if values are normalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from shoal.algorithms import actor_critic as common
from shoal.algorithms.actor_critic import ActorCriticConfig
from shoal.algorithms.batches import Minibatch, SequenceBatch
from shoal.algorithms.exchanged import gather
from shoal.algorithms.interface import Exchange, Learner, LearnerContext, LearningRate
from shoal.algorithms.kinds import require_rollouts
from shoal.algorithms.learner import Division, Loss
from shoal.networks import ActorCritic
from shoal.ops import (
    ActionDistribution,
    clipped_surrogate_loss,
    discounts,
    explained_variance,
    gae,
    masked_mean,
    normalized,
    polynomial_schedule,
)
from shoal.types import EnvSpec

LARGEST_WEIGHT = 2.0
"""Of a step that an older policy took."""


class Config(ActorCriticConfig):
    """Hyper-parameters of PPO."""

    unroll: int = Field(128, ge=1, le=4096, description="Steps of every lane in one rollout.")
    learning_rate: LearningRate = 3e-4
    gradient_clip: float = Field(0.5, gt=0, description="Largest norm of the gradient.")
    entropy_cost: float = Field(0.0, ge=0, description="Weight of the entropy, which keeps the policy curious.")
    epochs: int = Field(10, ge=1, le=1000, description="How often each rollout is learned from.")
    minibatches: int = Field(4, ge=1, description="Parts that a rollout is divided into, anew in each epoch.")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Of the advantages: 0 trusts the values, 1 the returns.")
    surrogate_clip: float = Field(0.2, gt=0, lt=1, description="How far the ratio of policies may go from 1.")
    surrogate_clip_end: float | None = Field(
        None, ge=0, lt=1, description="The clip after `schedule_updates`, reached in a straight line; null: it stays."
    )
    value_clip: float | None = Field(None, gt=0, description="How far a value may move in one rollout; null: any.")
    normalize_advantages: bool = Field(True, description="Mean 0 and deviation 1 (at most) within each minibatch.")
    target_kl: float | None = Field(
        None, gt=0, description="A rollout is left when the policy has moved this far (KL divergence); null: never."
    )

    @model_validator(mode="after")
    def _fits_rollouts(self) -> Self:
        if self.burn_in:
            raise ValueError("burn_in has no use in ppo, whose LSTM states are new: set it to 0")
        if self.surrogate_clip_end is not None and not self.schedule_updates:
            raise ValueError("surrogate_clip_end is never reached, because schedule_updates = 0: set schedule_updates")
        return self

    @property
    def clip_schedule(self) -> Any:
        """The clip, by the number of updates."""
        end = self.surrogate_clip if self.surrogate_clip_end is None else self.surrogate_clip_end
        return polynomial_schedule(self.surrogate_clip, end, self.schedule_updates, 1.0)


def ppo_loss(network: ActorCritic, batch: Minibatch, config: Config, distribution: ActionDistribution) -> Loss:
    """Clipped surrogate, value error and entropy."""
    params, values = network.unroll(batch.obs, batch.state, batch.first)
    log_prob = distribution.log_prob(params, batch.action)  # [T, N]
    mask, scale = batch.mask, network.value_scale
    least, advantage = network.least_deviation, batch.advantage
    advantage = normalized(advantage, mask, least=least) if config.normalize_advantages else advantage
    surrogate = batch.weight * clipped_surrogate_loss(
        log_prob, batch.log_prob, batch.log_prob, advantage, epsilon=batch.clip, worker_clip=1.0
    )
    error = ((batch.target - values) / scale).square()
    if config.value_clip is not None:
        near = batch.value / scale + ((values - batch.value) / scale).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, (batch.target / scale - near).square())
    log_ratio = (log_prob - batch.log_prob).detach()
    change = log_ratio.expm1()
    kl, clipped = change - log_ratio, (change.abs() > batch.clip).float()  # kl: an estimate, never below 0
    # One mean of all: many small operations take longer than the arithmetic.
    terms = torch.stack((surrogate, 0.5 * error, distribution.entropy(params), kl, clipped))  # [5, T, N]
    policy, value, entropy, kl, clipped = masked_mean(terms, mask.expand_as(terms), dim=(1, 2)).unbind()
    total = policy + config.value_cost * value - config.entropy_cost * entropy
    metrics = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "policy_kl": kl, "clipped": clipped}
    return Loss(total, None, metrics, mask.sum())


class Rollout:
    """Divides a rollout into the minibatches of its epochs. Several learners divide all of their rollouts together."""

    def __init__(
        self,
        network: ActorCritic,
        config: Config,
        distribution: ActionDistribution,
        exchange: Exchange | None = None,
    ) -> None:
        self._network, self._config, self._distribution, self._exchange = network, config, distribution, exchange
        self._clip = config.clip_schedule
        self._seed = torch.initial_seed()
        self._rows: Tensor | float = 0.0  # of this learner, in the last minibatch

    def __call__(self, batch: SequenceBatch | None, updates: int) -> Division:
        """Args:
        batch: the rollout; None: other learners have one.
        updates: rollouts before it.
        """
        whole, metrics = self._estimated(batch, updates) if batch is not None else (None, {})
        if self._exchange is None:
            assert whole is not None
            whole = whole.as_rows() if whole.state is None else whole
            return Division(self._minibatches(whole, updates), metrics, self._enough)
        return Division(self._shared_minibatches(whole, updates, self._exchange), metrics, self._enough)

    @torch.no_grad()
    def _estimated(self, batch: SequenceBatch, updates: int) -> tuple[Minibatch, Mapping[str, Tensor]]:
        """The rollout with its advantages and value targets."""
        network, config, mask, first = self._network, self._config, batch.mask, batch.first
        params, values = network.unroll(batch.obs, batch.state, first)
        acted = self._distribution.log_prob(batch.behaviour, batch.action)
        log_prob = self._distribution.log_prob(params[:-1], batch.action)
        discount = discounts(batch.terminated, config.gamma)
        advantages, targets = gae(values, batch.reward, discount, mask, lambda_=config.gae_lambda)
        if network.value_norm is not None:  # between two updates, so that their size is known from the first one on
            network.value_norm.observe(targets, mask)
            self._follow_returns()
        whole = Minibatch(
            obs=batch.obs[:-1],
            action=batch.action,
            log_prob=log_prob,
            weight=(log_prob - acted).exp().clamp(max=LARGEST_WEIGHT),
            advantage=advantages / network.value_scale,
            target=targets,
            value=values[:-1],
            mask=mask,
            first=first[:-1],
            clip=torch.tensor(self._clip(updates), device=mask.device),
            state=batch.state,
        )
        explained = explained_variance(targets, values[:-1], mask)
        return whole, {"explained_variance": explained, "value_mean": values.mean()}

    def _follow_returns(self) -> None:
        if self._network.value_norm is not None and self._exchange is not None:
            self._network.value_norm.agree(self._exchange.total)
        self._network.follow_returns()

    def _minibatches(self, whole: Minibatch, updates: int) -> Iterator[Minibatch]:
        """All of equal size, so that a captured update fits: a remainder is left out, another one in each epoch."""
        epochs, count = self._config.epochs, min(self._config.minibatches, whole.draws)
        if count == 1:
            yield from (whole for _ in range(epochs))
            return
        for order in self._orders(whole.draws, count, self._seed + updates).to(whole.mask.device):
            yield from (whole.at(places) for places in order)

    def _orders(self, draws: int, count: int, seed: int) -> Tensor:
        """[epochs, count, draws // count] the places of all minibatches."""
        # By the number of updates: several learners make the same orders.
        generator = torch.Generator().manual_seed(seed % 2**63)
        size = draws // count
        orders = [torch.randperm(draws, generator=generator) for _ in range(self._config.epochs)]
        return torch.stack(orders)[:, : size * count].view(len(orders), count, size)

    def _shared_minibatches(
        self, whole: Minibatch | None, updates: int, exchange: Exchange
    ) -> Iterator[Minibatch | None]:
        """This learner's part of each minibatch that one learner would make of all rollouts, beside each other."""
        if whole is None:
            self._follow_returns()
        steps, lanes = (0, 0) if whole is None else whole.mask.shape
        each = gather(exchange, steps, lanes, self._seed)
        steps, seed = int(each[:, 0].max()), int(each[0, 2])
        before, total = int(each[: exchange.rank, 1].sum()), int(each[:, 1].sum())
        if self._config.lstm:
            steps = 1
        elif whole is not None:
            whole = whole.as_rows()
        count = min(self._config.minibatches, steps * total)
        if count == 1:
            yield from (self._centred(whole, exchange) for _ in range(self._config.epochs))
            return
        for places in self._orders(steps * total, count, seed + updates).flatten(0, 1):
            step, lane = places // total, places % total
            mine = (lane >= before) & (lane < before + lanes)
            own = (step * lanes + lane - before)[mine]
            part = None if whole is None or not len(own) else whole.at(own.to(whole.mask.device))
            yield self._centred(part, exchange)

    def _centred(self, part: Minibatch | None, exchange: Exchange) -> Minibatch | None:
        """With advantages normalised over all learners: here, because a compiled loss cannot ask them."""
        self._rows = 0.0 if part is None else part.mask.sum()
        if not self._config.normalize_advantages:
            return part
        if part is None:
            exchange.total(torch.zeros(3, dtype=torch.float64, device=self._network.value_head.weight.device))
            return None
        least = self._network.least_deviation
        return part._replace(advantage=normalized(part.advantage, part.mask, exchange.total, least=least))

    def _enough(self, metrics: Mapping[str, Tensor]) -> bool:
        if self._config.target_kl is None:
            return False
        if self._exchange is None:
            return bool(metrics["policy_kl"] > self._config.target_kl)
        moved = float(metrics.get("policy_kl", 0.0)) * float(self._rows)
        moved, rows = gather(self._exchange, moved, float(self._rows)).sum(0).tolist()
        return bool(moved > self._config.target_kl * rows)


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    network = common.make_network(config, spec).to(context.device)
    distribution = common.make_distribution(spec)

    shown = config if context.exchange is None else config.model_copy(update={"normalize_advantages": False})

    def loss(batch: Minibatch) -> Loss:
        return ppo_loss(network, batch, shown, distribution)

    divide = Rollout(network, config, distribution, context.exchange)
    return common.sequence_learner(config, context, network, loss, divide=divide)


def suited_settings(spec: EnvSpec) -> Mapping[str, Any]:
    """What learns on most environments."""
    if spec.sees_images:
        return {
            "algorithm": {
                "torso": "small",
                "image_hidden": 256,
                "center_images": True,
                "unroll": 32,  # small rollouts, many updates: Pong was learned in fewer steps than with 64
                "learning_rate": 5e-4,
                "target_kl": 0.03,
                "epochs": 4,
                "entropy_cost": 0.01,
                "normalize_values": True,
            },
            "env": {"lanes": 16},
        }
    algorithm = {"unroll": 64, "minibatches": 8, "learning_rate": 1e-3, "normalize_values": True}
    algorithm |= {"normalize_observations": not spec.unit_observations, "repeat_exploration": not spec.continuous}
    algorithm |= {"entropy_cost": common.TABULAR_ENTROPY} if spec.tabular else {}
    return {"algorithm": algorithm}


ALGORITHM = common.sequence_algorithm(
    "ppo",
    "clipped surrogate on rollouts of the newest policy, in epochs of minibatches; synchronous",
    Config,
    make_learner,
    queue={"type": "rollout", "ratio": 1.0},
    suited=suited_settings,
    batch={"batch_size": "lanes", "prefetch": 0},
    check_replay=partial(require_rollouts, why="ppo learns from what its newest policy did"),
)
