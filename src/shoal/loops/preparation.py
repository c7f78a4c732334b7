"""What must be there before a run's roles start: shards, ledger, weight board.

What is damaged is set aside, and the counts are healed: steps of a shard that is lost stay counted, and the rate
limiter's balance is drawn anew, so that the learner does not wait for steps it has long learned from.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import torch

from shoal.algorithms.interface import Seat
from shoal.errors import CheckpointError, ConfigError, CorruptShard
from shoal.loops import assembly
from shoal.loops.assembly import Places
from shoal.loops.checkpoint import load_checkpoint
from shoal.loops.mailbox import Mailbox
from shoal.loops.settings import RunSettings
from shoal.loops.weights import FlatModule, WeightBoard
from shoal.replay import Entry, Header, Ledger, ShardInfo, ShardReader, create_shard, read_info
from shoal.replay.counters import Counters
from shoal.types import EnvSpec


def prepare(settings: RunSettings, spec: EnvSpec, places: Places, run: str) -> list[str]:
    """Makes what is not there yet. Returns notes on what could not be used again."""
    notes: list[str] = []
    lost_steps, lost_episodes = _prepare_shards(settings, spec, places, run, notes)
    ledger = _prepare_ledger(settings, places, notes)
    if lost_steps or lost_episodes:
        ledger.add(Entry.BASE_STEPS, lost_steps)
        ledger.add(Entry.BASE_EPISODES, lost_episodes)
    _balance(settings, ledger)
    _prepare_board(settings, spec, places, notes)
    if settings.actor.inference == "served":
        for index in range(settings.actors):
            Mailbox.create(places.mailbox(index), assembly.mailbox_layout(settings, spec))
    return notes


def _prepare_shards(
    settings: RunSettings, spec: EnvSpec, places: Places, run: str, notes: list[str]
) -> tuple[int, int]:
    """Returns the steps and episodes that shards set aside had counted."""
    schema, rows = assembly.make_run_schema(settings, spec), assembly.rows_per_shard(settings)
    info = ShardInfo(schema, rows, settings.env.lanes, run, spec.env_id, settings.algo, time.time())
    steps = episodes = 0
    for path in places.shards(settings):
        if path.exists():
            try:
                found = read_info(path)
                ShardReader(path)
                if (found.schema, found.rows, found.lanes) == (info.schema, info.rows, info.lanes):
                    continue
                notes.append(f"{path.name} was written with other settings; it is set aside and a new one begun")
            except CorruptShard as error:
                notes.append(f"{error} It is set aside and a new shard begun.")
            with contextlib.suppress(CorruptShard, OSError):
                header = Counters(path / "header.bin", writable=False)
                steps, episodes = steps + header[Header.STEPS], episodes + header[Header.EPISODES]
            _set_aside(path)
        create_shard(path, info)
    return steps, episodes


def _prepare_ledger(settings: RunSettings, places: Places, notes: list[str]) -> Ledger:
    shards = places.shards(settings)
    try:
        return Ledger(places.replay, shards)
    except CorruptShard as error:
        notes.append(f"{error} It is set aside; the counts go on from the last checkpoint.")
    _set_aside(places.replay / "ledger.bin")
    ledger = Ledger(places.replay, shards)
    with contextlib.suppress(CheckpointError):
        info = load_checkpoint(places.checkpoints).info
        ledger[Entry.BASE_STEPS] = max(0, int(info["env_steps"]) - ledger.inserts)
        ledger[Entry.BASE_UPDATES] = int(info["updates"])
        ledger[Entry.SAMPLES] = int(info["updates"]) * settings.rows_per_batch
    return ledger


def _balance(settings: RunSettings, ledger: Ledger) -> None:
    """The learner is never ahead of what the shards that are left have counted."""
    ratio = settings.replay.samples_per_insert
    if ratio is not None:
        due = max(0, int((ledger.inserts - settings.replay.min_size) * ratio))
        ledger[Entry.SAMPLES] = min(ledger[Entry.SAMPLES], due + int(settings.tolerance))


def _prepare_board(settings: RunSettings, spec: EnvSpec, places: Places, notes: list[str]) -> None:
    torch.manual_seed(assembly.seed_of(settings, "learner"))
    # A policy has the weights too; a learner would bring its optimiser, whose import alone takes seconds.
    seat = Seat(lanes=settings.env.lanes)
    weights = FlatModule(settings.definition.make_policy(settings.algorithm, spec, seat).module)
    path = places.replay / "weights.bin"
    try:
        board = WeightBoard(path, weights.size)
    except (ConfigError, CorruptShard) as error:
        notes.append(f"{error} The board is set aside; weights come from the last checkpoint.")
        _set_aside(path)
        _set_aside(path.with_suffix(".words"))
        board = WeightBoard(path, weights.size)
    if board.version == 0:
        weights.publish(board)


def _set_aside(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.unusable-{time.time_ns()}"))
