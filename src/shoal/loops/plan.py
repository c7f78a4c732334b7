"""Plan: what is known before a run's roles start.

The driver makes it once, which takes an environment to look at, and sends it to every role. It is plain data.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.interface import PushRules
from shoal.algorithms.kinds import require_agents
from shoal.envs import describe_env
from shoal.errors import ConfigError
from shoal.loops.mailbox import Layout
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.replay import Column, RateLimiter, Schema, Span, step_schema
from shoal.replay.back_pressure import SPARE_ROWS, queue_rows
from shoal.types import EnvSpec

QUEUED_BATCHES = 2
"""What a queue without a capacity of its own holds: its part of a batch being learned from, and of one ready."""
QUEUED_STEPS = 800
"""What it also holds for each outpost, in steps: what a parcel brings, while the learner takes as much."""
MOST_QUEUED_BATCHES = 6
"""What it holds at most for that: with 12 batches of 128 steps, IMPALA on CartPole needed five times as many steps."""
_SEED_NUMBERS = {"actor": 1, "policy": 2, "learner": 3, "evaluator": 4, "replay": 5, "inference": 6}


@dataclass(frozen=True)
class Plan:
    """Settings, and what follows from them and from the environment; see `make_plan`."""

    settings: RunSettings
    spec: EnvSpec
    schema: Schema
    """Columns of the run's shards."""
    span: Span
    """Rows that the algorithm's view reads for one draw."""
    placed: RunPaths | None = None
    """None while the replay has no folder yet: its size is part of the plan."""
    outposts: tuple[tuple[int, ...], ...] = ()
    """The actors of each outpost, which are on other nodes than the learner; see `courier`."""
    outpost: int | None = None
    """Where the role is that has this plan; None: at home, beside the learner."""
    avoided: frozenset[str] = frozenset()
    """Nodes of the cluster, by Ray's ids, that cannot take actors."""

    def at(self, paths: RunPaths) -> Plan:
        """This plan, with the run's folders."""
        return replace(self, placed=paths)

    def with_actors(self, actors: int) -> Plan:
        """This plan with so many actors, each with a shard as large as before: `replay.capacity` changes with them."""
        capacity = self.rows_per_shard * self.settings.env.lanes * actors
        replay = self.settings.replay.model_copy(update={"capacity": capacity})
        return replace(self, settings=self.settings.model_copy(update={"actors": actors, "replay": replay}))

    def in_turns(self) -> Plan:
        """This plan, for roles that take turns: a prefetching thread would make the order of draws a race."""
        learner = self.settings.learner.model_copy(update={"prefetch": 0})
        return replace(self, settings=self.settings.model_copy(update={"learner": learner}))

    @property
    def paths(self) -> RunPaths:
        """The run's folders."""
        assert self.placed is not None, "this plan has no folders yet: see `at`"
        return self.placed

    @property
    def shards(self) -> list[Path]:
        """The folder of each actor's shard."""
        return [self.paths.shard(index) for index in range(self.settings.actors)]

    @property
    def actors_here(self) -> Sequence[int]:
        """The actors whose folder this plan names: of the outpost, or those at home."""
        if self.outpost is not None:
            return self.outposts[self.outpost]
        away = {actor for actors in self.outposts for actor in actors}
        return [actor for actor in range(self.settings.actors) if actor not in away]

    @property
    def boards_here(self) -> Sequence[int]:
        """The actors whose gradient boards are in this plan's folder: at home, mirrors of the outposts' too."""
        return range(self.settings.actors) if self.outpost is None else self.actors_here

    @property
    def lanes(self) -> int:
        """Environments of all actors together."""
        return self.settings.actors * self.settings.env.lanes

    @property
    def rows_per_shard(self) -> int:
        """Ring rows of each actor's shard."""
        return max(64, -(-self.settings.replay.capacity // self.lanes))

    def learner_actors(self, learner: int) -> range:
        """The actors whose shards a learner reads."""
        return range(learner, self.settings.actors, self.settings.learners)

    def learner_share(self, learner: int, count: int) -> int:
        """A learner's part of some draws."""
        return learner_draws(self.settings, count)[learner]

    def fewest_draws(self, learner: int) -> int | None:
        """Draws of a learner's smallest batch; None: all are the largest."""
        rollout, least = self.settings.replay.rollout, self.settings.learner.batch.min
        if rollout is not None:
            return math.ceil(rollout.share * len(self.learner_actors(learner))) * self.settings.env.lanes
        return None if least is None else max(1, self.learner_share(learner, least))

    @property
    def queue_capacity(self) -> int:
        """Sequences that a queue without a capacity of its own holds."""
        most = self.settings.most_draws
        fresh = (round(part.ratio * most) for part in self.settings.replay.selectors if part.is_queue)
        batch, on_the_way = max(1, max(fresh, default=0)), QUEUED_STEPS * len(self.outposts) // self.span.stride
        return max(QUEUED_BATCHES * batch, min(MOST_QUEUED_BATCHES * batch, on_the_way))

    @property
    def queue_rows(self) -> int | None:
        """Rows that an actor may write ahead of the queue's reader; None when nothing holds it back."""
        queue, rollout = self.settings.replay.queue, self.settings.replay.rollout
        if queue is None and rollout is None:
            return None
        before = self.span.before + self.span.overlap
        capacity = self.lanes if queue is None else queue.capacity or self.queue_capacity
        return queue_rows(capacity, self.span.stride, self.lanes, before)

    @property
    def pushes(self) -> PushRules | None:
        """How actors push gradients to the learner; None: it computes them itself."""
        rules = self.settings.definition.pushes
        return None if rules is None else rules(self.settings.algorithm, self.settings.actors)

    @property
    def mailbox(self) -> Layout:
        """What an actor and the inference server exchange."""
        obs = Column("obs", self.spec.obs_dtype, self.spec.obs_shape)
        answer = tuple(self.schema[name] for name in ("action", *self.schema.extras))
        return Layout(self.settings.env.lanes, obs, answer)

    # A role asks for its device in its own process: Ray may hide the GPUs from it.

    def device_of_learner(self, learner: int = 0) -> torch.device:
        """Where one of the learners computes. To apply gradients takes no GPU, and to bring them there takes longer."""
        if self.pushes is not None:
            return torch.device("cpu")
        wanted = self.settings.learner.device
        return choose_device(wanted if isinstance(wanted, str) else wanted[learner], self.spec)

    def require_devices(self) -> torch.device:
        """The (first) learner's device. Refuses GPUs that are not there. For the driver, which sees all of them."""
        devices = [self.device_of_learner(one) for one in range(self.settings.learners)]
        for one in devices:
            if one.type == "cuda" and (one.index or 0) >= (count := torch.cuda.device_count()):
                raise ConfigError(
                    f"learner.device = {str(one)!r}, but this machine has {count} GPU{'s' * (count > 1)}, counted from "
                    "cuda:0: name one of them; several learners may share one."
                )
        return devices[0]

    @property
    def needs_gpu(self) -> bool:
        """Whether the settings name one, whatever this machine has."""
        return any(one.startswith("cuda") for one in (*self._wanted_devices, self.settings.evaluation.policy_device))

    @property
    def likes_gpu(self) -> bool:
        """Whether learner or inference server would use one if there is one."""
        return self.spec.sees_images and "auto" in self._wanted_devices

    @property
    def _wanted_devices(self) -> list[str]:
        learner = self.settings.learner.device
        learners = [] if self.pushes is not None else [learner] if isinstance(learner, str) else list(learner)
        server = self.settings.actor.inference_device if self.settings.actor.inference == "served" else "auto"
        return learners if server == "auto" else [*learners, server]  # auto: the learner's

    @property
    def inference_device(self) -> torch.device:
        """Where the inference server computes."""
        wanted = self.settings.actor.inference_device
        if wanted == "auto" and self.outpost is not None:  # a node without the learner's GPU
            return torch.device("cuda" if self.spec.sees_images and torch.cuda.is_available() else "cpu")
        if wanted == "auto":
            return self.device_of_learner()
        return choose_device(wanted, self.spec, "actor.inference_device")

    @property
    def evaluation_device(self) -> torch.device:
        """Where the evaluator computes. `auto` takes a GPU for images only, and only if the run has one at work."""
        wanted, served = self.settings.evaluation.policy_device, self.settings.actor.inference == "served"
        device = choose_device(wanted, self.spec, "evaluation.policy_device")
        if wanted != "auto" or device.type == "cpu":
            return device
        used = [self.device_of_learner(), *([self.inference_device] if served else [])]
        return device if any(one.type == "cuda" for one in used) else torch.device("cpu")

    def seed(self, role: str, index: int = 0, again: int = 0, resumed: int = 0) -> int:
        """A seed for one role: roles, actors, restarts and resumptions must not repeat each other's random numbers."""
        number = _SEED_NUMBERS.get(role, zlib.crc32(role.encode()))  # `hash` would differ between processes
        # What restarts are counted by may be gone when a run is resumed, so resumptions are counted for themselves.
        entropy = [self.settings.seed, number, index, again, *([resumed] if resumed else [])]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) % (2**31 - 1)


def make_plan(settings: RunSettings, paths: RunPaths | None = None) -> Plan:
    """Makes the environment once, to look at it, and works out what the roles need to know.

    Raises:
        UnknownName: no environment has this id.
        ConfigError: the algorithm cannot learn it, or has no features to compare.
        EnvError: it could not be made.
    """
    algorithm, spec = settings.definition, describe_env(settings.env)
    require_agents(spec, algorithm)
    algorithm.check(spec)
    columns = algorithm.columns(settings.algorithm, spec)
    if settings.replay.compares_features and algorithm.feature_column is None:
        raise ConfigError(
            f"replay.selectors compares features, which {settings.algo} does not have: use uniform, newest or "
            "prioritized, or an algorithm that does (impala, impact)."
        )
    if settings.replay.records_features and algorithm.feature_column is not None:
        columns += (algorithm.feature_column(settings.algorithm, spec),)
    schema = step_schema(spec, columns)
    return Plan(settings, spec, schema, algorithm.make_view(settings.algorithm, schema).span, paths)


def learner_draws(settings: RunSettings, count: int) -> list[int]:
    """How some draws are divided among the learners: as their shards are, so that all rows are drawn equally often."""
    read = np.array([len(range(one, settings.actors, settings.learners)) for one in range(settings.learners)])
    return list(map(int, np.diff(count * np.cumsum([0, *read]) // settings.actors)))


def make_limiter(settings: RunSettings) -> RateLimiter:
    """When to insert and when to sample."""
    return RateLimiter(settings.replay.min_size, settings.replay.samples_per_insert, settings.tolerance)


def choose_device(wanted: str, spec: EnvSpec, setting: str = "learner.device") -> torch.device:
    """A role's device, as `setting` says. `auto` takes a GPU for images only: small networks are faster on a CPU."""
    if wanted == "auto":
        return torch.device("cuda" if spec.sees_images and torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{setting} = {wanted!r}, but this machine has no usable GPU; use auto or cpu.")
    if device.type not in ("cpu", "cuda"):  # mps, xpu, ...: whether it works depends on how torch was built
        try:
            torch.empty(1, device=device).cpu()
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            raise ConfigError(
                f"{setting} = {wanted!r} cannot be used: this PyTorch finds no such device here. Use auto or cpu."
            ) from error
    return device


def require_servable(settings: RunSettings) -> None:
    """Refuses `actor.inference = served` where it cannot be."""
    if settings.actor.inference == "local":
        return
    if not settings.definition.served:
        able = ", ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.served)
        raise ConfigError(
            f"served does not work with {settings.algo}, whose actors need the policy itself: use local, or one of "
            f"{able}."
        )
    if settings.runtime == "inline":
        raise ConfigError("served needs a process of its own, and runtime = inline has only one: use local, or ray.")


def require_room_for_queue(plan: Plan) -> None:
    """Refuses a queue that the shards are too short for."""
    if plan.queue_rows is not None and (wanted := plan.queue_rows + SPARE_ROWS) > plan.rows_per_shard:
        settings = plan.settings
        raise ConfigError(
            f"The queue may hold {wanted} rows of each of {settings.actors} shards, which have {plan.rows_per_shard}: "
            f"raise replay.capacity = {settings.replay.capacity}, or lower the queue's own capacity."
        )
