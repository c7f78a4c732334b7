"""Learning from sequences: what their rows mean, and a learner around a loss function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms._actor_critic import ActorCriticConfig
from shoal.algorithms.flat import FlatParameters
from shoal.algorithms.interface import LearnerContext, LearnerState, StepResult
from shoal.algorithms.state import flatten_optimizer, load_module, module_tensors, restore_optimizer
from shoal.networks import ActorCritic
from shoal.ops import discounts, polynomial_schedule
from shoal.types import FINAL, Array, Sample, Sequence


class Batch(NamedTuple):
    """Sequences on the learner's device, time-major; burn-in included."""

    obs: Tensor
    """[T + 1, B, *obs_shape]"""
    action: Tensor
    """[T, B, ...] as the policy drew it."""
    reward: Tensor
    """[T, B]"""
    discount: Tensor
    """[T, B] gamma, or 0 where the episode terminated."""
    mask: Tensor
    """[T, B] 1 where a row holds a transition."""
    first: Tensor
    """[T + 1, B] where an episode begins within the sequence."""
    behaviour: Tensor
    """[T, B, P]"""
    value: Tensor | None
    """[T, B] the value the actor had seen."""
    state: tuple[Tensor, Tensor] | None
    """The LSTM's before the first row, [B, H] each."""
    replayed: Tensor
    """[B] 1 where a sequence was replayed, 0 where it is fresh."""


def to_batch(sample: Sample, gamma: float, device: torch.device) -> Batch:
    """Moves a sample to the device and says what its rows mean."""
    data = sample.data
    assert isinstance(data, Sequence)

    def move(array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)

    final = move(data.boundary) == FINAL  # [T + 1, B]
    first = torch.zeros_like(final)
    first[1:] = final[:-1]
    behaviour, value, raw = (data.extras.get(name) for name in ("behaviour", "value", "raw_action"))
    assert behaviour is not None
    state = move(data.extras["state"]).chunk(2, dim=1) if "state" in data.extras else None
    return Batch(
        obs=move(data.obs),
        action=move(data.action if raw is None else raw[:-1]),
        reward=move(data.reward),
        discount=discounts(move(data.terminated), gamma),
        mask=(~final[:-1]).float(),
        first=first,
        behaviour=move(behaviour)[:-1],
        value=None if value is None else move(value)[:-1],
        state=(state[0], state[1]) if state is not None else None,
        replayed=move(~sample.fresh).float(),
    )


def after_burn_in(network: ActorCritic, batch: Batch, burn_in: int) -> Batch:
    """The part to learn from; the LSTM's state comes warm from the part before it."""
    if not burn_in:
        return batch
    state = batch.state
    if state is not None:
        with torch.no_grad():
            embedded = network.embed(batch.obs[:burn_in].flatten(0, 1)).view(burn_in, batch.obs.shape[1], -1)
            for step, first in zip(embedded, batch.first[:burn_in], strict=True):
                alive = (~first).to(step.dtype).unsqueeze(1)
                state = network.recur(step, (state[0] * alive, state[1] * alive))
    names = ("obs", "action", "reward", "discount", "mask", "first", "behaviour")
    kept = {name: getattr(batch, name)[burn_in:] for name in names}
    value = None if batch.value is None else batch.value[burn_in:]
    return batch._replace(state=state, value=value, **kept)


class Loss(NamedTuple):
    """What is minimised, and what to report."""

    total: Tensor
    metrics: Mapping[str, Tensor]


LossFunction = Callable[[ActorCritic, Batch], Loss]


class SequenceLearner:
    """Minimises a loss over sequences, with clipped gradients and a falling step size."""

    def __init__(
        self,
        network: ActorCritic,
        loss: LossFunction,
        config: ActorCriticConfig,
        context: LearnerContext,
        *,
        target: ActorCritic | None = None,
        target_period: int = 0,
    ) -> None:
        """Args:
        network: what learns; moved to the context's device.
        loss: the algorithm's pure loss; it may close over `target`.
        config: hyper-parameters.
        context: where to work.
        target: another network of the same shape that follows; None for none.
        target_period: updates between two copies into it.
        """
        self._device, self._loss, self._config, self._context = context.device, loss, config, context
        self._network = network.to(context.device)
        self._target = target.to(context.device).requires_grad_(False) if target is not None else None
        self._target_period = target_period
        self.weights_replaced()
        self._parameters = FlatParameters(self._network)
        self._optimizer = _make_optimizer(self._parameters.vector, config)
        end = config.learning_rate_end if config.schedule_updates else config.learning_rate
        self._rate = polynomial_schedule(config.learning_rate, end, config.schedule_updates, config.schedule_power)
        self._updates = 0
        self._copied = torch.cuda.Event() if context.device.type == "cuda" else None

    @property
    def module(self) -> nn.Module:
        """The network."""
        return self._network

    def step(self, sample: Sample) -> StepResult:
        """See `Learner.step`."""
        batch = to_batch(sample, self._config.gamma, self._device)
        if self._copied is not None:
            self._copied.record()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._context.autocast):
            batch = after_burn_in(self._network, batch, self._config.burn_in)
            loss = self._loss(self._network, batch)
        self._parameters.zero_grad()
        loss.total.backward()
        norm = self._parameters.clip_gradients(self._config.gradient_clip)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._updates)
        self._optimizer.step()
        self._updates += 1
        if self._target_period and self._updates % self._target_period == 0:
            self.weights_replaced()
        metrics = {"loss": loss.total.detach(), "gradient_norm": norm, **loss.metrics}
        if self._copied is not None:
            self._copied.synchronize()  # the sample's arrays are used again
        return StepResult(metrics, None)

    def state(self) -> LearnerState:
        """See `Learner.state`."""
        tensors, scalars = flatten_optimizer(self._optimizer, "optimizer.")
        tensors |= module_tensors(self._network, "policy.")
        if self._target is not None:
            tensors |= module_tensors(self._target, "target.")
        return LearnerState(tensors, {"optimizer": scalars, "learner_updates": self._updates})

    def load_state(self, state: LearnerState) -> None:
        """See `Learner.load_state`."""
        load_module(self._network, state.tensors, "policy.")
        if self._target is not None:
            load_module(self._target, state.tensors, "target.")
        restore_optimizer(self._optimizer, state.tensors, state.scalars["optimizer"], "optimizer.")
        self._updates = int(state.scalars["learner_updates"])

    def weights_replaced(self) -> None:
        """The target network, if there is one, becomes a copy."""
        if self._target is not None:
            self._target.load_state_dict(self._network.state_dict())


def _make_optimizer(vector: nn.Parameter, config: ActorCriticConfig) -> torch.optim.Optimizer:
    if config.optimizer == "adam":
        return torch.optim.Adam([vector], lr=config.learning_rate, eps=config.optimizer_epsilon, fused=True)
    return torch.optim.RMSprop([vector], lr=config.learning_rate, eps=config.optimizer_epsilon, alpha=0.99)
