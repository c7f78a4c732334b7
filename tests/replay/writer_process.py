"""Rows that say which row they are, and a program that writes them at full speed in processes of their own.

Everything in a row follows from (salt, lane, logical number), so a reader can check any row, and how rows were put
together, without having seen the stream. Run as a program it is a nursery: it imports Shoal once and then forks a
writer for every line it is given, so that tests can start and kill real processes in milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.replay import Column, NStepView, Schema, SequenceView, ShardInfo, ShardReader, ShardWriter, step_schema
from shoal.types import CUT, EnvSpec, Sample

WORDS = 32
MIX = np.uint64(0x9E3779B97F4A7C15)
LIFE_SECONDS = 60.0


def schema(stack: int = 1) -> Schema:
    """Observations of `WORDS` 64-bit words, and the logical number once more as an extra column."""
    shape = (stack, WORDS) if stack > 1 else (WORDS,)
    spec = EnvSpec("Marked-v0", shape, "uint64", stack, num_actions=4, action_shape=())
    return step_schema(spec, (Column("tag", "int64"),))


def info(rows: int, lanes: int, stack: int = 1) -> ShardInfo:
    """A shard of marked rows."""
    return ShardInfo(schema(stack), rows, lanes, run="test", env_id="Marked-v0")


def period(lane: Any) -> Any:
    """Rows from one episode's start to the next, the FINAL row included."""
    return 5 + 2 * np.asarray(lane)


def obs_of(salt: Any, lane: Any, logical: Any) -> Any:
    """[..., WORDS]: the first word names the row, the others follow from it, each in its own way."""
    word = (np.asarray(logical).astype(np.uint64) << np.uint64(16)) | np.asarray(lane << 8 | salt).astype(np.uint64)
    index = np.arange(WORDS, dtype=np.uint64)
    return np.where(index == 0, word[..., None], word[..., None] * MIX + index)


def rows_of(salt: Any, lane: Any, logical: Any) -> dict[str, Any]:
    """The columns of rows; the arguments are broadcast against each other."""
    salt, lane, logical = np.broadcast_arrays(salt, lane, logical)
    position, episode = logical % period(lane), logical // period(lane)
    ends, final = position == period(lane) - 2, position == period(lane) - 1
    return {
        "obs": obs_of(salt, lane, logical),
        "action": (logical * 31 + lane * 7 + salt) % 1009,
        "reward": np.where(final, 0, (logical * 3 + lane + salt) % 17 - 8).astype(np.float32),
        "terminated": ends & (episode % 2 == 0),
        "truncated": ends & (episode % 2 == 1),
        "boundary": final.astype(np.uint8),
        "weights_version": (logical % 1000).astype(np.uint32),
        "tag": logical.astype(np.int64),
    }


def block_of(salt: int, lanes: int, start: int, count: int) -> dict[str, Any]:
    """[count, lanes, ...] rows, as `append_chunk` takes them."""
    return rows_of(salt, np.arange(lanes)[None, :], np.arange(start, start + count)[:, None])


class Checker:
    """Knows what every sample of marked rows must be. `salts` and `cuts` are by shard."""

    def __init__(self, salts: Iterable[int], cuts: Iterable[Iterable[int]] = ()) -> None:
        self.salts = np.array(list(salts))
        self.cuts = [np.array(sorted(one), dtype=np.int64) for one in cuts] or [np.empty(0, np.int64)] * len(self.salts)

    def _last_cut(self, shard: Any, logical: Any) -> Any:
        """The last CUT row at or below each row; -1 when there is none."""
        found = np.full(np.shape(logical), -1, np.int64)
        for index, cuts in enumerate(self.cuts):
            before = np.searchsorted(cuts, logical, side="right") - 1
            known = np.append(cuts, -1)[before]
            found = np.where(shard == index, known, found)
        return found

    def stacks(self, shard: Any, lane: Any, logical: Any, stack: int) -> Any:
        """[..., stack, WORDS] frames as the actor saw them, zeros before the episode's first."""
        frames = []
        begin = np.maximum(logical - logical % period(lane), self._last_cut(shard, logical) + 1)
        for back in reversed(range(stack)):
            frame = obs_of(self.salts[shard], lane, np.maximum(logical - back, 0))
            frames.append(np.where((logical - back >= begin)[..., None], frame, np.uint64(0)))
        return np.stack(frames, axis=-2) if stack > 1 else frames[0]

    def wrong(self, sample: Sample, view: NStepView | SequenceView) -> Any:
        """[B] True where anything differs from what was written."""
        check = self._wrong_transition if isinstance(view, NStepView) else self._wrong_sequence
        return check(sample, view)

    def _wrong_transition(self, sample: Sample, view: Any) -> Any:
        (shard, lane, logical), data = sample.keys, sample.data
        first = rows_of(self.salts[shard], lane, logical)
        total, discount, following = np.zeros(len(lane)), np.ones(len(lane)), logical.copy()
        running = np.ones(len(lane), bool)
        for _ in range(view.n):
            row = rows_of(self.salts[shard], lane, following)
            total += np.where(running, discount * row["reward"], 0.0)
            discount *= np.where(running, view.gamma, 1.0)
            following += running
            discount[running & row["terminated"]] = 0.0
            running &= ~(row["terminated"] | row["truncated"])
        wrong = first["boundary"] != 0
        # What follows a terminal step is never used, so a CUT there does no harm.
        open_end = (discount > 0) | ~np.isin(following, np.concatenate(self.cuts))
        wrong |= self._last_cut(shard, following - (discount == 0)) >= logical
        wrong |= np.any(data.obs != self.stacks(shard, lane, logical, view.stack), axis=_rest(data.obs))
        differs = np.any(data.next_obs != self.stacks(shard, lane, following, view.stack), axis=_rest(data.obs))
        wrong |= differs & open_end
        wrong |= data.action != first["action"]
        return wrong | ~np.isclose(data.reward, total, atol=1e-4) | ~np.isclose(data.discount, discount, atol=1e-5)

    def _wrong_sequence(self, sample: Sample, view: Any) -> Any:
        (shard, lane, logical), data = sample.keys, sample.data
        when = logical[None, :] + np.arange(view.steps + 1)[:, None]
        rows = rows_of(self.salts[shard], lane, when)
        wrong = self._last_cut(shard, when[-1]) >= logical
        wrong |= np.any(data.obs != self.stacks(shard, lane, when, view.stack), axis=(0, *_rest(data.obs)[1:]))
        wrong |= np.any(data.boundary != rows["boundary"], axis=0) | np.any(data.extras["tag"] != when, axis=0)
        for name in ("action", "reward", "terminated", "truncated"):
            wrong |= np.any(getattr(data, name) != rows[name][:-1], axis=0)
        return wrong

    def check_ring(self, reader: ShardReader, shard: int) -> int:
        """Compares every whole row of a shard nobody is writing; returns how many there were."""
        logical = np.arange(reader.oldest, reader.head)
        expected = rows_of(self.salts[shard], np.arange(reader.lanes)[None, :], logical[:, None])
        broken = np.isin(logical, self.cuts[shard])
        for name, column in reader.columns.items():
            stored = column[logical % reader.rows]
            assert np.array_equal(stored[~broken], expected[name][~broken]), f"column {name} changed"
            assert np.all(stored[broken] == (CUT if name == "boundary" else 0)), f"column {name} of a CUT row"
        return len(logical)


def _rest(array: Any) -> tuple[int, ...]:
    return tuple(range(1, array.ndim))


def write_at_full_speed(path: Path, salt: int, seed: int, chunks: bool) -> None:
    """Appends, one row at a time and in chunks of all sizes, until killed."""
    writer, rng = ShardWriter(path), random.Random(seed)
    lanes, rows = writer.info.lanes, writer.info.rows
    deadline, nursery = time.monotonic() + LIFE_SECONDS, os.getppid()
    while time.monotonic() < deadline and os.getppid() == nursery:
        count = min(rows, 256)
        block, used = block_of(salt, lanes, writer.head, count), 0
        while used < count:
            size = rng.randint(1, min(96, count - used)) if chunks and rng.random() < 0.3 else 0
            if size:
                writer.append_chunk({name: column[used : used + size] for name, column in block.items()})
            else:
                size = min(8, count - used)
                for row in range(used, used + size):
                    writer.append({name: column[row] for name, column in block.items()})
            used += size


def _nursery() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "wait":
            status = os.waitpid(command["pid"], 0)[1]
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        else:
            child = os.fork()
            if child == 0:
                try:
                    write_at_full_speed(Path(command["path"]), command["salt"], command["seed"], command["chunks"])
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _nursery()
