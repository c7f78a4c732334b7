"""Batches as losses read them: transitions, or sequences. The only place that turns samples into tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.networks import ActorCritic
from shoal.types import FINAL, Sample, Sequence, Transition


class TransitionBatch(NamedTuple):
    """Transitions on the learner's device."""

    obs: Tensor
    """[B, *obs_shape]"""
    action: Tensor
    """[B, ...]"""
    reward: Tensor
    """[B] of n steps."""
    discount: Tensor
    """[B] of the value of `next_obs`; 0 where the episode terminated."""
    next_obs: Tensor
    weights: Tensor | None = None
    """[B] importance weights; None: all are 1."""

    @property
    def draws(self) -> int:
        """B."""
        return self.reward.shape[0]


class SequenceBatch(NamedTuple):
    """Sequences on the learner's device, time-major; burn-in included."""

    obs: Tensor
    """[T + 1, B, *obs_shape]"""
    action: Tensor
    """[T, B, ...] as the policy drew it."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool."""
    boundary: Tensor
    """[T + 1, B] STEP or FINAL."""
    behaviour: Tensor
    """[T, B, P]"""
    value: Tensor | None
    """[T, B] the value the actor had seen."""
    state: Tensor | None
    """[B, 2H] hidden and cell state of the LSTM before the first row."""
    replayed: Tensor
    """[B] 1 where a sequence was replayed, 0 where it is fresh."""
    target_state: Tensor | None = None
    """As `state`, for the target network, where there is one."""
    weights: None = None

    @property
    def draws(self) -> int:
        """B."""
        return self.reward.shape[1]

    # Derived on the device: small arrays that are made on the CPU would each be one more copy to it.

    @property
    def mask(self) -> Tensor:
        """[T, B] 1 where a row holds a transition."""
        return _mask(self.boundary)

    @property
    def first(self) -> Tensor:
        """[T + 1, B] bool: where an episode begins within the sequence."""
        return _first(self.boundary)


class RecurrentBatch(NamedTuple):
    """Sequences of a recurrent Q-learner on its device, time-major; burn-in included."""

    obs: Tensor
    """[T + 1, B, *obs_shape]"""
    action: Tensor
    """[T, B, ...]"""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool."""
    boundary: Tensor
    """[T + 1, B] STEP or FINAL."""
    state: Tensor
    """[B, S + actions] recurrent state before the first row, and the actions before it: -1 where there are none."""
    weights: Tensor | None = None
    """[B] importance weights; None: all are 1."""

    @property
    def draws(self) -> int:
        """B."""
        return self.reward.shape[1]

    @property
    def mask(self) -> Tensor:
        """[T, B] 1 where a row holds a step."""
        return _mask(self.boundary)

    @property
    def first(self) -> Tensor:
        """[T + 1, B] bool: where an episode begins within the sequence. The state before its first row is known."""
        return _first(self.boundary)

    def last_action(self, state_size: int) -> Tensor:
        """[T + 1, B, ...] the actions before each row; -1 where an episode begins."""
        before = self.state[:, state_size:].long().view(1, *self.action.shape[1:])
        last = torch.cat((before, self.action.long()))
        begins = self.first.view(*self.first.shape, *(1 for _ in self.action.shape[2:]))
        return last.masked_fill(begins, -1)

    def after(self, rows: int) -> RecurrentBatch:
        """Without the first rows; `state` is still that before them."""
        names = ("obs", "action", "reward", "terminated", "boundary")
        return self._replace(**{name: getattr(self, name)[rows:] for name in names})


def _mask(boundary: Tensor) -> Tensor:
    return (boundary[:-1] != FINAL).float()


def _first(boundary: Tensor) -> Tensor:
    first = torch.zeros_like(boundary, dtype=torch.bool)
    first[1:] = boundary[:-1] == FINAL
    return first


class Minibatch(NamedTuple):
    """A part of a rollout, with what was computed for the whole of it: N rows as [1, N], or N sequences as [T, N]."""

    obs: Tensor
    """[T, N, *obs_shape]"""
    action: Tensor
    """[T, N, ...]"""
    log_prob: Tensor
    """[T, N] of the action, by the policy before the rollout's first update."""
    weight: Tensor
    """[T, N] how much likelier that policy is to act so than the one that did, 2 at most: 1 if it is the same."""
    advantage: Tensor
    """[T, N]"""
    target: Tensor
    """[T, N] what the value should become."""
    value: Tensor
    """[T, N] the value before the first update."""
    mask: Tensor
    """[T, N] 1 where a row holds a step."""
    first: Tensor
    """[T, N] bool: where an episode begins."""
    clip: Tensor
    """[] how far the ratio may move from 1."""
    state: Tensor | None
    """[N, 2H] of the LSTM before the first row."""

    @property
    def draws(self) -> int:
        """N."""
        return self.mask.shape[1]

    def at(self, places: Tensor) -> Minibatch:
        """Some of it, by their places on the axis of N."""
        state = None if self.state is None else self.state.index_select(0, places)
        return self._each(lambda one: one.index_select(1, places))._replace(state=state)

    def as_rows(self) -> Minibatch:
        """The same rows without their order, [1, T * N]. For networks without an LSTM."""
        return self._each(lambda one: one.flatten(0, 1).unsqueeze(0))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Minibatch:
        """The same change of all that is [T, N, ...]."""
        rows = ("obs", "action", "log_prob", "weight", "advantage", "target", "value", "mask", "first")
        return self._replace(**{name: change(getattr(self, name)) for name in rows})


def to_tensors(sample: Sample) -> TransitionBatch | SequenceBatch | RecurrentBatch:
    """Wraps a sample's arrays; large ones are not copied."""
    data = sample.data
    if isinstance(data, Transition):
        return TransitionBatch(
            torch.from_numpy(data.obs),
            torch.from_numpy(data.action),
            torch.from_numpy(data.reward),
            torch.from_numpy(data.discount),
            torch.from_numpy(data.next_obs),
        )
    assert isinstance(data, Sequence)
    if "behaviour" not in data.extras:  # no policy whose probabilities are compared: values are learned
        names = ("obs", "action", "reward", "terminated", "boundary")
        arrays = {name: torch.from_numpy(getattr(data, name)) for name in names}
        return RecurrentBatch(**arrays, state=torch.from_numpy(data.extras["state"]))
    return _sequences(data, torch.from_numpy(~sample.fresh))


def _sequences(data: Sequence, replayed: Tensor) -> SequenceBatch:
    extras = {name: torch.from_numpy(array) for name, array in data.extras.items()}
    return SequenceBatch(
        obs=torch.from_numpy(data.obs),
        action=extras["raw_action"][:-1] if "raw_action" in extras else torch.from_numpy(data.action),
        reward=torch.from_numpy(data.reward),
        terminated=torch.from_numpy(data.terminated),
        boundary=torch.from_numpy(data.boundary),
        behaviour=extras["behaviour"][:-1],
        value=extras["value"][:-1] if "value" in extras else None,
        state=extras.get("state"),
        replayed=replayed.float(),
    )


def after_burn_in(
    network: ActorCritic, batch: SequenceBatch, burn_in: int, target: ActorCritic | None = None
) -> SequenceBatch:
    """The part to learn from; the LSTM's state, of each network its own, comes warm from the part before it."""
    if not burn_in:
        return batch._replace(target_state=batch.state)
    state = _warm(network, batch, burn_in)
    target_state = _warm(target, batch, burn_in) if target is not None else None
    names = ("obs", "action", "reward", "terminated", "boundary", "behaviour")
    kept = {name: getattr(batch, name)[burn_in:] for name in names}
    value = None if batch.value is None else batch.value[burn_in:]
    return batch._replace(state=state, target_state=target_state, value=value, **kept)


@torch.no_grad()
def _warm(network: ActorCritic, batch: SequenceBatch, burn_in: int) -> Tensor | None:
    """What the recorded state has become after the burn-in."""
    if batch.state is None:
        return None
    state = batch.state.chunk(2, dim=1)
    embedded = network.embed(batch.obs[:burn_in].flatten(0, 1)).view(burn_in, batch.obs.shape[1], -1)
    for step, boundary in zip(embedded, batch.boundary, strict=False):
        state = network.recur(step, (state[0], state[1]))
        alive = (boundary != FINAL).to(step.dtype).unsqueeze(1)  # an episode begins after a final row
        state = (state[0] * alive, state[1] * alive)
    return torch.cat(state, dim=1)
