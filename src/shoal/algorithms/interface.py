"""What an algorithm is to the rest of Shoal: one page.

    policy, learner = algorithm.make_policy(...), algorithm.make_learner(...)

    actor                                             learner
    -----                                             -------
    decision = policy.act(obs, state, first, True)    result = learner.step(sample)
    result = env.step(decision.action)                replay.update_priorities(sample.keys, result.priorities)
    writer.append(row | policy.record(outcome))       board.publish(learner.module)

An algorithm imports no Ray, opens no file and starts no process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from shoal.ops import polynomial_schedule
from shoal.replay import Column, Schema, View
from shoal.types import Array, EnvSpec, Sample

Width = Annotated[int, Field(ge=1, le=65_536)]
"""Of a hidden layer."""
Forward = Callable[[torch.Tensor, torch.Tensor], object]
"""A network's forward pass on observations [B, *obs_shape] and actions [B, ...], as they are stored."""
LearningRate = Annotated[float, Field(gt=0, le=1, description="The optimizer's step size at the start.")]

CenterImages = Annotated[
    bool, Field(description="Images: first filters with mean 0, which a bright background cannot switch off.")
]


NormalizeObservations = Annotated[
    bool,
    Field(description="Networks see vectors with mean 0 and deviation 1, by what the learner has drawn."),
]

NormalizeValues = Annotated[
    bool, Field(description="Values are predicted with mean 0 and deviation 1, whatever the size of rewards.")
]


class AlgorithmConfig(BaseModel):
    """Base of every algorithm's hyper-parameters: each declared once, with type, default, range and a line of doc."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: float = Field(0.99, ge=0, le=1, description="Discount per step.")
    network: str | None = Field(None, description="A torso of your own, `module:function`; null: the package's.")
    learning_rate: LearningRate = 1e-4
    learning_rate_end: float = Field(
        0.0, ge=0, le=1, description="The step size after `schedule_updates`; another one falls by the same factor."
    )
    schedule_updates: int = Field(0, ge=0, description="Updates until the step size has fallen; 0 keeps it constant.")
    schedule_power: float = Field(1.0, gt=0, description="1: it falls in a straight line; 2: faster at first.")

    @model_validator(mode="after")
    def _end_is_reached(self) -> Self:
        if self.learning_rate_end and not self.schedule_updates:
            end = f"learning_rate_end = {self.learning_rate_end:g}"
            raise ValueError(f"{end} is never reached, because schedule_updates = 0: set schedule_updates")
        return self

    def schedule(self, learning_rate: float) -> Callable[[int], float]:
        """The step size that starts at `learning_rate`, by the number of updates."""
        end = self.learning_rate_end / self.learning_rate * learning_rate if self.schedule_updates else learning_rate
        return polynomial_schedule(learning_rate, end, self.schedule_updates, self.schedule_power)


@dataclass(frozen=True)
class PolicyContext:
    """Which of the run's actors a policy serves; exploration may differ between actors."""

    index: int = 0
    actors: int = 1
    lanes: int = 1
    seed: int = 0
    record_features: bool = False
    """Whether a selector compares what the network made of the observations."""


class Decision(NamedTuple):
    """Actions, one per lane."""

    action: Array
    """[N, *action_shape]"""
    state: Any
    """The recurrent state to carry on; () when there is none."""


class Outcome(NamedTuple):
    """The environment's answer, one entry per lane."""

    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    boundary: npt.NDArray[np.uint8]
    """Not STEP where the action was ignored."""


class Policy(Protocol):
    """Acts in an actor's process, and records what its algorithm needs beside the stream."""

    @property
    def module(self) -> nn.Module:
        """The network whose weights come from the board."""

    def initial_state(self, lanes: int) -> Any:
        """The recurrent state at an episode's start; () when there is none."""

    def act(self, obs: Array, state: Any, first: npt.NDArray[np.bool_], explore: bool) -> Decision:
        """Chooses one action per lane. `first` marks lanes whose episode begins with this observation."""

    def record(self, outcome: Outcome) -> Mapping[str, Array]:
        """Called once per step after the environment answered: the algorithm's own columns of this row."""

    def reset(self) -> None:
        """The stream was broken: forget the steps before."""


class ServedPolicy(Policy, Protocol):
    """A policy for the lanes of several actors, of which not all ask at once."""

    def act(
        self,
        obs: Array,
        state: Any,
        first: npt.NDArray[np.bool_],
        explore: bool,
        lanes: npt.NDArray[np.int64] | None = None,
    ) -> Decision:
        """As `Policy.act`; `lanes` [N] says which of its lanes these are. None: all."""


class StepResult(NamedTuple):
    """The result of one update."""

    metrics: Mapping[str, torch.Tensor]
    """Scalars, left on the device until somebody reports them."""
    priorities: npt.NDArray[np.float32] | None
    """[B] new priorities of the sample's rows, or None."""


class LearnerState(NamedTuple):
    """All that a learner needs to continue later."""

    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]


class Exchange(Protocol):
    """What the learners of one run tell each other within an update.

    All of them make the same calls in the same order, also one that has no batch: its share is zeros.
    """

    rank: int
    """Which of them this is."""
    ranks: int
    """How many there are."""

    def total(self, vector: torch.Tensor) -> torch.Tensor:
        """Replaces a tensor by its sum over all learners, and returns it. Every learner gets the same bits."""


class Learner(Protocol):
    """Updates the weights from samples."""

    published_whole: bool
    """Whether `module` is all that is learned; targets and optimizers may be older. False: there are also critics, say,
    which fit only the policy of the same update."""
    watched: Mapping[str, Forward]
    """Learned networks by name, whose activations are looked at for units that are dead."""

    @property
    def module(self) -> nn.Module:
        """The network the policies act with."""

    def step(self, sample: Sample | None) -> StepResult:
        """One update. None: this learner has no batch, and takes part in the update of the others."""

    def state(self) -> LearnerState:
        """Everything that makes the next update; no copy, so save it before the next one."""

    def load_state(self, state: LearnerState) -> None:
        """The inverse of `state`."""

    def weights_replaced(self) -> None:
        """Somebody else changed the weights of `module`: align what follows them, such as a target network."""


@dataclass(frozen=True)
class LearnerContext:
    """Where a learner works."""

    device: torch.device
    autocast: bool = False
    """Compute in bfloat16 where it is safe."""
    compile: bool = False
    """On a GPU, capture the update as a CUDA graph; on a CPU, compile its gradients."""
    prioritized: bool = True
    """Whether anybody wants priorities back."""
    exchange: Exchange | None = None
    """With the other learners of the run; None: there is one."""


class PushRules(NamedTuple):
    """How gradients go from the actors, which compute them, to the learner, which applies them."""

    k: int
    """Gradients in one update."""
    on_full: Literal["wait", "newest"]
    """Whether an actor waits until its gradient was applied, or goes on and replaces one that was not taken."""
    max_staleness: int | None
    """Gradients of weights that are more versions old are dropped; None: none are."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm, as the registry knows it.

    Attributes:
        name: as on the command line.
        summary: one line for `shoal algorithms`.
        config: its hyper-parameters.
        check: refuses an environment it cannot learn.
        check_replay: refuses selectors, by their types, that do nothing for it.
        columns: what its policy records beside the stream.
        make_view: how it reads rows.
        make_policy, make_learner: its parts.
        defaults: settings of other sections that suit it, for instance `{"learner": {"batch_size": 512}}`.
        suited: settings of any section that suit an environment, its own (`algorithm`) among them. The defaults of
            `config` are the papers'.
        feature_column: what selectors that compare features read; None: its policy records none.
        steps_per_draw: environment steps learned from in one draw: 1 for transitions, more for sequences.
        served: its policy can act in another process: what it records does not depend on what came of an action.
        synchronous: it can learn from rollouts, with a barrier between actors and learner: it learns from sequences.
        pushes: actors compute its gradients, and its learner is a `PushLearner`: the rules, from `config` and the
            number of actors. None: the learner computes them.
        actions: which actions it learns, to name it to those who chose one that does not fit.
        agents: it learns environments of several agents (`EnvSpec.agents`), and only those.
    """

    name: str
    summary: str
    config: type[AlgorithmConfig]
    check: Callable[[EnvSpec], None]
    columns: Callable[[Any, EnvSpec], tuple[Column, ...]]
    make_view: Callable[[Any, Schema], View]
    make_policy: Callable[[Any, EnvSpec, PolicyContext], Policy]
    make_learner: Callable[[Any, EnvSpec, LearnerContext], Learner]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    suited: Callable[[EnvSpec], Mapping[str, Any]] = lambda spec: {}
    check_replay: Callable[[Any, tuple[str, ...]], None] = lambda config, selectors: None
    feature_column: Callable[[Any, EnvSpec], Column] | None = None
    steps_per_draw: Callable[[Any], int] = lambda config: 1
    served: bool = False
    synchronous: bool = False
    pushes: Callable[[Any, int], PushRules] | None = None
    actions: Literal["discrete", "continuous", "any"] = "any"
    agents: bool = False
