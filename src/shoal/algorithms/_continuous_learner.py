"""What the algorithms for continuous actions share on the learner's side: one learner around two loss functions.

An update is made of few, large operations: critics are one ensemble, each network's parameters one vector, so
gradients, Adam and the targets' move are single calls whatever the number of layers; and the policy's gradient is not
also computed for the critics' weights it flows through.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms._continuous import ActionBounds, ContinuousConfig
from shoal.algorithms.capture import Captured
from shoal.algorithms.compiled import Compiled
from shoal.algorithms.descent import Descent, Follower
from shoal.algorithms.interface import LearnerContext, LearnerState, StepResult
from shoal.algorithms.state import load_module, module_tensors
from shoal.networks import CriticNetwork, PolicyNetwork, Scratch
from shoal.ops import Moments, importance_weights, linear_schedule, merged_moments
from shoal.types import EnvSpec, Sample, Transition

ROWS_BEHIND_ADOPTED = 10_000
"""Statistics that come with weights do not say of how many rows they are: of enough to outweigh a batch."""


class Batch(NamedTuple):
    """A batch of transitions on the learner's device, as networks see it."""

    obs: Tensor
    """[B, F] normalised, if the algorithm is set so."""
    action: Tensor
    """[B, A] in [-1, 1]."""
    reward: Tensor
    """[B] scaled."""
    discount: Tensor
    next_obs: Tensor


class Networks(NamedTuple):
    """What is learned, and the slower copies that targets are computed with."""

    policy: PolicyNetwork
    critic: CriticNetwork
    target_policy: PolicyNetwork
    """The policy itself where the algorithm has no slower copy of it."""
    target_critic: CriticNetwork


class CriticLoss(NamedTuple):
    """Per sample: nothing is averaged yet."""

    loss: Tensor
    """[B]"""
    td_error: Tensor
    """[B] its size becomes the priority."""
    q_mean: Tensor


class PolicyLoss(NamedTuple):
    """What the policy is to minimise, and what is worth logging."""

    loss: Tensor
    """Scalar."""
    metrics: dict[str, Tensor]


CriticLossFunction = Callable[[Networks, Batch], CriticLoss]
PolicyLossFunction = Callable[[Networks, Batch], PolicyLoss]


class Rules(NamedTuple):
    """How one algorithm differs from the next."""

    critic_loss: CriticLossFunction
    policy_loss: PolicyLossFunction
    policy_delay: int = 1
    """Updates of the critics for one of the policy."""
    policy_target: bool = True
    """Whether targets use a slower copy of the policy."""
    policy_extra: nn.Module | None = None
    """More to learn beside the policy, with the same optimiser."""
    policy_gradient_bound: float | None = None
    """Every element of the policy's gradient is kept within plus and minus this."""


class _Raw(NamedTuple):
    """A batch as it was stored, on the learner's device."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    weights: Tensor | None


class _Updated(NamedTuple):
    metrics: dict[str, Tensor]
    td_error: Tensor


class ContinuousLearner:
    """Learns critics and a policy from transitions."""

    published_whole = False

    def __init__(
        self,
        policy: PolicyNetwork,
        critic: CriticNetwork,
        rules: Rules,
        config: ContinuousConfig,
        spec: EnvSpec,
        context: LearnerContext,
        module: nn.Module | None = None,
    ) -> None:
        """Args:
        policy: the policy network; moved to the context's device.
        critic: the critics.
        rules: the algorithm.
        config: hyper-parameters.
        spec: the environment.
        context: where it works.
        module: what is published, if it is more than the policy.
        """
        self._config, self._rules, self._device = config, rules, context.device
        self._prioritized = context.prioritized
        self._module = (policy if module is None else module).to(context.device)
        policy, critic = policy.to(context.device), critic.to(context.device)
        target_policy = copy.deepcopy(policy) if rules.policy_target else policy
        self._networks = Networks(policy, critic, target_policy, copy.deepcopy(critic))
        extra = rules.policy_extra.to(context.device) if rules.policy_extra is not None else nn.Module()
        self._extra = extra
        settings = config.adam_epsilon, config.gradient_clip
        self._policy = Descent(policy, extra, config.policy_learning_rate, *settings)
        self._critic = Descent(critic, nn.Module(), config.learning_rate, *settings)
        self._followers = [Follower(self._networks.target_critic, critic, self._critic)]
        self._followers += [Follower(target_policy, policy, self._policy)] if rules.policy_target else []
        _work_in(Scratch(), self._networks)
        self._squashed = ActionBounds(spec).from_env(context.device)
        self._moments = _no_moments(policy, context.device)
        self._beta = linear_schedule(config.beta_start, 1.0, config.beta_updates)
        self._updates = 0
        self._metrics: dict[str, Tensor] = {}
        self._copied = torch.cuda.Event() if context.device.type == "cuda" else None
        self._faster = self._made_faster() if context.compile else self._update

    @property
    def module(self) -> nn.Module:
        """The policy network, and what else actors hold."""
        return self._module

    def step(self, sample: Sample) -> StepResult:
        """See `Learner.step`."""
        if self._updates == 0:
            self._networks.policy.learned.fill_(1.0)
        raw = self._upload(sample)
        self._updates += 1
        flags = self._updates % self._rules.policy_delay == 0, self._updates % self._config.target_period == 0
        done = self._faster(raw, *flags)
        # The policy's are of the last update that it had a part in: every metric is averaged over all updates.
        metrics = self._metrics = {**self._metrics, **done.metrics}
        if self._copied is not None:
            self._copied.synchronize()  # the sample's arrays are used again
        if not self._prioritized:
            return StepResult(metrics, None)  # nobody needs the errors, and fetching them would wait for the device
        return StepResult(metrics, done.td_error.abs().float().cpu().numpy())

    def _update(self, raw: _Raw, learn_policy: bool, move_targets: bool) -> _Updated:
        """One update, all of it on the device."""
        batch = self._prepared(raw)
        critic = self._rules.critic_loss(self._networks, batch)
        loss = critic.loss.mean() if raw.weights is None else (raw.weights * critic.loss).mean()
        norm = self._critic.minimise(loss)
        metrics = {"loss": loss.detach(), "q_mean": critic.q_mean.detach(), "gradient_norm": norm}
        if learn_policy:
            policy = self._rules.policy_loss(self._networks, batch)
            policy_norm = self._policy.minimise(policy.loss, self._rules.policy_gradient_bound)
            metrics |= {"policy_loss": policy.loss.detach(), "policy_gradient_norm": policy_norm}
            metrics |= {name: value.detach() for name, value in policy.metrics.items()}
        if move_targets:
            self._move_targets(self._config.tau)
        return _Updated(metrics, critic.td_error.detach())

    def _upload(self, sample: Sample) -> _Raw:
        """The sample as tensors on the device; copies only when that is not the CPU."""
        data = sample.data
        assert isinstance(data, Transition)
        weights = None
        if self._prioritized:
            probabilities, size = torch.from_numpy(sample.probabilities), torch.as_tensor(sample.size)
            weights = importance_weights(probabilities, size, self._beta(self._updates))
        raw = _Raw(
            torch.from_numpy(data.obs),
            torch.from_numpy(data.action),
            torch.from_numpy(data.reward),
            torch.from_numpy(data.discount),
            torch.from_numpy(data.next_obs),
            weights,
        )
        if self._copied is not None:
            raw = _Raw._make(None if one is None else one.to(self._device, non_blocking=True) for one in raw)
            self._copied.record()
        return raw

    def _prepared(self, raw: _Raw) -> Batch:
        """Normalised observations, actions in [-1, 1], scaled rewards."""
        policy, scale = self._networks.policy, self._config.reward_scale
        if self._moments is not None and policy.norm is not None:
            rows = raw.obs.reshape(raw.obs.shape[0], -1)
            for kept, new in zip(self._moments, merged_moments(self._moments, rows.float()), strict=True):
                kept.copy_(new)
            policy.norm.set(self._moments.mean, self._moments.variance)
        reward = raw.reward if scale == 1.0 else raw.reward * scale
        with torch.no_grad():
            obs, next_obs = policy.normalized(raw.obs), policy.normalized(raw.next_obs)
            return Batch(obs, self._squashed(raw.action), reward, raw.discount, next_obs)

    def _made_faster(self) -> Callable[..., _Updated]:
        if self._device.type == "cuda":
            return Captured(self._update, self._device)
        self._policy.split()
        self._critic.split()
        for follower in self._followers:
            follower.split()
        return Compiled(self._update, self._before_compiled)

    def _before_compiled(self) -> None:
        self._policy.optimizer.before_traced()
        self._critic.optimizer.before_traced()

    def _move_targets(self, tau: float) -> None:
        for follower in self._followers:
            follower.move(tau)

    def state(self) -> LearnerState:
        """See `Learner.state`."""
        tensors = self._policy.optimizer.tensors("policy_optimizer.") | self._critic.optimizer.tensors(
            "critic_optimizer."
        )
        for name, module in self._modules().items():
            tensors |= module_tensors(module, f"{name}.")
        if self._moments is not None:
            tensors |= {f"moments.{name}": value for name, value in self._moments._asdict().items()}
        return LearnerState(tensors, {"learner_updates": self._updates})

    def load_state(self, state: LearnerState) -> None:
        """See `Learner.load_state`."""
        for name, module in self._modules().items():
            load_module(module, state.tensors, f"{name}.")
        self._policy.optimizer.load(state.tensors, "policy_optimizer.")
        self._critic.optimizer.load(state.tensors, "critic_optimizer.")
        if self._moments is not None:
            for name, kept in self._moments._asdict().items():
                kept.copy_(state.tensors[f"moments.{name}"])
        self._updates = int(state.scalars["learner_updates"])
        if isinstance(self._faster, Captured):
            self._faster.forget()

    def weights_replaced(self) -> None:
        """The targets become copies of the networks; what was known of observations is what came with the weights."""
        self._move_targets(1.0)
        norm = self._networks.policy.norm
        if self._moments is not None and norm is not None and self._networks.policy.learned:
            self._moments.size.fill_(ROWS_BEHIND_ADOPTED)
            self._moments.mean.copy_(norm.mean)
            self._moments.variance.copy_(norm.variance)

    def _modules(self) -> dict[str, nn.Module]:
        """By the names they are saved under; `policy` is what evaluators and users load."""
        networks = self._networks
        found = {"policy": self._module, "critic": networks.critic, "target_critic": networks.target_critic}
        found |= {"target_policy": networks.target_policy} if self._rules.policy_target else {}
        return found | ({"extra": self._extra} if self._rules.policy_extra is not None else {})


def _work_in(scratch: Scratch, networks: Networks) -> None:
    for network in networks:
        network.body.work_in(scratch)


def _no_moments(policy: PolicyNetwork, device: torch.device) -> Moments | None:
    if policy.norm is None:
        return None
    zeros = torch.zeros_like(policy.norm.mean, dtype=torch.float64, device=device)
    return Moments(torch.zeros((), dtype=torch.int64, device=device), zeros, zeros.clone())
