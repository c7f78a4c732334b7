"""Wiring: builds each role in the process it lives in, from the run's plan."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from shoal.algorithms.interface import LearnerContext, Policy, PolicyContext, ServedPolicy
from shoal.algorithms.pushes import PushLearner
from shoal.envs import Env, make_env
from shoal.errors import ConfigError
from shoal.loops.actor import Actor
from shoal.loops.evaluator import Evaluator
from shoal.loops.features import BoardFeatures
from shoal.loops.freed_memory import keep_freed_memory
from shoal.loops.gradient_board import GradientBoard
from shoal.loops.gradient_source import GradientPace, GradientSource
from shoal.loops.gradient_worker import GradientWorker
from shoal.loops.inference import InferenceServer, Movable
from shoal.loops.machine import emulator_threads, torch_threads, usable_cores
from shoal.loops.mailbox import Mailbox
from shoal.loops.plan import Plan, make_limiter
from shoal.loops.remote_policy import RemotePolicy
from shoal.loops.team import PATIENCE_SECONDS, Learners, RankLedger, Word
from shoal.loops.weights import BoardModule
from shoal.networks.normalization import ObservationNorm, ValueNorm
from shoal.replay import Ledger, LedgerWord, ShardReader, ShardWriter
from shoal.replay.back_pressure import BackPressure
from shoal.replay.pace import BarrierPace, Pace, QueuePace, RatePace

if TYPE_CHECKING:
    from shoal.loops.learner import LearnerLoop


def open_ledger(plan: Plan) -> Ledger:
    """The run's counts."""
    return Ledger(plan.paths.replay, plan.shards)


def make_pace(plan: Plan, ledger: Ledger, writer: ShardWriter | None = None, learner: int | None = None) -> Pace:
    """Who may go on: by rollouts, by the queue that actors wait for, or else by the ratio of samples to inserts.

    Args:
        plan: the run's plan.
        ledger: its counts.
        writer: the shard of the actor that asks; None for those who do not act.
        learner: the learner that asks, for rollouts of its own actors.
    """
    if plan.pushes is not None:
        boards = {actor: GradientBoard(plan.paths.gradients(actor)) for actor in plan.boards_here}
        own = None if writer is None else boards[plan.shards.index(writer.path)]
        return GradientPace(list(boards.values()), plan.pushes, own)
    rollout = plan.settings.replay.rollout
    if rollout is not None:
        shards = plan.shards if learner is None else [plan.shards[actor] for actor in plan.learner_actors(learner)]
        return BarrierPace(shards, rollout.share, writer)
    if plan.queue_rows is None:
        return RatePace(ledger, make_limiter(plan.settings))
    queue = None if writer is None else BackPressure(writer, plan.queue_rows)
    return QueuePace(ledger, plan.settings.replay.min_size, queue)


def make_policy(plan: Plan, context: PolicyContext) -> Policy:
    """A policy in the arithmetic the actors use."""
    settings = plan.settings
    policy = settings.definition.make_policy(settings.algorithm, plan.spec, context)
    if settings.actor.precision == "bfloat16":
        policy.module.to(torch.bfloat16)
        for norm in (one for one in policy.module.modules() if isinstance(one, ObservationNorm | ValueNorm)):
            norm.float()  # a small spread around a large mean would be rounded away
    return policy


def build_actor(plan: Plan, index: int) -> Actor:
    """One actor: number `index` of the run."""
    settings = plan.settings
    _limit_threads(settings.actor.threads)
    writer, ledger = ShardWriter(plan.paths.shard(index)), open_ledger(plan)
    restarts, resumed = writer.epoch - 1, ledger[LedgerWord.RESUMED]
    policy: Policy
    weights: BoardModule | GradientWorker | None = None
    if settings.actor.inference == "served":
        policy = RemotePolicy(Mailbox(plan.paths.mailbox(index), plan.mailbox))
    else:
        seed = plan.seed("policy", index, restarts, resumed)
        context = PolicyContext(index, settings.actors, settings.env.lanes, seed, settings.replay.records_features)
        policy = make_policy(plan, context)
        if plan.pushes is not None:
            weights = _make_gradient_worker(plan, index, policy, ledger)
        else:
            weights = BoardModule(policy.module, plan.paths.board)

    def make(errors: int) -> Env:
        return make_env(settings.env, settings.env.lanes, plan.seed("actor", index, restarts * 1000 + errors, resumed))

    pace, start = make_pace(plan, ledger, writer), settings.curriculum.start
    return Actor(index, make, policy, writer, weights, ledger, pace, settings.actor, (start,) if start else ())


def _make_gradient_worker(plan: Plan, index: int, policy: Policy, ledger: Ledger) -> GradientWorker:
    """An actor's half of learning, in the arithmetic of the learner."""
    keep_freed_memory()
    settings, definition = plan.settings, plan.settings.definition
    context = LearnerContext(plan.device_of_learner(), settings.learner.autocast, settings.learner.compile)
    learner = definition.make_learner(settings.algorithm, plan.spec, context)
    assert isinstance(learner, PushLearner)
    weights, board = BoardModule(learner.module, plan.paths.board), GradientBoard(plan.paths.gradients(index))
    return GradientWorker(learner, policy.module, weights, board, definition.steps_per_draw(settings.algorithm), ledger)


def build_learner(plan: Plan, index: int = 0) -> LearnerLoop:
    """A learner, which continues from the run's last checkpoint if there is one; or from the other learners."""
    # Here, so that the other roles start without numba: see `shoal.replay`.
    from shoal.loops.health import Probe
    from shoal.loops.learner import LearnerLoop
    from shoal.loops.sharing_group import SharingGroup
    from shoal.replay import Prefetcher, Replay
    from shoal.replay.source import PacedReplay

    settings, definition = plan.settings, plan.settings.definition
    _limit_threads(settings.learner.threads)
    keep_freed_memory()
    device = plan.device_of_learner(index)
    if device.type == "cuda":
        if (device.index or 0) >= torch.cuda.device_count():  # Ray shows this process the one that it got
            device = torch.device("cuda")
        torch.set_float32_matmul_precision("high")  # TF32: the range of float32 at a multiple of its speed
        torch.backends.cudnn.benchmark = True  # batches have one shape
    patience = math.inf if settings.replay.rollout else PATIENCE_SECONDS
    team = Learners(plan.paths.learners, index, settings.learners, patience, device) if settings.learners > 1 else None
    ledger = open_ledger(plan) if team is None else RankLedger(plan.paths.replay, plan.shards, team)
    resumed = ledger[LedgerWord.RESUMED]
    again = team.of(index, Word.EPOCH) - 1 if team else ledger[LedgerWord.LEARNERS]
    torch.manual_seed(plan.seed("learner", index, again, resumed))
    if index == 0:
        ledger.add(LedgerWord.LEARNERS, 1)
    prioritized = any(part.type == "prioritized" for part in settings.replay.selectors)
    context = LearnerContext(device, settings.learner.autocast, settings.learner.compile, prioritized, team)
    learner = definition.make_learner(settings.algorithm, plan.spec, context)
    weights = BoardModule(learner.module, plan.paths.board)
    if plan.pushes is not None:
        boards = [GradientBoard(plan.paths.gradients(index)) for index in range(settings.actors)]
        pushed = GradientSource(boards, plan.pushes, lambda: weights.board.version, ledger)
        return LearnerLoop(learner, pushed, weights, ledger, settings.learner, plan.paths.checkpoints)
    readers = [ShardReader(plan.shards[actor]) for actor in plan.learner_actors(index)]
    view = definition.make_view(settings.algorithm, plan.schema)
    seed = plan.seed("replay", index, ledger.updates, resumed)
    group = None
    if settings.share.registry:
        group = SharingGroup(settings, plan.spec, plan.shards, plan.paths.checkpoints.parent.name, ledger)
    features = None
    if settings.replay.compares_features:
        policy = definition.make_policy(settings.algorithm, plan.spec, PolicyContext())
        features = BoardFeatures(policy, plan.paths.board, device)
    replay = Replay(
        readers,
        settings.replay.make_selector(
            features, plan.queue_capacity, ledger.updates, partial(plan.learner_share, index)
        ),
        view,
        plan.learner_share(index, settings.most_draws),
        batch_min=plan.fewest_draws(index),
        ring=settings.learner.prefetch + 2,
        seed=seed,
        threads=settings.replay.threads,
        guests=partial(group.guests, readers, view, seed) if group else None,
        **pinned_on(device),
    )
    source = PacedReplay(replay, make_pace(plan, ledger, learner=index), ledger)
    batches = Prefetcher(source, settings.learner.prefetch) if settings.learner.prefetch else source
    probe = Probe(learner, prioritized) if settings.health.enabled and index == 0 else None
    return LearnerLoop(learner, batches, weights, ledger, settings.learner, plan.paths.checkpoints, group, probe, team)


def build_evaluator(plan: Plan, index: int = 0) -> Evaluator:
    """The evaluator, on the true task: rewards are not clipped and a lost life ends no episode."""
    settings, cores = plan.settings, usable_cores()
    _limit_threads(torch_threads(settings, cores))
    lanes = settings.evaluation.lanes_for(settings.evaluation.episodes)
    env = settings.evaluation_env.model_copy(update={"threads": emulator_threads(settings, cores)})

    def make(errors: int) -> Env:
        # The same seed in every execution: evaluations are to be compared.
        return make_env(env, lanes, plan.seed("evaluator", again=errors), training=False)

    policy = settings.definition.make_policy(settings.algorithm, plan.spec, PolicyContext(lanes=lanes))
    if hasattr(policy, "to") or settings.evaluation.policy_device != "auto":
        _move(policy, plan.evaluation_device, plan, "evaluation.policy_device")
    weights, bound = BoardModule(policy.module, plan.paths.board), settings.evaluation_bound
    at_end = partial(_limit_threads, torch_threads(settings, cores, alone=True))
    return Evaluator(make, policy, weights, open_ledger(plan), plan.paths.checkpoints, bound, at_end)


def build_inference(plan: Plan, index: int = 0) -> InferenceServer:
    """The inference server, which acts for all actors of its folder."""
    settings, device = plan.settings, plan.inference_device
    _limit_threads(settings.actor.threads)
    mailboxes = [Mailbox(plan.paths.mailbox(actor), plan.mailbox) for actor in plan.actors_here]
    ledger = open_ledger(plan)
    # After a restart it has answered more: it must not repeat its random numbers.
    answered = sum(mailbox.answered for mailbox in mailboxes)
    seed = plan.seed("inference", index, again=answered, resumed=ledger[LedgerWord.RESUMED])
    lanes = len(mailboxes) * settings.env.lanes
    policy = make_policy(plan, PolicyContext(0, 1, lanes, seed, settings.replay.records_features))
    _move(policy, device, plan, "actor.inference_device")
    weights = BoardModule(policy.module, plan.paths.board)
    return InferenceServer(cast(ServedPolicy, policy), mailboxes, weights, ledger, settings.actor, **pinned_on(device))


def _move(policy: Policy, device: torch.device, plan: Plan, setting: str) -> None:
    """Lets a policy compute on its role's device, which `setting` names."""
    if hasattr(policy, "to"):
        cast(Movable, policy).to(device)
    elif device.type != "cpu":
        raise ConfigError(f"The policy of {plan.settings.algo} computes on the CPU only: set {setting} = cpu.")


def _limit_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def pinned_on(device: torch.device) -> dict[str, Any]:
    """How to allocate batches for a device, as an argument."""
    return {"allocate": _pinned} if device.type == "cuda" else {}


def _pinned(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in page-locked memory, which a GPU copies from while the CPU works on."""
    like = torch.from_numpy(np.empty(0, dtype))
    return torch.zeros(shape, dtype=like.dtype, pin_memory=True).numpy()
