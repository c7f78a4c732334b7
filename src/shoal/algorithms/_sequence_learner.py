"""Learning from sequences: what their rows mean, and a learner around a loss function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms._actor_critic import ActorCriticConfig
from shoal.algorithms.capture import Captured
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
    target_state: tuple[Tensor, Tensor] | None = None
    """As `state`, for the target network, where there is one."""


class Raw(NamedTuple):
    """Sequences as they were stored, on the learner's device."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    boundary: Tensor
    behaviour: Tensor
    value: Tensor | None
    state: Tensor | None
    replayed: Tensor


def upload(sample: Sample, device: torch.device) -> Raw:
    """The sample as tensors on the device; copies only when that is not the CPU."""
    data = sample.data
    assert isinstance(data, Sequence)
    extras = data.extras

    def move(array: Array) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)

    return Raw(
        obs=move(data.obs),
        action=move(extras["raw_action"][:-1] if "raw_action" in extras else data.action),
        reward=move(data.reward),
        terminated=move(data.terminated),
        boundary=move(data.boundary),
        behaviour=move(extras["behaviour"]),
        value=move(extras["value"]) if "value" in extras else None,
        state=move(extras["state"]) if "state" in extras else None,
        replayed=move(~sample.fresh),
    )


def to_batch(raw: Raw, gamma: float) -> Batch:
    """Says what the rows mean."""
    final = raw.boundary == FINAL  # [T + 1, B]
    first = torch.zeros_like(final)
    first[1:] = final[:-1]
    state = raw.state.chunk(2, dim=1) if raw.state is not None else None
    return Batch(
        obs=raw.obs,
        action=raw.action,
        reward=raw.reward,
        discount=discounts(raw.terminated, gamma),
        mask=(~final[:-1]).float(),
        first=first,
        behaviour=raw.behaviour[:-1],
        value=None if raw.value is None else raw.value[:-1],
        state=(state[0], state[1]) if state is not None else None,
        replayed=raw.replayed.float(),
    )


def after_burn_in(network: ActorCritic, batch: Batch, burn_in: int, target: ActorCritic | None = None) -> Batch:
    """The part to learn from; the LSTM's state, of each network its own, comes warm from the part before it."""
    if not burn_in:
        return batch._replace(target_state=batch.state)
    state = _warm(network, batch, burn_in)
    target_state = _warm(target, batch, burn_in) if target is not None else None
    names = ("obs", "action", "reward", "discount", "mask", "first", "behaviour")
    kept = {name: getattr(batch, name)[burn_in:] for name in names}
    value = None if batch.value is None else batch.value[burn_in:]
    return batch._replace(state=state, target_state=target_state, value=value, **kept)


@torch.no_grad()
def _warm(network: ActorCritic, batch: Batch, burn_in: int) -> tuple[Tensor, Tensor] | None:
    """What the recorded state has become after the burn-in."""
    state = batch.state
    if state is None:
        return None
    embedded = network.embed(batch.obs[:burn_in].flatten(0, 1)).view(burn_in, batch.obs.shape[1], -1)
    for step, first in zip(embedded, batch.first[:burn_in], strict=True):
        alive = (~first).to(step.dtype).unsqueeze(1)
        state = network.recur(step, (state[0] * alive, state[1] * alive))
    return state


class Loss(NamedTuple):
    """What is minimised, and what to report."""

    total: Tensor
    metrics: Mapping[str, Tensor]


LossFunction = Callable[[ActorCritic, Batch], Loss]


class SequenceLearner:
    """Minimises a loss over sequences, with clipped gradients and a falling step size."""

    published_whole = True

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
        self._captured: Captured[Raw, Mapping[str, Tensor]] | None = None
        if context.compile and context.device.type == "cuda":
            self._captured = Captured(self._update, context.device)
        self._optimizer = _make_optimizer(self._parameters.vector, config, self._captured is not None)
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
        raw = upload(sample, self._device)
        if self._copied is not None:
            self._copied.record()
        self._set_rate(self._rate(self._updates))
        metrics = self._update(raw) if self._captured is None else self._captured(raw)
        self._updates += 1
        if self._target_period and self._updates % self._target_period == 0:
            self.weights_replaced()
        if self._copied is not None:
            self._copied.synchronize()  # the sample's arrays are used again
        return StepResult(metrics, None)

    def _update(self, raw: Raw) -> Mapping[str, Tensor]:
        """One update, all of it on the device."""
        # What autocast remembers of the weights would be remembered by a captured update for ever.
        casting = {"enabled": self._context.autocast, "cache_enabled": self._captured is None}
        with torch.autocast(self._device.type, torch.bfloat16, **casting):
            batch = to_batch(raw, self._config.gamma)
            batch = after_burn_in(self._network, batch, self._config.burn_in, self._target)
            loss = self._loss(self._network, batch)
        self._parameters.zero_grad()
        loss.total.backward()
        norm = self._parameters.clip_gradients(self._config.gradient_clip)
        self._optimizer.step()
        return {"loss": loss.total.detach(), "gradient_norm": norm, **loss.metrics}

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

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
        _make_capturable(self._optimizer, self._captured is not None)  # whatever the checkpoint's learner was
        if self._captured is not None:
            self._captured.forget()

    def weights_replaced(self) -> None:
        """The target network, if there is one, becomes a copy."""
        if self._target is not None:
            self._target.load_state_dict(self._network.state_dict())


def _make_optimizer(vector: nn.Parameter, config: ActorCriticConfig, captured: bool) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": config.learning_rate, "eps": config.optimizer_epsilon}
    optimizer = (
        torch.optim.Adam([vector], fused=True, **settings)
        if config.optimizer == "adam"
        else torch.optim.RMSprop([vector], alpha=0.99, **settings)
    )
    _make_capturable(optimizer, captured)
    return optimizer


def _make_capturable(optimizer: torch.optim.Optimizer, captured: bool) -> None:
    """Its step size and count become tensors on the device, which a captured update reads anew every time; or do not
    stay any.
    """
    for group in optimizer.param_groups:
        device = group["params"][0].device
        group["capturable"] = captured
        group["lr"] = torch.tensor(float(group["lr"]), device=device) if captured else float(group["lr"])
        for parameter in group["params"] if captured else ():
            if "step" in optimizer.state[parameter]:
                optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].to(device)
