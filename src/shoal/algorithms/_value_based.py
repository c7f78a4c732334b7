"""What the value-based algorithms share: an epsilon-greedy policy that prices its own steps, and a learner around a
loss function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms.flat import FlatParameters
from shoal.algorithms.interface import (
    AlgorithmConfig,
    Decision,
    LearnerContext,
    LearnerState,
    Outcome,
    PolicyContext,
    StepResult,
    Width,
)
from shoal.algorithms.kinds import require_kind
from shoal.algorithms.state import flatten_optimizer, load_module, module_tensors, restore_optimizer
from shoal.ops import epsilon_greedy, epsilon_ladder, importance_weights, linear_schedule
from shoal.replay import Column, NStepView, Schema, View
from shoal.types import Array, EnvSpec, Sample, Transition


class ValueConfig(AlgorithmConfig):
    """Hyper-parameters common to the Ape-X family of Q-learners."""

    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    n_step: int = Field(3, ge=1, le=64, description="Steps of reward before the bootstrap.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Adam's step size.")
    adam_epsilon: float = Field(1.5e-4, gt=0, description="Adam's epsilon.")
    gradient_clip: float = Field(40.0, gt=0, description="Largest norm of the gradient.")
    target_period: int = Field(2_500, ge=1, description="Updates between two copies into the target network.")
    hidden: tuple[Width, ...] = Field((256, 256), description="Layer widths for vector observations.")
    dueling: bool = Field(True, description="Value and advantage streams.")
    beta_start: float = Field(0.4, ge=0, le=1, description="Exponent of the importance weights at the start.")
    beta_updates: int = Field(100_000, ge=1, description="Updates until that exponent has grown to 1.")
    epsilon_base: float = Field(0.4, gt=0, le=1, description="Exploration of the most curious lane.")
    epsilon_exponent: float = Field(7.0, ge=0, description="How much less the least curious lane explores.")


def require_discrete(spec: EnvSpec, algorithm: str) -> None:
    """Refuses continuous actions."""
    require_kind(spec, algorithm, "discrete")


def priority_column(config: ValueConfig, spec: EnvSpec) -> tuple[Column, ...]:
    """What the policy records beside the stream."""
    return (Column("priority", "float32"),)


def make_view(config: Any, schema: Schema) -> View:
    """n-step transitions."""
    return NStepView(schema, config.n_step, config.gamma)


DEFAULTS: Mapping[str, Any] = {
    "learner": {"batch_size": 512, "prefetch": 2},
    "replay": {"selectors": [{"type": "prioritized", "alpha": 0.6}], "capacity": 200_000, "min_size": 10_000},
}
"""Settings of other sections that suit the family."""


class InitialPriorities:
    """|n-step TD error| of each lane's recent steps, from action values the actor computed anyway (Ape-X).

    The error of the transition that began n rows ago is known when the next action values are: it is recorded in the
    present row, which is also the row that completes the transition for a reader.
    """

    def __init__(self, lanes: int, n: int, gamma: float) -> None:
        self._n, self._gamma, self._oldest = n, gamma, 0
        self._taken = np.zeros((n, lanes), np.float32)
        self._best = np.zeros((n, lanes), np.float32)
        self._reward = np.zeros((n, lanes), np.float32)
        self._terminated = np.zeros((n, lanes), np.bool_)
        self._truncated = np.zeros((n, lanes), np.bool_)

    def reset(self) -> None:
        """Forgets all steps; what is returned until n new ones came belongs to rows no sample starts at."""
        for history in (self._taken, self._best, self._reward, self._terminated, self._truncated):
            history[:] = 0

    def push(self, taken: Array, best: Array, outcome: Outcome) -> npt.NDArray[np.float32]:
        """Takes one step of all lanes; returns the priority of the step n before it.

        Args:
            taken: value of the action taken, per lane.
            best: value of the best action there.
            outcome: what the environment answered.
        """
        order = [(self._oldest + k) % self._n for k in range(self._n)]
        # From the newest step back: where an episode ended, what follows belongs to another one.
        value = best.astype(np.float32)
        for k in range(self._n - 1, -1, -1):
            row = order[k]
            following = self._best[order[k + 1]] if k + 1 < self._n else best
            value = np.where(self._truncated[row], following, value)
            value = np.where(self._terminated[row], np.float32(0.0), value)
            value = self._reward[row] + self._gamma * value
        priority: npt.NDArray[np.float32] = np.abs(value - self._taken[order[0]]).astype(np.float32)
        row = self._oldest
        self._taken[row], self._best[row] = taken, best
        self._reward[row] = outcome.reward
        self._terminated[row], self._truncated[row] = outcome.terminated, outcome.truncated
        self._oldest = (row + 1) % self._n
        return priority


class EpsilonGreedyPolicy:
    """Greedy but for one random action in 1/epsilon; every lane of every actor has its own epsilon (the Ape-X
    ladder).
    """

    def __init__(
        self,
        network: nn.Module,
        action_values: Callable[[Tensor], Tensor],
        config: ValueConfig,
        spec: EnvSpec,
        seat: PolicyContext,
    ) -> None:
        """Args:
        network: maps observations to something `action_values` turns into [N, A].
        action_values: identity for Q-networks, the mean over quantiles for distributional ones.
        config: hyper-parameters.
        spec: the environment.
        seat: which actor this is.
        """
        self._network, self._values = network.eval(), action_values
        self._num_actions = spec.num_actions
        ladder = epsilon_ladder(seat.actors * seat.lanes, config.epsilon_base, config.epsilon_exponent)
        self._epsilon = ladder[seat.index :: seat.actors]  # each actor gets its share of curious and careful lanes
        self._rng = np.random.default_rng(seat.seed)
        self._priorities = InitialPriorities(seat.lanes, config.n_step, config.gamma)
        self._taken: Array = np.zeros(seat.lanes, np.float32)
        self._best: Array = np.zeros(seat.lanes, np.float32)

    @property
    def module(self) -> nn.Module:
        """The Q-network."""
        return self._network

    def initial_state(self, lanes: int) -> Any:
        """No recurrence."""
        return ()

    @torch.inference_mode()
    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        """See `Policy.act`."""
        values = self._values(self._network(torch.from_numpy(obs))).float().numpy()  # [N, A]
        action = values.argmax(axis=1)
        self._best = values.max(axis=1)
        if explore:
            action = epsilon_greedy(action, self._epsilon, self._num_actions, self._rng)
        self._taken = values[np.arange(len(action)), action]
        return Decision(action, state)

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        """The initial priority of the step n before this one."""
        return {"priority": self._priorities.push(self._taken, self._best, outcome)}

    def reset(self) -> None:
        """See `Policy.reset`."""
        self._priorities.reset()


class Loss(NamedTuple):
    """What a value-based loss gives, per sample: nothing is averaged yet."""

    loss: Tensor
    """[B]"""
    td_error: Tensor
    """[B] its size becomes the priority."""
    q_mean: Tensor


class Batch(NamedTuple):
    """A batch of transitions on the learner's device."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor


def to_batch(data: Transition, device: torch.device) -> Batch:
    """Wraps a prepared batch; copies only when the device is not the CPU."""
    arrays = (data.obs, data.action, data.reward, data.discount, data.next_obs)
    tensors = (torch.from_numpy(array) for array in arrays)
    return Batch(*(t.to(device, non_blocking=True) for t in tensors) if device.type != "cpu" else tensors)


LossFunction = Callable[[nn.Module, nn.Module, Batch], Loss]


class ValueLearner:
    """Minimises a loss with a target network, importance weights and clipped gradients."""

    published_whole = True

    def __init__(
        self, network: nn.Module, target: nn.Module, loss: LossFunction, config: ValueConfig, context: LearnerContext
    ) -> None:
        """Args:
        network: the online network; moved to the context's device.
        target: another of the same shape; becomes a copy.
        loss: the algorithm's pure loss.
        config: hyper-parameters.
        context: device and planned length.
        """
        self._device, self._loss, self._config = context.device, loss, config
        self._network = network.to(context.device)
        self._target = target.to(context.device).requires_grad_(False)
        self.weights_replaced()
        self._parameters = FlatParameters(self._network)
        self._optimizer = torch.optim.Adam(
            [self._parameters.vector], lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self._beta = linear_schedule(config.beta_start, 1.0, config.beta_updates)
        self._updates = 0

    @property
    def module(self) -> nn.Module:
        """The online network."""
        return self._network

    def step(self, sample: Sample) -> StepResult:
        """See `Learner.step`."""
        assert isinstance(sample.data, Transition)
        batch = to_batch(sample.data, self._device)
        output = self._loss(self._network, self._target, batch)
        probabilities, size = torch.from_numpy(sample.probabilities), torch.as_tensor(sample.size)
        weights = importance_weights(probabilities, size, self._beta(self._updates))
        loss = (weights.to(self._device) * output.loss).mean()
        self._parameters.zero_grad()
        loss.backward()
        norm = self._parameters.clip_gradients(self._config.gradient_clip)
        self._optimizer.step()
        self._updates += 1
        if self._updates % self._config.target_period == 0:
            self.weights_replaced()
        metrics = {"loss": loss.detach(), "q_mean": output.q_mean.detach(), "gradient_norm": norm.detach()}
        return StepResult(metrics, output.td_error.detach().abs().float().cpu().numpy())

    def state(self) -> LearnerState:
        """See `Learner.state`."""
        tensors, scalars = flatten_optimizer(self._optimizer, "optimizer.")
        tensors |= module_tensors(self._network, "policy.") | module_tensors(self._target, "target.")
        return LearnerState(tensors, {"optimizer": scalars, "learner_updates": self._updates})

    def load_state(self, state: LearnerState) -> None:
        """See `Learner.load_state`."""
        load_module(self._network, state.tensors, "policy.")
        load_module(self._target, state.tensors, "target.")
        restore_optimizer(self._optimizer, state.tensors, state.scalars["optimizer"], "optimizer.")
        self._updates = int(state.scalars["learner_updates"])

    def weights_replaced(self) -> None:
        """The target network becomes a copy of the online one."""
        self._target.load_state_dict(self._network.state_dict())
