"""Makes what a run's roles share before they start: shards, ledger, weight board, mailboxes. All memory is reserved
here, so that no role can run out of it later. Damaged files are set aside, and the counts are healed (`counts`).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal.algorithms.interface import PolicyContext
from shoal.algorithms.pushes import push_size
from shoal.errors import CorruptShard, NoSpace
from shoal.loops.counts import Counts, header_counts, heal, total
from shoal.loops.gradient_board import GradientBoard, gradient_board_bytes
from shoal.loops.mailbox import Mailbox
from shoal.loops.plan import Plan
from shoal.loops.team import STRIDE, Learners
from shoal.loops.weights import BoardModule, WeightBoard, board_bytes, count_weights
from shoal.replay import Header, Ledger, LedgerWord, ShardInfo, ShardReader, create_shard
from shoal.replay.compression import readable
from shoal.replay.counters import WORDS, Counters
from shoal.replay.ledger import RUN
from shoal.replay.reserve import PAGE, reserved_bytes
from shoal.replay.shard_files import create_stub
from shoal.types import CUT, EnvSpec

_DOCUMENTS = 8 * PAGE
"""For small files: the owner's signature, and a second one while it is replaced."""
_SCHEMA = 2 * PAGE
MOVE_EPOCHS = 1000
"""By so many a shard that continues elsewhere is ahead of what is left: restarts and searches raise that, too."""
UNUSABLE = "unusable"
"""Part of the name of a damaged file that was set aside."""


def needed_bytes(plan: Plan, roles: int) -> int:
    """Bytes that a run with this number of roles takes of shared memory: what `prepare` makes."""
    settings, info = plan.settings, _shard_info(plan, "")
    columns = (reserved_bytes(column.nbytes * info.rows * info.lanes) for column in info.schema.columns)
    words = reserved_bytes(WORDS * 8)
    each = sum(columns) + words + _SCHEMA
    if settings.actor.inference == "served":
        each += reserved_bytes(plan.mailbox.record.itemsize) + words
    if plan.pushes is not None:
        each += reserved_bytes(gradient_board_bytes(push_size(_network(plan)))) + words
    board = reserved_bytes(board_bytes(count_weights(_network(plan)))) + words
    processes = reserved_bytes(roles * 8) + reserved_bytes(settings.learners * STRIDE * 8)
    shards = len(plan.boards_here)
    stubs = (settings.actors - shards) * words
    return shards * each + stubs + board + words + processes + _DOCUMENTS


class Start(NamedTuple):
    """Where what one actor writes continues, if it was written elsewhere before."""

    words: dict[Header, int]
    """Of its shard."""
    pushes: tuple[int, ...] = ()
    """Gradients pushed, and their fates."""
    coming: Counts = Counts()
    """Steps and episodes that are counted elsewhere, and that the courier brings."""


def where_it_stopped(plan: Plan, actor: int) -> Start:
    """Where an actor's shard and gradients in this plan's folder can be continued elsewhere."""
    header = Counters(plan.paths.shard(actor) / "header.bin", writable=False)
    words = {word: header[word] for word in (Header.HEAD, Header.STEPS, Header.EPISODES, Header.EPOCH, Header.CUTS)}
    words[Header.CLAIM] = words[Header.HEAD]
    board = GradientBoard(plan.paths.gradients(actor)) if plan.pushes is not None else None
    return Start(words, () if board is None else (board.pushed, *board.fates))


def prepare_outpost(plan: Plan, roles: int, run: str, starts: Mapping[int, Start], version: int) -> list[str]:
    """Makes what the roles of an outpost need and what does not exist yet; see `courier`. Arguments as in `prepare`.

    Args:
        plan: with the outpost's folder.
        roles: how many roles the run has.
        run: its name.
        starts: how far home is with each of the outpost's actors.
        version: of home's weights.
    """
    readable(plan.settings.replay.compress if plan.spec.sees_images else "none")  # refused here, by the node's name
    info, notes = _shard_info(plan, run), list[str]()
    for actor, path in enumerate(plan.shards):
        if actor not in plan.actors_here:
            create_stub(path)
            continue
        words = starts[actor].words
        if path.exists():
            problem = _problem(path, info, plan.spec)
            if problem is None and _continues(ShardReader(path), words):
                continue
            if problem is None:  # nobody needs it: its rows are in the mirror, or of a time that did not go on
                shutil.rmtree(path)
                problem = f"{path.name} of outpost {plan.outpost} is older than its mirror, and begins again."
            else:
                set_aside(path)
            notes.append(problem)
        # If a shard of the same actor on a lost node comes back, its epoch says that it is an older one.
        later = {**words, Header.EPOCH: words[Header.EPOCH] + MOVE_EPOCHS}
        create_shard(path, info, later if words[Header.HEAD] else None)
    ledger = Ledger(plan.paths.replay, plan.shards)
    ledger[LedgerWord.STOP], ledger[LedgerWord.HEARTBEAT] = RUN, time.time_ns()
    _leave_later_weights(plan, version)
    _prepare_beside_shards(plan, roles, notes, {actor: start.pushes for actor, start in starts.items()})
    return notes


def _continues(shard: ShardReader, words: Mapping[Header, int]) -> bool:
    """Whether a shard's rows begin with those of its mirror. If the actor was elsewhere since, its epoch is older."""
    return shard.head >= words[Header.HEAD] and shard.header[Header.EPOCH] >= words[Header.EPOCH]


def _leave_later_weights(plan: Plan, version: int) -> None:
    """After home was lost, versions begin again: actors would keep their old weights until the new ones had passed
    them.
    """
    board = plan.paths.board
    with contextlib.suppress(CorruptShard, OSError):
        if WeightBoard.open(board).version > version:
            for file in (board, board.with_suffix(".words")):
                file.unlink()


def prepare(
    plan: Plan,
    roles: int,
    run: str,
    known: Callable[[], Counts] = Counts,
    starts: Mapping[int, Start] | None = None,
) -> list[str]:
    """Makes what does not exist yet.

    Args:
        plan: the run's plan.
        roles: how many roles it has.
        run: its name.
        known: reads what its documents count; called when the replay's own counts are damaged.
        starts: where shards begin that are lost here, and that an outpost still has.

    Returns:
        Notes on what could not be reused.

    Raises:
        NoSpace: there is too little memory.
    """
    settings, places = plan.settings, plan.paths
    notes: list[str] = []
    try:
        ledger = _prepare_shards_and_ledger(plan, run, known, notes, starts or {})
        if settings.learners > 1:
            _make_room(places.learners)
            Learners.create(places.learners, settings.learners)
        _prepare_beside_shards(plan, roles, notes)
    except NoSpace as error:
        if not (aside := sorted(places.replay.glob(f"*.{UNUSABLE}-*"))):
            raise
        raise NoSpace(f"{error} Damaged files that were set aside take some, too: remove {aside[0]}.") from error
    ledger.beat()
    return notes


def prepare_more(plan: Plan, run: str, first: int) -> None:
    """Makes the shards of the actors from `first` on, which are new in this run; all of them, or none.

    Raises:
        NoSpace: there is too little memory.
    """
    new = plan.shards[first:]
    try:
        for path in new:
            shutil.rmtree(path, ignore_errors=True)  # left by a driver that was killed here
            create_shard(path, _shard_info(plan, run))
    except NoSpace:
        for path in new:
            shutil.rmtree(path, ignore_errors=True)
        raise


def _shard_info(plan: Plan, run: str) -> ShardInfo:
    lanes, algo = plan.settings.env.lanes, plan.settings.algo
    return ShardInfo(plan.schema, plan.rows_per_shard, lanes, run, plan.spec.env_id, algo, time.time())


def _prepare_beside_shards(
    plan: Plan, roles: int, notes: list[str], pushes: Mapping[int, tuple[int, ...]] | None = None
) -> None:
    """What both home and an outpost have: the board, process ids, mailboxes and gradients."""
    _prepare_board(plan, notes)
    _make_room(plan.paths.processes)
    Counters.create(plan.paths.processes, roles)
    if plan.settings.actor.inference == "served":
        for actor in plan.actors_here:
            _make_room(plan.paths.mailbox(actor))
            Mailbox.create(plan.paths.mailbox(actor), plan.mailbox)
    if plan.pushes is not None:
        _prepare_gradients(plan, notes, pushes)


def _prepare_shards_and_ledger(
    plan: Plan, run: str, known: Callable[[], Counts], notes: list[str], starts: Mapping[int, Start]
) -> Ledger:
    """Makes them where they are missing or damaged. Each counts what the other does not: see `counts`."""
    places, shards, info = plan.paths, plan.shards, _shard_info(plan, run)
    begun = any(path.exists() for path in (places.ledger, *shards))
    lost: list[Counts] = []
    coming: list[Counts] = []
    for actor, path in enumerate(shards):
        if path.exists():
            if (problem := _problem(path, info, plan.spec)) is None:
                continue
            notes.append(problem)
            lost.append(Counts() if actor in starts else header_counts(path, info.lanes))
            set_aside(path)
        elif begun:
            fate = "its rows come from its outpost" if actor in starts else "a new shard is begun"
            notes.append(f"{path.name} is gone; {fate}.")
            lost.append(Counts())
        if actor in starts:
            coming.append(starts[actor].coming)
        create_shard(path, info, starts[actor].words if actor in starts else None)
    ledger_lost = begun and not places.ledger.exists()
    if ledger_lost:
        notes.append("ledger.bin is gone; the counts come from the shards, the checkpoint and the metrics.")
    try:
        ledger = Ledger(places.replay, shards)
        ledger.check()
        seen = ledger[LedgerWord.SEEN_STEPS], ledger[LedgerWord.SEEN_EPISODES]
        if not lost and seen > (ledger.env_steps, ledger.episodes):
            raise CorruptShard(f"{places.ledger} is damaged: it has seen more steps or episodes than there are.")
    except CorruptShard as error:
        notes.append(f"{error} It is set aside; the counts come from the shards, the checkpoint and the metrics.")
        set_aside(places.ledger)
        ledger, ledger_lost = Ledger(places.replay, shards), True
    heal(plan.settings, ledger, lost, ledger_lost, known, total(coming))
    return ledger


def _problem(path: Path, info: ShardInfo, spec: EnvSpec) -> str | None:
    """Why a shard cannot be written on, if so."""
    try:
        shard = ShardReader(path)
        if (shard.info.schema, shard.rows, shard.lanes) != (info.schema, info.rows, info.lanes):
            return f"{path.name} was written with other settings; it is set aside and a new one begun."
        _check_rows(shard, spec)
    except CorruptShard as error:
        return f"{error} It is set aside and a new shard begun."
    return None


def _check_rows(shard: ShardReader, spec: EnvSpec) -> None:
    """Refuses rows that no environment and no policy can have produced: they would fail the learner at every resume."""
    for lane in range(shard.lanes):  # one at a time, to save memory
        row = {name: shard.by_lane[name][lane] for name in ("obs", "action", "reward", "boundary")}
        floats = [(name, column) for name, column in row.items() if column.dtype.kind == "f"]
        floats += [("obs", part) for part in spec.floats(row["obs"]).values()]
        wrong = [name for name, numbers in floats if not np.isfinite(numbers).all()]
        bound = spec.action_nvec or spec.num_actions
        if not spec.continuous and not ((row["action"] >= 0) & (row["action"] < bound)).all():
            wrong.append("action")
        if (row["boundary"] > CUT).any():
            wrong.append("boundary")
        if wrong:
            raise CorruptShard(f"{shard.path} holds rows that cannot be: look at {', '.join(wrong)}. It is damaged.")


def _network(plan: Plan) -> Any:
    # A policy has the same weights. A learner would import its optimizer, which takes seconds.
    context = PolicyContext(lanes=plan.settings.env.lanes)
    return plan.settings.definition.make_policy(plan.settings.algorithm, plan.spec, context).module


def _prepare_board(plan: Plan, notes: list[str]) -> None:
    torch.manual_seed(plan.seed("learner"))
    places, network = plan.paths, _network(plan)
    files = (places.board, places.board.with_suffix(".words"))
    if any(file.exists() for file in files):
        try:
            WeightBoard(places.board, count_weights(network)).check()
            return
        except CorruptShard as error:
            notes.append(f"{error} The board is set aside; weights come from the last checkpoint.")
            for file in files:
                set_aside(file)
    WeightBoard.create(places.board, count_weights(network))
    BoardModule(network, places.board).publish()


def _prepare_gradients(plan: Plan, notes: list[str], starts: Mapping[int, tuple[int, ...]] | None = None) -> None:
    """Boards of an earlier execution are kept, with the gradients that nobody has taken yet."""
    size = push_size(_network(plan))
    for actor in plan.boards_here:
        path = plan.paths.gradients(actor)
        files = (path, path.with_suffix(".words"))
        if any(file.exists() for file in files):
            try:
                (board := GradientBoard(path)).check()
                if board.size == size:
                    continue
                problem = f"{path.name} has gradients of another network."
            except CorruptShard as error:
                problem = str(error)
            notes.append(f"{problem} It is set aside; the counts of its gradients begin again.")
            for file in files:
                set_aside(file)
        board = GradientBoard.create(path, size)
        if starts:
            board.resume(*starts[actor])


def _make_room(path: Path) -> None:
    """Removes a file that every execution makes again. It is not emptied: a process left over may have it mapped."""
    if path.is_dir() and not path.is_symlink():
        set_aside(path)
    path.unlink(missing_ok=True)


def set_aside(path: Path) -> str:
    """Renames what cannot be used, if it is there; returns its new name."""
    aside = path.with_name(f"{path.name}.{UNUSABLE}-{time.time_ns()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    return aside.name
