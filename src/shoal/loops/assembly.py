"""Wiring: which parts a run is made of. Each role is built in the process it lives in, from the settings and the
run's folders.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from shoal.algorithms import ALGORITHMS
from shoal.algorithms.interface import LearnerContext, Policy, PolicyContext
from shoal.envs import Env, describe_env, make_env
from shoal.errors import ConfigError
from shoal.loops.actor import Actor
from shoal.loops.evaluator import Evaluator
from shoal.loops.features import BoardFeatures
from shoal.loops.freed_memory import keep_freed_memory
from shoal.loops.inference import InferenceServer, Movable
from shoal.loops.mailbox import Layout, Mailbox
from shoal.loops.remote_policy import RemotePolicy
from shoal.loops.run_paths import RunPaths as RunPaths
from shoal.loops.settings import RunSettings
from shoal.loops.weights import BoardModule
from shoal.networks.continuous import ObservationNorm
from shoal.replay import Column, Ledger, LedgerWord, RateLimiter, Schema, ShardReader, ShardWriter, Span
from shoal.replay import step_schema as make_schema
from shoal.replay.back_pressure import SPARE_ROWS, BackPressure, queue_rows
from shoal.replay.pace import Pace, QueuePace, RatePace
from shoal.types import EnvSpec

if TYPE_CHECKING:
    from shoal.loops.learner import LearnerLoop

QUEUED_BATCHES = 2
"""What a queue without a capacity of its own holds: its part of a batch being learned from, and of one ready."""


def seed_of(settings: RunSettings, role: str, index: int = 0, again: int = 0, resumed: int = 0) -> int:
    """A seed for one role: roles, actors, restarts and resumptions must not repeat each other's random numbers."""
    names = {"actor": 1, "policy": 2, "learner": 3, "evaluator": 4, "replay": 5, "inference": 6}
    # What restarts are counted by may be gone when a run is resumed, so that is counted for itself.
    sequence = np.random.SeedSequence([settings.seed, names[role], index, again, *([resumed] if resumed else [])])
    return int(sequence.generate_state(1)[0]) % (2**31 - 1)


def describe(settings: RunSettings) -> EnvSpec:
    """The environment's description, refused if the algorithm cannot learn it."""
    spec = describe_env(settings.env)
    settings.definition.check(spec)
    return spec


def make_run_schema(settings: RunSettings, spec: EnvSpec) -> Schema:
    """The columns of the run's shards."""
    columns = settings.definition.columns(settings.algorithm, spec)
    feature = settings.definition.feature_column
    if settings.replay.compares_features and feature is None:
        raise ConfigError(
            f"replay.selectors compares features, which {settings.algo} does not have: use uniform, newest or "
            "prioritized, or an algorithm that does (impala, impact)."
        )
    if settings.replay.records_features and feature is not None:
        columns += (feature(settings.algorithm, spec),)
    return make_schema(spec, columns)


def rows_per_shard(settings: RunSettings) -> int:
    """Ring rows of each actor's shard."""
    return max(64, -(-settings.replay.capacity // (settings.actors * settings.env.lanes)))


def make_limiter(settings: RunSettings) -> RateLimiter:
    """When to insert and when to sample."""
    return RateLimiter(settings.replay.min_size, settings.replay.samples_per_insert, settings.tolerance)


def make_pace(settings: RunSettings, ledger: Ledger, queue: BackPressure | None = None) -> Pace:
    """Who may go on: by the queue that actors wait for, if there is one, else by the ratio of samples to inserts."""
    if settings.replay.queue is not None:
        return QueuePace(ledger, settings.replay.min_size, queue)
    return RatePace(ledger, make_limiter(settings))


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
    if device.type not in ("cpu", "cuda"):  # mps, xpu, ...: whether it works depends on how torch was built
        try:
            torch.empty(1, device=device).cpu()
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            raise ConfigError(
                f"learner.device = {wanted!r} cannot be used: this PyTorch finds no such device here. Use auto or cpu."
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


def inference_device(settings: RunSettings, spec: EnvSpec) -> torch.device:
    """The inference server's device."""
    wanted = settings.actor.inference_device
    return choose_device(settings.learner.device if wanted == "auto" else wanted, spec)


def mailbox_layout(settings: RunSettings, spec: EnvSpec) -> Layout:
    """What goes between an actor and the inference server."""
    schema = make_run_schema(settings, spec)
    answer = tuple(schema[name] for name in ("action", *schema.extras))
    return Layout(settings.env.lanes, Column("obs", spec.obs_dtype, spec.obs_shape), answer)


def make_policy(settings: RunSettings, spec: EnvSpec, seat: PolicyContext) -> Policy:
    """A policy in the arithmetic the actors use."""
    policy = settings.definition.make_policy(settings.algorithm, spec, seat)
    if settings.actor.precision == "bfloat16":
        policy.module.to(torch.bfloat16)
        for norm in (one for one in policy.module.modules() if isinstance(one, ObservationNorm)):
            norm.float()  # a small spread around a large mean would be rounded away
    return policy


def build_actor(settings: RunSettings, places: RunPaths, index: int) -> Actor:
    """One actor."""
    _limit_threads(settings.actor.threads)
    spec = describe_env(settings.env)
    writer = ShardWriter(places.shard(index))
    ledger = Ledger(places.replay, places.shards(settings))
    restarts, resumed = writer.epoch - 1, ledger[LedgerWord.RESUMED]
    policy: Policy
    weights: BoardModule | None = None
    if settings.actor.inference == "served":
        policy = RemotePolicy(Mailbox(places.mailbox(index), mailbox_layout(settings, spec)))
    else:
        seed = seed_of(settings, "policy", index, restarts, resumed)
        seat = PolicyContext(index, settings.actors, settings.env.lanes, seed, settings.replay.records_features)
        policy = make_policy(settings, spec, seat)
        weights = BoardModule(policy.module, places.board)
    view = settings.definition.make_view(settings.algorithm, writer.info.schema)
    return Actor(
        index,
        partial(_make_actor_env, settings, index, restarts, resumed),
        policy,
        writer,
        weights,
        ledger,
        make_pace(settings, ledger, queue_of(settings, writer, view.span)),
        settings.actor,
    )


def queue_capacity(settings: RunSettings) -> int:
    """Sequences that a queue without a capacity of its own holds."""
    fresh = (round(part.ratio * settings.learner.most_draws) for part in settings.replay.selectors if part.is_queue)
    return QUEUED_BATCHES * max(1, max(fresh, default=0))


def queue_of(settings: RunSettings, writer: ShardWriter, span: Span) -> BackPressure | None:
    """What holds an actor back until its sequences were read; None when nothing does."""
    if settings.replay.queue is None:
        return None
    return BackPressure(writer, _queue_rows(settings, span))


def check_queue(settings: RunSettings, span: Span) -> None:
    """Refuses a queue that the shards are too short for."""
    if settings.replay.queue is not None:
        wanted, rows = _queue_rows(settings, span) + SPARE_ROWS, rows_per_shard(settings)
        if wanted > rows:
            raise ConfigError(
                f"The queue may hold {wanted} rows of each of {settings.actors} shards, which have {rows}: raise "
                f"replay.capacity = {settings.replay.capacity}, or lower the queue's own capacity."
            )


def _queue_rows(settings: RunSettings, span: Span) -> int:
    assert settings.replay.queue is not None
    capacity = settings.replay.queue.capacity or queue_capacity(settings)
    return queue_rows(capacity, span.stride, settings.actors * settings.env.lanes, span.before + span.overlap)


def _make_actor_env(settings: RunSettings, index: int, restarts: int, resumed: int, errors: int) -> Any:
    seed = seed_of(settings, "actor", index, restarts * 1000 + errors, resumed)
    return make_env(settings.env, settings.env.lanes, seed)


def build_learner(settings: RunSettings, places: RunPaths) -> LearnerLoop:
    """The learner, going on from its last checkpoint if there is one."""
    # Here, so that the other roles start without numba: see `shoal.replay`.
    from shoal.loops.learner import LearnerLoop
    from shoal.loops.sharing_group import SharingGroup
    from shoal.replay import Prefetcher, Replay
    from shoal.replay.source import PacedReplay

    _limit_threads(settings.learner.threads)
    keep_freed_memory()
    spec = describe_env(settings.env)
    device = choose_device(settings.learner.device, spec)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32: the range of float32 at a multiple of its speed
        torch.backends.cudnn.benchmark = True  # batches have one shape
    ledger = Ledger(places.replay, places.shards(settings))
    resumed = ledger[LedgerWord.RESUMED]
    torch.manual_seed(seed_of(settings, "learner", again=ledger[LedgerWord.LEARNERS], resumed=resumed))
    ledger.add(LedgerWord.LEARNERS, 1)
    prioritized = any(part.type == "prioritized" for part in settings.replay.selectors)
    context = LearnerContext(device, settings.learner.autocast, settings.learner.compile, prioritized)
    learner = settings.definition.make_learner(settings.algorithm, spec, context)
    schema = make_run_schema(settings, spec)
    readers = [ShardReader(path) for path in places.shards(settings)]
    view = settings.definition.make_view(settings.algorithm, schema)
    seed = seed_of(settings, "replay", again=ledger.updates, resumed=resumed)
    group = (
        SharingGroup(settings, spec, places.shards(settings), places.checkpoints.parent.name, ledger)
        if settings.share.registry
        else None
    )
    features = None
    if settings.replay.compares_features:
        policy = settings.definition.make_policy(settings.algorithm, spec, PolicyContext())
        features = BoardFeatures(policy, places.board, device)
    replay = Replay(
        readers,
        settings.replay.make_selector(features, queue_capacity(settings), ledger.updates),
        view,
        settings.learner.most_draws,
        batch_min=settings.learner.batch.min,
        ring=settings.learner.prefetch + 2,
        seed=seed,
        threads=settings.replay.threads,
        guests=partial(group.guests, readers, view, seed) if group else None,
        **({"allocate": _pinned} if device.type == "cuda" else {}),
    )
    source = PacedReplay(replay, make_pace(settings, ledger), ledger)
    ahead = settings.learner.prefetch
    return LearnerLoop(
        learner,
        Prefetcher(source, ahead) if ahead else source,
        BoardModule(learner.module, places.board),
        ledger,
        settings.learner,
        places.checkpoints,
        group,
    )


def build_evaluator(settings: RunSettings, places: RunPaths) -> Evaluator:
    """The evaluator, on the true task: nothing clipped, no life-loss ends."""
    _limit_threads(settings.actor.threads)
    spec = describe_env(settings.env)
    lanes = min(settings.evaluation.lanes, settings.evaluation.episodes)

    def make(errors: int) -> Env:
        # The same in every execution: evaluations are to be compared.
        return make_env(settings.evaluation_env, lanes, seed_of(settings, "evaluator", again=errors), training=False)

    policy = settings.definition.make_policy(settings.algorithm, spec, PolicyContext(lanes=lanes))
    weights = BoardModule(policy.module, places.board)
    ledger = Ledger(places.replay, places.shards(settings))
    return Evaluator(make, policy, weights, ledger, places.checkpoints, settings.evaluation_bound)


def build_inference(settings: RunSettings, places: RunPaths) -> InferenceServer:
    """What acts for all actors, where they do not act for themselves."""
    _limit_threads(settings.actor.threads)
    spec = describe_env(settings.env)
    device = inference_device(settings, spec)
    layout = mailbox_layout(settings, spec)
    mailboxes = [Mailbox(places.mailbox(index), layout) for index in range(settings.actors)]
    ledger = Ledger(places.replay, places.shards(settings))
    # Started again, it has answered more: it must not repeat its random numbers.
    answered = sum(mailbox.answered for mailbox in mailboxes)
    seed = seed_of(settings, "inference", again=answered, resumed=ledger[LedgerWord.RESUMED])
    lanes = settings.actors * settings.env.lanes
    policy = make_policy(settings, spec, PolicyContext(0, 1, lanes, seed, settings.replay.records_features))
    if device.type != "cpu":
        if not hasattr(policy, "to"):
            raise ConfigError(
                f"The policy of {settings.algo} computes on the CPU only: set actor.inference_device = cpu."
            )
        cast(Movable, policy).to(device)
    return InferenceServer(
        policy,
        mailboxes,
        BoardModule(policy.module, places.board),
        ledger,
        settings.actor,
        **({"allocate": _pinned} if device.type == "cuda" else {}),
    )


def _limit_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def _pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in page-locked memory, which a GPU copies from while the CPU works on."""
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.zeros(shape, dtype=like.dtype, pin_memory=True).numpy()
