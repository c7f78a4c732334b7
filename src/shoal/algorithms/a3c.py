"""A3C: every actor computes the gradient of its own rollout, and one server applies the gradients as they come.

"Asynchronous Methods for Deep Reinforcement Learning", Mnih et al. 2016, https://arxiv.org/abs/1602.01783. Advantages:
GAE, https://arxiv.org/abs/1506.02438; with `gae_lambda: 1` they are the paper's n-step returns.

    worker:  take the newest weights, act for `unroll` steps, gradient of the rollout, push it
    server:  take k gradients, one step of the optimiser along their mean, publish

`k: actors` with `on_full: wait` is A2C. Gradients go over shared memory (`loops/gradient_board.py`); every one of them
is applied or counted as dropped.

Deviations from the paper:
1. The parameters are those of one server, and a worker reads a whole version of them: no update is torn.
2. Losses are means over the steps of a rollout, not sums.
3. Adam by default; `optimizer: rmsprop` is the paper's choice, with statistics that all workers share.
4. Truncated episodes bootstrap from their final observation.
5. A rollout goes on after an episode's end, and has `unroll` steps in any case.
6. Policy and value have a torso each where observations are vectors.
7. Observations and values can be normalised; PopArt keeps values when their scale changes.
8. `repeat_exploration`: noise that lasts, see `HeldNoise`. Off by default.
9. Gradients that are too old can be dropped, or discounted by their age: "Staleness-aware Async-SGD for Distributed
   Deep Learning", Zhang et al. 2015, https://arxiv.org/abs/1511.05950.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shoal.algorithms import actor_critic as common
from shoal.algorithms.actor_critic import ActorCriticConfig
from shoal.algorithms.batches import SequenceBatch
from shoal.algorithms.interface import Learner, LearnerContext, LearningRate, PushRules
from shoal.algorithms.kinds import require_rollouts
from shoal.algorithms.learner import Loss
from shoal.algorithms.moments import Statistics
from shoal.algorithms.pushes import PushLearner
from shoal.networks import ActorCritic
from shoal.ops import ActionDistribution, discounts, explained_variance, gae, masked_mean, policy_gradient_loss
from shoal.types import EnvSpec


class Config(ActorCriticConfig):
    """Hyper-parameters of A3C."""

    learning_rate: LearningRate = 1e-3
    gradient_clip: float = Field(0.5, gt=0, description="Largest norm of the gradient.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="Of the advantages: 0 trusts the values, 1 the returns.")
    k: Annotated[int, Field(ge=1, le=4096)] | Literal["actors"] = Field(
        1, description="Gradients in one update; actors: as many as there are actors."
    )
    on_full: Literal["wait", "newest"] = Field(
        "wait",
        description="Actors wait until their gradient was applied, or go on and replace the one that was not taken.",
    )
    max_staleness: int | None = Field(
        None, ge=0, description="Gradients of weights that are more versions old are dropped; null: none."
    )
    discount_staleness: bool = Field(False, description="Whether a gradient n versions old makes 1 / n of a step.")

    @model_validator(mode="after")
    def _fits_rollouts(self) -> Self:
        if self.burn_in:
            raise ValueError("burn_in has no use in a3c, whose LSTM states are new: set it to 0")
        return self

    def rules(self, actors: int) -> PushRules:
        """How gradients are exchanged by so many actors."""
        return PushRules(actors if self.k == "actors" else self.k, self.on_full, self.max_staleness)


def a3c_loss(network: ActorCritic, batch: SequenceBatch, config: Config, distribution: ActionDistribution) -> Loss:
    """Policy gradient, value error and entropy."""
    params, values = network.unroll(batch.obs, batch.state, batch.first)
    params, mask, scale = params[:-1], batch.mask, network.value_scale
    discount = discounts(batch.terminated, config.gamma)
    advantages, targets = gae(values, batch.reward, discount, mask, lambda_=config.gae_lambda)
    log_prob = distribution.log_prob(params, batch.action)  # [T, B]
    policy = masked_mean(policy_gradient_loss(log_prob, advantages / scale), mask)
    value = masked_mean(0.5 * ((targets - values[:-1]) / scale).square(), mask)
    entropy = masked_mean(distribution.entropy(params), mask)
    total = policy + config.value_cost * value - config.entropy_cost * entropy
    mean = masked_mean(targets, mask)
    metrics = {
        "policy_loss": policy,
        "value_loss": value,
        "entropy": entropy,
        "explained_variance": explained_variance(targets, values[:-1], mask),
        "value_mean": values.mean(),
        "return_mean": mean,
        "return_variance": masked_mean((targets - mean).square(), mask),
    }
    return Loss(total, None, metrics)


def make_learner(config: Config, spec: EnvSpec, context: LearnerContext) -> Learner:
    network = common.make_network(config, spec).to(context.device)
    distribution, statistics = common.make_distribution(spec), Statistics(network, context)

    def loss(batch: SequenceBatch) -> Loss:
        return a3c_loss(network, batch, config, distribution)

    learner = common.sequence_learner(config, context, network, loss, statistics=statistics)
    return PushLearner(learner, network, statistics, config.discount_staleness)


def suited_settings(spec: EnvSpec) -> Mapping[str, Any]:
    """What learns on most environments."""
    own = {"gae_lambda": 0.95, "normalize_values": True}
    if spec.sees_images:
        return {"algorithm": {**own, "torso": "small", "image_hidden": 256, "center_images": True}}
    own |= {"normalize_observations": not spec.unit_observations}
    # MountainCar's goal is not found without noise that lasts.
    own |= {"repeat_exploration": not spec.continuous and not spec.tabular}
    own |= {"entropy_cost": common.TABULAR_ENTROPY} if spec.tabular else {}
    # Few lanes: small rollouts and many updates. CartPole was learned in fewer steps than with 8, and kept.
    return {"algorithm": own, "env": {"lanes": 2}}


_ALIKE = common.sequence_algorithm(
    "a3c",
    "actors compute gradients of their rollouts, one server applies them; asynchronous, or A2C",
    Config,
    make_learner,
    queue={"type": "rollout", "ratio": 1.0},
    suited=suited_settings,
    batch={"batch_size": "lanes", "prefetch": 0},
    check_replay=partial(require_rollouts, why="a3c's actors learn from what they just did"),
)
ALGORITHM = replace(
    _ALIKE,
    # Nobody reads the shards: they count steps, and show what happened last.
    defaults={**_ALIKE.defaults, "replay": {**_ALIKE.defaults["replay"], "capacity": 20_000}},
    pushes=lambda config, actors: config.rules(actors),
    served=False,  # a gradient needs the network that acted
)
