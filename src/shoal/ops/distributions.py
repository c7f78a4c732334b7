"""Distributions over actions, for policies learned by policy gradients.

A distribution's parameters are one tensor, [..., P]: networks output it, actors record it with their actions, learners
compare it. The classes hold only sizes and have no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal.ops._checks import check_floating, check_integer

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class ActionDistribution(Protocol):
    """What a policy needs of a distribution over actions.

    distribution = Categorical(6)
    params = network(observation)  # [..., P]
    action = distribution.sample(params)
    loss = -distribution.log_prob(params, action) * advantage - 0.01 * distribution.entropy(params)
    """

    @property
    def parameters(self) -> int:
        """P, how many parameters there are."""

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log probability (or density) of `action`, [...]; the gradient goes to `params`, and to a float action."""

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy, [...], in nats; differential, so possibly negative, where actions are continuous."""

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p || q), [...], exact; p and q are parameters of one shape. Rounding may leave it a hair below 0."""

    def mode(self, params: Tensor) -> Tensor:
        """The most likely action, without gradient."""

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A random action, without gradient; `generator` lives on the device of `params`. None: torch's own."""


@dataclass(frozen=True)
class Categorical:
    """One of finitely many actions. Parameters [..., A] are finite logits; actions [...] are int64.

    Attributes:
        num_actions: A, at least 1.
    """

    num_actions: int

    def __post_init__(self) -> None:
        if self.num_actions < 1:
            raise ValueError(f"num_actions must be at least 1, got {self.num_actions}.")

    @property
    def parameters(self) -> int:
        """A logits."""
        return self.num_actions

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log softmax(params)[action]; `action` may be of any integer dtype."""
        _check_params(self.parameters, params=params)
        check_integer(action=action)
        _check_shape(action, params.shape[:-1])
        return params.log_softmax(-1).gather(-1, action.long()[..., None]).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """-sum_a p log p."""
        _check_params(self.parameters, params=params)
        log_p = params.log_softmax(-1)  # [..., A]
        return -(log_p.exp() * log_p).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """sum_a p (log p - log q). Both logs are finite, so an action that p never takes adds exactly 0."""
        _check_params(self.parameters, p=p, q=q)
        log_p = p.log_softmax(-1)  # [..., A]
        return (log_p.exp() * (log_p - q.log_softmax(-1))).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The largest logit."""
        _check_params(self.parameters, params=params)
        return params.argmax(-1)

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The largest of logits plus Gumbel noise, which is -log of an exponential draw."""
        _check_params(self.parameters, params=params)
        with torch.no_grad():
            noise = torch.empty_like(params, dtype=torch.promote_types(params.dtype, torch.float32))
            # A draw that rounds to 0 would be infinite noise, and the least likely action would win.
            noise.exponential_(generator=generator).clamp_(min=torch.finfo(noise.dtype).tiny)
            return (params - noise.log_()).argmax(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices at once. Parameters [..., sum(nvec)] are the logits of all; actions [..., K] int64.

    Attributes:
        nvec: the number of options of each of the K choices, at least 1.
    """

    nvec: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"nvec must be numbers of at least 1, got {self.nvec}.")

    @property
    def parameters(self) -> int:
        """All logits."""
        return sum(self.nvec)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """The sum over the choices."""
        _check_params(self.parameters, params=params)
        check_integer(action=action)
        _check_shape(action, torch.Size((*params.shape[:-1], len(self.nvec))))
        chosen = action.split([count for _, count in self._groups], -1)
        return self._sum(one.log_prob(*p, a) for (one, *p), a in zip(self._split(params), chosen, strict=True))

    def entropy(self, params: Tensor) -> Tensor:
        """The sum over the choices."""
        _check_params(self.parameters, params=params)
        return self._sum(one.entropy(p) for one, p in self._split(params))

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """The sum over the choices."""
        _check_params(self.parameters, p=p, q=q)
        return self._sum(one.kl(*both) for one, *both in self._split(p, q))

    def mode(self, params: Tensor) -> Tensor:
        """The largest logit of each choice."""
        _check_params(self.parameters, params=params)
        return torch.cat([one.mode(p) for one, p in self._split(params)], -1)

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Each choice drawn on its own."""
        _check_params(self.parameters, params=params)
        return torch.cat([one.sample(p, generator) for one, p in self._split(params)], -1)

    @property
    def _groups(self) -> list[tuple[int, int]]:
        """Neighbours of one size are computed at once: (options, number of such choices)."""
        return [(options, len(list(same))) for options, same in groupby(self.nvec)]

    def _split(self, *params: Tensor) -> Iterator[tuple[Any, ...]]:
        """Per group its Categorical, and of each argument [..., choices, options]."""
        sizes = [options * count for options, count in self._groups]
        for (options, count), *parts in zip(self._groups, *(one.split(sizes, -1) for one in params), strict=True):
            yield Categorical(options), *(part.unflatten(-1, (count, options)) for part in parts)

    def _sum(self, each: Iterable[Tensor]) -> Tensor:
        return torch.cat(list(each), -1).sum(-1)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normal numbers. Parameters [..., 2 * size] are means, then log standard deviations, used as given.

    Actions [..., size] are unbounded: they are clipped when they are played, and recorded unclipped.

    Attributes:
        size: dimensions of an action, at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}.")

    @property
    def parameters(self) -> int:
        """Means and log standard deviations."""
        return 2 * self.size

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log density, summed over the numbers of an action."""
        _check_params(self.parameters, params=params)
        check_floating(action=action)
        mean, log_std = params.chunk(2, -1)  # [..., size] each
        _check_shape(action, mean.shape)
        z = (action - mean) * (-log_std).exp()  # [..., size]
        return -(0.5 * z.square() + log_std).sum(-1) - self.size * _HALF_LOG_TWO_PI

    def entropy(self, params: Tensor) -> Tensor:
        """sum log_std + (1 + log 2 pi) / 2 per number."""
        _check_params(self.parameters, params=params)
        log_std = params[..., self.size :]
        return log_std.sum(-1) + self.size * (0.5 + _HALF_LOG_TWO_PI)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """sum of (s^2 - 1) / 2 - log s + z^2 / 2, with s the ratio of deviations and z the difference of means / q's.

        Only differences of log deviations are exponentiated, so equal policies give exactly 0 however narrow they are.
        """
        _check_params(self.parameters, p=p, q=q)
        mean_p, log_std_p = p.chunk(2, -1)  # [..., size] each
        mean_q, log_std_q = q.chunk(2, -1)
        log_s = log_std_p - log_std_q
        z = (mean_p - mean_q) * (-log_std_q).exp()
        return (0.5 * (torch.expm1(2.0 * log_s) + z.square()) - log_s).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The means."""
        _check_params(self.parameters, params=params)
        return params[..., : self.size].detach()

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Means plus normal noise times the deviations."""
        _check_params(self.parameters, params=params)
        mean, log_std = params.chunk(2, -1)  # [..., size] each
        with torch.no_grad():
            noise = torch.empty_like(mean, memory_format=torch.contiguous_format).normal_(generator=generator)
            return torch.addcmul(mean, log_std.exp(), noise)


def _check_params(size: int, **params: Tensor) -> None:
    """Refuses parameters that are not [..., size], of one shape, floating point."""
    check_floating(**params)
    first = next(iter(params.values())).shape
    for name, tensor in params.items():
        if tensor.dim() == 0 or tensor.shape[-1] != size:
            raise ValueError(f"{name} must be [..., {size}], got shape {tuple(tensor.shape)}.")
        if tensor.shape != first:
            raise ValueError(f"{' and '.join(params)} must have one shape, got {tuple(first)}, {tuple(tensor.shape)}.")


def _check_shape(action: Tensor, shape: torch.Size) -> None:
    if action.shape != shape:
        raise ValueError(f"action must be of shape {tuple(shape)} for these params, got {tuple(action.shape)}.")
