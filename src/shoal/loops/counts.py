"""Counts: how far a run has come, and what is believed when something that counted it is lost.

Every shard counts its own steps and episodes; the ledger counts samples, updates and what shards that are gone had
counted (`BASE_...`), and remembers what the driver saw last (`SEEN_...`).

| lost | steps, episodes | updates | samples |
|---|---|---|---|
| a shard | the most of: other shards and its own header, if readable; last seen; documents | ledger | ledger |
| the ledger | the most of: shards; documents | documents | updates times the rows of a batch |
| the replay | checkpoint | checkpoint | 0 |

Documents are the run's checkpoint, metrics and summary (`runtime.repair.known_counts`). In every case samples are cut
to what the rate limiter allows for the steps in the shards: else the learner would wait for as many new steps as were
lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.errors import CheckpointError, CorruptShard
from shoal.loops.checkpoint import load_checkpoint
from shoal.loops.plan import make_limiter
from shoal.loops.settings import RunSettings
from shoal.replay import Header, Ledger, LedgerWord
from shoal.replay.counters import LARGEST_COUNT, Counters


class Counts(NamedTuple):
    """How far a run has come."""

    steps: int = 0
    episodes: int = 0
    updates: int = 0


def checkpoint_counts(checkpoints: Path) -> Counts:
    """What the newest readable checkpoint counts; CheckpointError when there is none."""
    info = load_checkpoint(checkpoints).info
    return Counts(int(info["env_steps"]), int(info["episodes"]), int(info["updates"]))


def header_counts(shard: Path, lanes: int) -> Counts:
    """What the header of a damaged shard counts; nothing if that cannot be."""
    with contextlib.suppress(CorruptShard):
        header = Counters(shard / "header.bin", writable=False)
        steps, episodes, head = header[Header.STEPS], header[Header.EPISODES], header[Header.HEAD]
        if max(steps, episodes) <= head * lanes and head <= LARGEST_COUNT:
            return Counts(steps, episodes)
    return Counts()


def total(counts: Sequence[Counts]) -> Counts:
    """Their sum."""
    return Counts(*map(sum, zip(*counts, strict=True))) if counts else Counts()


def heal(
    settings: RunSettings,
    ledger: Ledger,
    lost: Sequence[Counts],
    ledger_lost: bool,
    documents: Callable[[], Counts],
    coming: Counts,
) -> None:
    """Corrects a ledger before its run goes on.

    Args:
        settings: the run's settings.
        ledger: its counts; a new one if the old one was lost.
        lost: what each lost shard had counted, as far as is known.
        ledger_lost: whether the ledger was lost.
        documents: what the run's documents count; asked only when something was lost.
        coming: what shards on other nodes count, and mirrors do not yet.
    """
    if lost or ledger_lost:
        known, gone = documents(), total(lost)
        steps, episodes = ledger.env_steps + coming.steps, ledger.episodes + coming.episodes
        most_steps = max(steps + gone.steps, ledger[LedgerWord.SEEN_STEPS], known.steps)
        most_episodes = max(episodes + gone.episodes, ledger[LedgerWord.SEEN_EPISODES], known.episodes)
        ledger.add(LedgerWord.BASE_STEPS, most_steps - steps)
        ledger.add(LedgerWord.BASE_EPISODES, most_episodes - episodes)
        if ledger_lost:
            ledger[LedgerWord.BASE_UPDATES] = known.updates
            ledger[LedgerWord.SAMPLES] = known.updates * settings.rows_per_batch
    if settings.replay.samples_per_insert is not None:
        due = max(0, int(make_limiter(settings).error(ledger.inserts + coming.steps, 0)))
        ledger[LedgerWord.SAMPLES] = min(ledger[LedgerWord.SAMPLES], due + int(settings.tolerance))


def continue_from_checkpoint(ledger: Ledger, checkpoints: Path, why: str) -> str:
    """Counts on from the checkpoint, because the replay is gone; returns a note that begins with `why` it is."""
    try:
        counts = checkpoint_counts(checkpoints)
    except CheckpointError as error:
        return f"{why}, and there is no checkpoint ({error}); starting over"
    bases = (LedgerWord.BASE_STEPS, LedgerWord.BASE_EPISODES, LedgerWord.BASE_UPDATES)
    for base, count in zip(bases, counts, strict=True):
        ledger[base] = count
    return f"{why}: resuming with weights only"


def count_recovered(settings: RunSettings, ledger: Ledger, counts: Counts) -> str:
    """Counts on from shards that outposts still hold, after home was lost; returns a note. Call it after
    `continue_from_checkpoint`: what the shards count is not counted twice, and not learned from twice as often.
    """
    ledger[LedgerWord.BASE_STEPS] = max(0, ledger[LedgerWord.BASE_STEPS] - counts.steps)
    ledger[LedgerWord.BASE_EPISODES] = max(0, ledger[LedgerWord.BASE_EPISODES] - counts.episodes)
    if settings.replay.samples_per_insert is not None:
        ledger[LedgerWord.SAMPLES] = max(0, int(make_limiter(settings).error(counts.steps, 0)))
    return f"resuming with {counts.steps:,} collected steps that other nodes still hold"
