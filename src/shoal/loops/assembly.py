"""Wiring: which parts a run is made of. Each role is built in the process it lives in, from the settings and the
run's folders.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.algorithms.interface import LearnerContext, Policy, Seat
from shoal.envs import Env, describe_env, make_env
from shoal.errors import CheckpointError, ConfigError
from shoal.loops.actor import Actor
from shoal.loops.checkpoint import list_checkpoints, load_checkpoint
from shoal.loops.evaluator import Evaluator
from shoal.loops.settings import RunSettings
from shoal.loops.weights import FlatModule, WeightBoard
from shoal.replay import Ledger, RateLimiter, Schema, ShardInfo, ShardReader, ShardWriter
from shoal.replay import step_schema as make_schema
from shoal.types import EnvSpec

if TYPE_CHECKING:
    from shoal.loops.learner import LearnerLoop


@dataclass(frozen=True)
class Places:
    """Where a run's parts meet."""

    replay: Path
    """Shards, ledger and weight board."""
    checkpoints: Path

    def shard(self, index: int) -> Path:
        """The shard of one actor."""
        return self.replay / f"shard_{index:03d}"

    def shards(self, settings: RunSettings) -> list[Path]:
        """The shards of all actors."""
        return [self.shard(index) for index in range(settings.actors)]


def seed_of(settings: RunSettings, role: str, index: int = 0, again: int = 0) -> int:
    """A seed for one role: roles, actors and restarts must not repeat each other's random numbers."""
    names = {"actor": 1, "policy": 2, "learner": 3, "evaluator": 4, "replay": 5}
    sequence = np.random.SeedSequence([settings.seed, names[role], index, again])
    return int(sequence.generate_state(1)[0]) % (2**31 - 1)


def describe(settings: RunSettings) -> EnvSpec:
    """The environment's description, refused if the algorithm cannot learn it."""
    spec = describe_env(settings.env)
    settings.definition.check(spec)
    return spec


def make_run_schema(settings: RunSettings, spec: EnvSpec) -> Schema:
    """The columns of the run's shards."""
    return make_schema(spec, settings.definition.columns(settings.algorithm, spec))


def rows_per_shard(settings: RunSettings) -> int:
    """Ring rows of each actor's shard."""
    return max(64, -(-settings.replay.capacity // (settings.actors * settings.env.lanes)))


def replay_bytes(settings: RunSettings, spec: EnvSpec) -> int:
    """What all shards together take."""
    return (
        ShardInfo(make_run_schema(settings, spec), rows_per_shard(settings), settings.env.lanes).nbytes
        * settings.actors
    )


def make_limiter(settings: RunSettings) -> RateLimiter:
    """When to insert and when to sample."""
    return RateLimiter(settings.replay.min_size, settings.replay.samples_per_insert, settings.tolerance)


def choose_device(wanted: str, spec: EnvSpec) -> torch.device:
    """The learner's device. By itself it takes a GPU for images only: small networks are faster on a CPU."""
    if wanted == "auto":
        return torch.device("cuda" if len(spec.obs_shape) >= 3 and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"learner.device = {wanted!r} is no device; use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"learner.device = {wanted!r}, but this machine has no usable GPU; use auto or cpu.")
    return device


def make_policy(settings: RunSettings, spec: EnvSpec, seat: Seat) -> Policy:
    """A policy in the arithmetic the actors use."""
    policy = settings.definition.make_policy(settings.algorithm, spec, seat)
    if settings.actor.precision == "bfloat16":
        policy.module.to(torch.bfloat16)
    return policy


def build_actor(settings: RunSettings, places: Places, index: int) -> Actor:
    """One actor."""
    _limit_threads(settings.actor.threads)
    spec = describe_env(settings.env)
    writer = ShardWriter(places.shard(index))
    restarts = writer.epoch - 1
    seat = Seat(index, settings.actors, settings.env.lanes, seed_of(settings, "policy", index, restarts))
    policy = make_policy(settings, spec, seat)
    return Actor(
        index,
        partial(_make_actor_env, settings, index, restarts),
        policy,
        writer,
        WeightBoard(places.replay / "weights.bin", FlatModule(policy.module).size),
        Ledger(places.replay, places.shards(settings)),
        make_limiter(settings),
        settings.actor,
    )


def _make_actor_env(settings: RunSettings, index: int, restarts: int, errors: int) -> Any:
    return make_env(settings.env, settings.env.lanes, seed_of(settings, "actor", index, restarts * 1000 + errors))


def build_learner(settings: RunSettings, places: Places) -> LearnerLoop:
    """The learner, going on from its last checkpoint if there is one."""
    # Here, so that the other roles start without numba: see `shoal.replay`.
    from shoal.loops.group import Group
    from shoal.loops.learner import LearnerLoop
    from shoal.replay import Replay

    _limit_threads(settings.learner.threads)
    spec = describe_env(settings.env)
    device = choose_device(settings.learner.device, spec)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: the range of float32 at a multiple of its speed
        torch.backends.cudnn.benchmark = True  # batches have one shape
    torch.manual_seed(seed_of(settings, "learner"))
    prioritized = any(part.type == "prioritized" for part in settings.replay.selectors)
    context = LearnerContext(device, settings.learner.compile, prioritized)
    learner = settings.definition.make_learner(settings.algorithm, spec, context)
    schema = make_run_schema(settings, spec)
    ledger = Ledger(places.replay, places.shards(settings))
    readers = [ShardReader(path) for path in places.shards(settings)]
    view = settings.definition.make_view(settings.algorithm, schema)
    seed = seed_of(settings, "replay", again=ledger.updates)
    group = (
        Group(settings, spec, places.shards(settings), places.checkpoints.parent.name)
        if settings.share.registry
        else None
    )
    replay = Replay(
        readers,
        settings.replay.make_selector(),
        view,
        settings.learner.batch_size,
        ring=settings.learner.prefetch + 2,
        seed=seed,
        threads=settings.replay.threads,
        guests=partial(group.guests, readers, view, seed) if group else None,
        **({"allocate": _pinned} if device.type == "cuda" else {}),
    )
    board = WeightBoard(places.replay / "weights.bin", FlatModule(learner.module).size)
    parts = (learner, replay, board, ledger, make_limiter(settings), settings.learner, places.checkpoints)
    loop = LearnerLoop(*parts, group)
    try:
        loop.restore(load_checkpoint(places.checkpoints))
    except CheckpointError as error:
        loop.adopt_board(str(error) if list_checkpoints(places.checkpoints) else None)
    return loop


def build_evaluator(settings: RunSettings, places: Places) -> Evaluator:
    """The evaluator, on the true task: nothing clipped, no life-loss ends."""
    _limit_threads(settings.actor.threads)
    spec = describe_env(settings.env)
    lanes = min(settings.evaluation.lanes, settings.evaluation.episodes)

    def make(errors: int) -> Env:
        return make_env(settings.env, lanes, seed_of(settings, "evaluator", again=errors), training=False)

    policy = settings.definition.make_policy(settings.algorithm, spec, Seat(lanes=lanes))
    board = WeightBoard(places.replay / "weights.bin", FlatModule(policy.module).size)
    return Evaluator(make, policy, board, Ledger(places.replay, places.shards(settings)), places.checkpoints)


def _limit_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def _pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in page-locked memory, which a GPU copies from while the CPU works on."""
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.zeros(shape, dtype=like.dtype, pin_memory=True).numpy()
