"""One update, for every algorithm.

    batch = upload(sample)          tensors on the learner's device, with importance weights
    batch = prepare(batch)          as networks see it: observations normalised, actions in [-1, 1]
    for each objective that is due:
        gradient                    of its loss: one vector, and the number of rows it stands for
        exchange                    with other learners: the mean over the rows of all of them
        apply                       clip it, and one step of the optimiser
    each target network that is due moves towards the network it follows
    priorities = |TD errors|

An algorithm gives networks, objectives and target networks, and may divide a batch into several, as PPO does. All else
is here, once: importance weights, step-size schedules, autocast, compiled gradients on a CPU, updates as CUDA graphs on
a GPU, checkpoints.

Several learners make the update that one would make of all their batches (`LearnerContext.exchange`). What else is
computed from a whole batch is exchanged, too. A learner without a batch (None) sends zeros. Metrics are of a learner's
own batch, except the gradient's norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from shoal.algorithms.batches import to_tensors
from shoal.algorithms.capture import Captured
from shoal.algorithms.compiled import Compiled
from shoal.algorithms.exchanged import MeanGradient, gather
from shoal.algorithms.interface import Forward, LearnerContext, LearnerState, StepResult
from shoal.algorithms.optimizer import FlatParameters, Optimizer, Rule, TargetNetwork, clip_gradient
from shoal.algorithms.state import load_module, module_tensors
from shoal.networks import mark_as_learned
from shoal.networks.normalization import ValueNorm
from shoal.ops import importance_weights
from shoal.types import Sample

Schedule = Callable[[int], float]
"""From the number of updates to a value."""


class Loss(NamedTuple):
    """What a loss function gives."""

    loss: Tensor
    """[B] per sample, not averaged yet; or a scalar."""
    td_error: Tensor | None
    """[B] its size becomes the priority; None: the algorithm has none."""
    metrics: Mapping[str, Tensor]
    """Scalars to report."""
    rows: Tensor | None = None
    """What a scalar loss was divided by, if that is not the number of draws."""


@dataclass(frozen=True)
class Objective:
    """Parameters that are learned together, and the loss that they minimise.

    Attributes:
        parameters: whose parameters are learned.
        loss: from a batch to the loss; pure, except for random numbers.
        learning_rate: the step size after so many updates.
        epsilon: of the optimiser.
        gradient_clip: largest norm of the gradient; None: any.
        gradient_bound: every element of the gradient is kept within plus and minus this, before it is clipped.
        period: updates of the learner for one of this objective.
        optimizer: adam or rmsprop.
        name: prefix of its loss and gradient norm among the metrics.
        saved_as: name of its optimiser in a checkpoint.
        sums: numbers that its loss sums over all learners, in one call (`ops.normalized` does).
    """

    parameters: nn.Module
    loss: Callable[[Any], Loss]
    learning_rate: Schedule
    epsilon: float
    gradient_clip: float | None
    gradient_bound: float | None = None
    period: int = 1
    optimizer: Rule = "adam"
    name: str = ""
    saved_as: str = "optimizer"
    sums: int = 0


class Preparation(Protocol):
    """Turns a batch as it was stored into what networks see."""

    def __call__(self, batch: Any) -> Any:
        """The same batch, prepared; None if there is none."""

    def weights_replaced(self) -> None:
        """The published network has new weights and statistics."""


class Division(NamedTuple):
    """One batch, to be learned from in several updates."""

    batches: Iterable[Any]
    """NamedTuples of tensors, each for one update; None where only other learners have a share of it."""
    metrics: Mapping[str, Tensor]
    """Scalars of the whole batch."""
    enough: Callable[[Mapping[str, Tensor]], bool] = lambda metrics: False
    """Whether to stop after an update with these metrics."""


class Gradient(NamedTuple):
    """Of one objective and one batch."""

    vector: Tensor
    """[parameters]"""
    loss: Tensor
    """Scalar."""
    td_error: Tensor | None
    metrics: dict[str, Tensor]
    rows: Tensor | int
    """That the loss is a mean of. For one learner, to whom it means nothing, the number of draws."""


class _Updated(NamedTuple):
    metrics: dict[str, Tensor]
    td_error: Tensor | None


class GradientLearner:
    """Minimises objectives. The first one's TD errors become the priorities."""

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        objectives: Sequence[Objective],
        targets: Sequence[TargetNetwork],
        context: LearnerContext,
        *,
        beta: Schedule | None = None,
        prepare: Preparation | None = None,
        divide: Callable[[Any, int], Division] | None = None,
        published_whole: bool = True,
        watched: Mapping[str, Forward] | None = None,
        trim: Callable[[Any], Any] | None = None,
    ) -> None:
        """Args:
        networks: all that a checkpoint holds beside optimisers, by name, on the context's device; `policy` is what
            the policies act with.
        objectives: what is minimised, in this order.
        targets: networks that follow.
        context: where to work, and how.
        beta: exponent of the importance weights; None: there are none.
        prepare: applied to every batch.
        divide: from a prepared batch (or None), and the number of updates before it, to the batches of its updates.
            Schedules and periods count it as one. None: one update of the whole.
        published_whole: see `Learner`.
        watched: see `Learner`.
        trim: takes what is only padding out of a batch, before it goes to the device.
        """
        self._networks, self._targets, self._context, self._trim = networks, targets, context, trim
        self._beta, self._prepare, self._divide, self.published_whole = beta, prepare, divide, published_whole
        self.module, self.watched = networks["policy"], watched or {}
        on_gpu = context.device.type == "cuda"
        self._parts = [_Part(objective, context) for objective in objectives]
        self._periods = [*(part.objective.period for part in self._parts), *(target.period for target in targets)]
        update = self._update if divide is None else self._minimize
        # What is exchanged waits for others: then only the gradients are captured.
        captured = context.compile and on_gpu and context.exchange is None
        self._run: Callable[..., _Updated] = Captured(update, context.device) if captured else update
        self._copied = torch.cuda.Event() if on_gpu else None
        self._value_norms: list[ValueNorm] = []
        if context.exchange is not None:
            self._value_norms = [one for one in networks["policy"].modules() if isinstance(one, ValueNorm)]
            for norm in self._value_norms:
                norm.defer()
        self._updates = 0
        self._metrics: dict[str, Tensor] = {}

    def step(self, sample: Sample | None) -> StepResult:
        """One update."""
        if self._updates == 0:
            mark_as_learned(self.module)
        batch = self._upload(sample)
        for part in self._parts:
            part.optimizer.set_rate(part.objective.learning_rate(self._updates))
        self._updates += 1
        due = [self._updates % period == 0 for period in self._periods]
        done = self._run(batch, *due) if self._divide is None else self._update_by_parts(batch, self._divide, due)
        # An objective that was not due keeps its last metrics: every metric is averaged over all updates.
        metrics = self._metrics = {**self._metrics, **done.metrics}
        if self._copied is not None:
            self._copied.synchronize()  # the sample's arrays are used again
        if done.td_error is None or sample is None or not self._context.prioritized:
            return StepResult(metrics, None)  # nobody needs the errors, and fetching them would wait for the device
        return StepResult(metrics, done.td_error.abs().float().cpu().numpy())

    def gradient(self, sample: Sample) -> Gradient:
        """The first of the three steps alone, for a gradient that another process applies. For one objective."""
        return self._parts[0].gradient(self._upload(sample))

    def apply(self, gradient: Tensor, scale: float = 1.0) -> Tensor:
        """The last of the three steps alone; returns the gradient's norm. The step size is multiplied by `scale`."""
        (part,) = self._parts
        part.optimizer.set_rate(scale * part.objective.learning_rate(self._updates))
        self._updates += 1
        return part.apply(gradient)

    def _upload(self, sample: Sample | None) -> Any:
        """The sample as tensors on the device; copies only if that is not the CPU."""
        weighted = self._context.prioritized and self._beta is not None
        if sample is None:
            if weighted:
                self._largest(torch.zeros(()))
            return None
        batch: Any = to_tensors(sample) if self._trim is None else self._trim(to_tensors(sample))
        if weighted and self._beta is not None:
            probabilities, size = torch.from_numpy(sample.probabilities), torch.as_tensor(sample.size)
            weights = importance_weights(probabilities, size, self._beta(self._updates), self._largest)
            batch = batch._replace(weights=weights)
        if self._copied is not None:
            device = self._context.device
            batch = batch._make(None if one is None else one.to(device, non_blocking=True) for one in batch)
            self._copied.record()
        return batch

    def _largest(self, weight: Tensor) -> Tensor:
        """The largest importance weight, of all learners' batches."""
        exchange = self._context.exchange
        return weight if exchange is None else gather(exchange, float(weight)).max()

    def _update(self, batch: Any, *due: bool) -> _Updated:
        """One update, all of it on the device; `due` says so of each objective and then of each target network."""
        return self._minimize(batch if self._prepare is None else self._prepare(batch), *due)

    def _update_by_parts(self, batch: Any, divide: Callable[[Any, int], Division], due: Sequence[bool]) -> _Updated:
        """As `_update`, one part after the other. Metrics are means over the parts."""
        whole = divide(batch if self._prepare is None else self._prepare(batch), self._updates - 1)
        made: list[Tensor] = []
        metrics, norms = dict[str, Tensor](), dict[str, Tensor]()  # norms: of all learners, so also without a batch
        for part in whole.batches:
            done = self._run(part, *due).metrics
            if part is None:
                norms = {name: value for name, value in done.items() if name.endswith("gradient_norm")}
            else:
                metrics = done
                made.append(torch.stack([*metrics.values()]))  # copied: a captured update overwrites them
            if whole.enough(done):
                break
        means = dict(zip(metrics, torch.stack(made).mean(0).unbind(), strict=True)) if made else {}
        return _Updated({**norms, **means, **whole.metrics, "minibatches": torch.tensor(float(len(made)))}, None)

    def _minimize(self, batch: Any, *due: bool) -> _Updated:
        metrics: dict[str, Tensor] = {}
        td_error: Tensor | None = None
        for part, is_due in zip(self._parts, due, strict=False):
            if not is_due:
                continue
            name = part.objective.name
            found = None if batch is None else part.gradient(batch)
            if part.mean is None:
                assert found is not None
                gradient = found.vector
            else:
                gradient = part.mean.without_rows() if found is None else part.mean(found.vector, found.rows)
            norm = part.apply(gradient)
            if found is not None:
                metrics |= {f"{name}loss": found.loss, **found.metrics}
                td_error = found.td_error if part is self._parts[0] else td_error
            metrics[f"{name}gradient_norm"] = norm
        if self._context.exchange is not None and self._divide is None:  # else it sees to that itself
            for value_norm in self._value_norms:
                value_norm.agree(self._context.exchange.total)
        for target, is_due in zip(self._targets, due[len(self._parts) :], strict=True):
            if is_due:
                target.move(target.tau)
        return _Updated(metrics, td_error)

    def state(self) -> LearnerState:
        """No copy: save before the next update."""
        tensors: dict[str, Tensor] = {}
        for part in self._parts:
            tensors |= part.optimizer.tensors(f"{part.objective.saved_as}.")
        for name, network in self._networks.items():
            tensors |= module_tensors(network, f"{name}.")
        return LearnerState(tensors, {"learner_updates": self._updates})

    def load_state(self, state: LearnerState) -> None:
        for name, network in self._networks.items():
            load_module(network, state.tensors, f"{name}.")
        self._updates = int(state.scalars["learner_updates"])
        for part in self._parts:
            prefix = f"{part.objective.saved_as}."
            # Older checkpoints have no state of an optimiser that has made no step.
            if self._updates or any(name.startswith(prefix) for name in state.tensors):
                part.optimizer.load(state.tensors, prefix)
        for captured in (self._run, *(part.gradient for part in self._parts)):
            if isinstance(captured, Captured):
                captured.forget()

    def weights_replaced(self) -> None:
        """Target networks become copies, and statistics those that came with the weights."""
        for target in self._targets:
            target.move(1.0)
        if self._prepare is not None:
            self._prepare.weights_replaced()


class _Part:
    """An objective with its parameters and its optimiser."""

    def __init__(self, objective: Objective, context: LearnerContext) -> None:
        self.objective, self._device = objective, context.device.type
        self.flat = FlatParameters(objective.parameters)
        self.optimizer = Optimizer(self.flat.vector, objective.optimizer, objective.epsilon)
        on_gpu = context.device.type == "cuda"
        self.gradient: Callable[[Any], Gradient] = self._gradient
        if context.compile and not on_gpu:
            self.gradient = Compiled(self._gradient)
        self.mean: MeanGradient | None = None
        if context.exchange is not None:
            self.mean = MeanGradient(context.exchange, self.flat.vector, objective.sums)
            if context.compile and on_gpu:
                self.gradient = Captured(self._gradient, context.device)
        # A CUDA graph would keep what autocast remembers of the weights, and never see new ones.
        self._casting = {"enabled": context.autocast, "cache_enabled": not (context.compile and on_gpu)}

    def _gradient(self, batch: Any) -> Gradient:
        with torch.autocast(self._device, torch.bfloat16, **self._casting):
            found = self.objective.loss(batch)
            loss = found.loss
            if loss.dim():
                loss = loss.mean() if batch.weights is None else (batch.weights * loss).mean()
        td_error = None if found.td_error is None else found.td_error.detach()
        metrics = {name: value.detach() for name, value in found.metrics.items()}
        rows = batch.draws if found.rows is None or self.mean is None else found.rows.detach()
        return Gradient(self.flat.gradient(loss), loss.detach(), td_error, metrics, rows)

    def apply(self, gradient: Tensor) -> Tensor:
        """Changes the parameters; returns the norm of the gradient, before it was clipped."""
        bound = self.objective.gradient_bound
        if bound is not None:
            gradient.clamp_(-bound, bound)
        norm = clip_gradient(gradient, self.objective.gradient_clip)
        self.optimizer.step(gradient)
        return norm
