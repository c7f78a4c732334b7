"""Views against a slow, obvious reference that keeps the whole history as a list.

Hypothesis makes the streams: lanes, episode lengths, terminations, truncations, CUTs, chunked appends, rings that
wrap, readers that attach late or lag. Then every batch must hold what the reference says, no start may be drawn that
the reference does not allow, and every one that it does allow must turn up.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ReplayError, WrongSchema
from shoal.replay import Column, NStepView, Prioritized, Replay, SequenceView, Uniform
from shoal.replay.gather import Copier
from shoal.replay.shard_table import ShardTable
from shoal.replay.views import SMALL
from shoal.types import CUT, FINAL, STEP, Keys, Sample, Sequence

EXTRAS = (Column("log_prob", "float32"), Column("core", "float32", (3,)), Column("odd", "uint8", (5,)))
LAYOUTS = (("float32", (2,)), ("uint8", (3,)), ("uint8", (2, 4)), ("int16", ()), ("float32", (6,)), ("float32", (200,)))


@dataclass
class Row:
    """One step of one lane."""

    boundary: int
    obs: Any
    action: int
    reward: float
    terminated: bool = False
    truncated: bool = False
    extras: dict[str, Any] = field(default_factory=dict)


Key = tuple[int, int]
Reference = dict[Key, dict[str, Any]]


class Lane:
    """The whole history of one lane, and what views must make of it."""

    def __init__(self, lane: int, episodes: list[tuple[int, str]], dtype: str, shape: tuple[int, ...]) -> None:
        self.rows: list[Row] = []
        self._lane, self._dtype, self._shape = lane, dtype, shape
        self._episodes = cycle(episodes)
        self._begin()

    def _begin(self) -> None:
        self._left, self._ending = next(self._episodes)
        self._final = False

    def _values(self, dtype: str, shape: tuple[int, ...], salt: int) -> Any:
        first = len(self.rows) * 7 + self._lane * 31 + salt
        numbers = first + 13 * np.arange(int(np.prod(shape)))
        return (numbers % 125 + 1).astype(dtype).reshape(shape)  # never zero, so that blanks are told apart

    def step(self) -> None:
        """One more row."""
        t = len(self.rows)
        extras = {column.name: self._values(column.dtype, column.shape, 5) for column in EXTRAS}
        row = Row(
            STEP,
            self._values(self._dtype, self._shape, 0),
            t * 3 + self._lane,
            (t * 5 + self._lane) % 11 - 5.0,
            extras=extras,
        )
        self.rows.append(row)
        if self._final:
            row.boundary, row.reward = FINAL, 0.0
            self._begin()
            return
        self._left -= 1
        if self._left == 0:
            row.terminated, row.truncated = (
                self._ending in ("terminated", "both"),
                self._ending in ("truncated", "both"),
            )
            self._final = True

    def cut(self) -> None:
        """The stream breaks; a new episode begins after it."""
        blanks = {column.name: np.zeros(column.shape, column.dtype) for column in EXTRAS}
        self.rows.append(Row(CUT, np.zeros(self._shape, self._dtype), 0, 0.0, extras=blanks))
        self._begin()

    def stack(self, t: int, frames: int) -> Any:
        """The newest frames of row t's episode, zeros before its first."""
        if frames == 1:
            return self.rows[t].obs
        first = t
        while first > 0 and self.rows[first - 1].boundary == STEP:
            first -= 1
        return np.stack(
            [self.rows[k].obs if k >= first else np.zeros_like(self.rows[t].obs) for k in range(t - frames + 1, t + 1)]
        )

    def transition(self, t: int, n: int, gamma: float, frames: int) -> dict[str, Any] | None:
        """The n-step transition that begins at row t; None where there is none."""
        rows = self.rows
        if t + n >= len(rows) or rows[t].boundary != STEP:
            return None
        total, discount, k = 0.0, 1.0, t
        while k < t + n:
            total += discount * rows[k].reward
            discount *= gamma
            k += 1
            if rows[k - 1].terminated:
                discount = 0.0
                break
            if rows[k].boundary == CUT:
                return None
            if rows[k - 1].truncated:
                break
        return {
            "obs": self.stack(t, frames),
            "action": rows[t].action,
            "reward": total,
            "discount": discount,
            "next_obs": None if rows[k].boundary == CUT else self.stack(k, frames),  # unused after a terminal step
        }

    def sequence(self, t: int, steps: int, frames: int) -> dict[str, Any] | None:
        """The unbroken stretch of rows t to t + steps; None where there is none."""
        rows = self.rows[t : t + steps + 1]
        if len(rows) <= steps or any(row.boundary == CUT for row in rows):
            return None
        return {
            "obs": np.stack([self.stack(t + k, frames) for k in range(steps + 1)]),
            "action": [row.action for row in rows[:-1]],
            "reward": [row.reward for row in rows[:-1]],
            "terminated": [row.terminated for row in rows[:-1]],
            "truncated": [row.truncated for row in rows[:-1]],
            "boundary": [row.boundary for row in rows],
            "log_prob": np.stack([row.extras["log_prob"] for row in rows]),
            "odd": np.stack([row.extras["odd"] for row in rows]),
            "core": rows[0].extras["core"],
        }


@dataclass(frozen=True)
class Case:
    """One stream and how it is written and read."""

    layout: tuple[str, tuple[int, ...]]
    stack: int
    spare_rows: int
    episodes: list[list[tuple[int, str]]]
    events: list[tuple[str, int]]
    attach_after: int
    prioritized: bool


EPISODES = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from(["terminated", "truncated", "both"])), min_size=1, max_size=5
)
EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("chunk"), st.integers(1, 30)),
    st.tuples(st.just("cut"), st.integers(1, 3)),
    st.tuples(st.just("look"), st.just(0)),
)
CASES = st.builds(
    Case,
    layout=st.sampled_from(LAYOUTS),
    stack=st.integers(1, 4),
    spare_rows=st.integers(0, 30),
    episodes=st.lists(EPISODES, min_size=1, max_size=3),
    events=st.lists(EVENTS, min_size=1, max_size=14),
    attach_after=st.integers(0, 14),
    prioritized=st.booleans(),
)


class Stream:
    """A shard and, beside it, the whole history of what was written into it."""

    def __init__(self, case: Case, shards: Any, ring: int) -> None:
        dtype, shape = case.layout
        self.lanes = [Lane(index, episodes, dtype, shape) for index, episodes in enumerate(case.episodes)]
        self.writer, self.reader = shards.small(
            ring, len(self.lanes), obs=shape, dtype=dtype, stack=case.stack, extras=EXTRAS
        )

    def apply(self, kind: str, size: int) -> None:
        """Writes."""
        begin = len(self.lanes[0].rows)
        for _ in range(size):
            for lane in self.lanes:
                lane.cut() if kind == "cut" else lane.step()
        if kind == "cut":
            self.writer.cut(size)
            return
        rows = [self._columns(t) for t in range(begin, begin + size)]
        if kind == "append":
            for row in rows:
                self.writer.append(row)
        else:
            step = self.reader.rows
            for first in range(0, size, step):
                part = rows[first : first + step]
                self.writer.append_chunk({name: np.stack([row[name] for row in part]) for name in part[0]})

    def _columns(self, t: int) -> dict[str, Any]:
        rows = [lane.rows[t] for lane in self.lanes]
        names = ("obs", "action", "reward", "terminated", "truncated", "boundary")
        columns = {name: np.stack([np.asarray(getattr(row, name)) for row in rows]) for name in names}
        columns |= {column.name: np.stack([row.extras[column.name] for row in rows]) for column in EXTRAS}
        return columns | {"weights_version": np.full(len(rows), t)}

    def reference(self, view: NStepView | SequenceView) -> Reference:
        """Every start the history allows, by (lane, row), and what must come of it; also of overwritten ones."""
        found = {}
        for index, lane in enumerate(self.lanes):
            for t in range(len(lane.rows)):
                if isinstance(view, NStepView):
                    one = lane.transition(t, view.n, view.gamma, view.stack)
                else:
                    one = lane.sequence(t, view.steps, view.stack)
                if one is not None:
                    found[index, t] = one
        return found


class Expected:
    """A reference as arrays, to compare whole batches."""

    def __init__(self, reference: Reference) -> None:
        self._index = {key: index for index, key in enumerate(reference)}
        self._arrays: dict[str, Any] = {}
        self._used: dict[str, Any] = {}
        for name in next(iter(reference.values()), {}):
            values = [one[name] for one in reference.values()]
            blank = np.zeros_like(np.asarray(next((value for value in values if value is not None), 0)))
            self._used[name] = np.array([value is not None for value in values])
            self._arrays[name] = np.stack([blank if value is None else np.asarray(value) for value in values])

    def compare(self, sample: Sample, at_start: tuple[str, ...] = ()) -> set[Key]:
        """Checks every draw of a batch; returns the starts drawn."""
        keys = list(zip(sample.keys.lane.tolist(), sample.keys.logical.tolist(), strict=True))
        for key in keys:
            assert key in self._index, f"nothing may start at lane {key[0]}, row {key[1]}"
        rows = np.array([self._index[key] for key in keys])
        data = {**sample.data._asdict(), **getattr(sample.data, "extras", {})}
        for name, expected in self._arrays.items():
            if not self._used[name].any():  # only terminal steps: no successor to compare
                continue
            got = data[name]
            if isinstance(sample.data, Sequence) and name not in at_start:
                got = np.moveaxis(got, 1, 0)  # [B, T, ...]
            same = (got == expected[rows].astype(got.dtype)).reshape(len(keys), -1).all(1) | ~self._used[name][rows]
            assert same.all(), (
                f"{name} of lane, row {[key for key, right in zip(keys, same, strict=True) if not right]}"
            )
        return set(keys)


def _run(case: Case, view_of: Callable[[Any], NStepView | SequenceView], shards: Any) -> None:
    """Writes the stream, looks now and then, and in the end until everything was seen."""
    schema = shards.small(2, stack=case.stack, obs=case.layout[1], dtype=case.layout[0], extras=EXTRAS)[1].info.schema
    view = view_of(schema)
    ring = 2 * (view.span.before + view.span.after) + 16 + case.spare_rows
    stream = Stream(case, shards, ring)
    at_start = ("core",) if isinstance(view, SequenceView) else ()
    replay: Replay | None = None

    def attach() -> Replay:
        return Replay(
            [stream.reader], Prioritized() if case.prioritized else Uniform(), view, 32, seed=len(case.events)
        )

    for number, (kind, size) in enumerate([*case.events, ("look", 0)]):
        if number == min(case.attach_after, len(case.events)):
            replay = attach()
        if kind != "look":
            stream.apply(kind, size)
        elif replay is not None:
            sample = replay.sample()
            if sample is not None:
                Expected(stream.reference(view)).compare(sample, at_start)
    assert replay is not None
    _check_all_starts(replay, stream, view, at_start)


def _check_all_starts(
    replay: Replay, stream: Stream, view: NStepView | SequenceView, at_start: tuple[str, ...]
) -> None:
    reference, reader, before = stream.reference(view), stream.reader, view.span.before
    # A start is certain when its frames are beyond the writer's reach; a few rows nearer to it may be given up.
    oldest = max(0, reader.head - reader.rows)
    margin = max(1, reader.rows // 16)
    whole = {key: one for key, one in reference.items() if key[1] - before >= oldest or oldest == 0}
    certain = {key for key in whole if key[1] >= reader.head - reader.rows + before + margin}
    expected, seen = Expected(whole), set()
    draws = math.ceil(len(whole) * (math.log(len(whole) + 1) + 16) / 32) + 1
    for _ in range(draws):
        sample = replay.sample()
        if sample is None:
            break
        assert sample.size == replay.size <= len(whole)
        seen |= expected.compare(sample, at_start)
        if seen >= certain:
            break
    assert seen >= certain, f"never drawn: {sorted(certain - seen)}"
    assert replay.size >= len(certain)


@settings(max_examples=60)
@given(case=CASES, n=st.integers(1, 4), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_transitions(case: Case, n: int, gamma: float, shards_in: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(case, lambda schema: NStepView(schema, n, gamma), shards_in(Path(folder)))


@settings(max_examples=60)
@given(case=CASES, length=st.integers(1, 6), burn_in=st.integers(0, 4))
def test_sequences(case: Case, length: int, burn_in: int, shards_in: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(
            case,
            lambda schema: SequenceView(schema, length, burn_in, ("log_prob", "odd"), ("core",)),
            shards_in(Path(folder)),
        )


def _hand_made(shards: Any, blank: Callable[..., Any], **schema: Any) -> tuple[Any, Any]:
    """One lane of ten rows with reward 1, 2, 4, …: row 3 terminates (4 is FINAL), row 7 truncates (8 is FINAL)."""
    writer, reader = shards.small(64, obs=(1,), **schema)
    rows = blank(writer.info, 10, obs=np.arange(1, 11)[:, None, None], action=np.arange(10)[:, None])
    rows["reward"][:, 0] = [1, 2, 4, 8, 0, 16, 32, 64, 0, 128]
    rows["terminated"][3], rows["truncated"][7] = True, True
    rows["boundary"][[4, 8]] = FINAL
    writer.append_chunk(rows)
    return writer, reader


def _fill(view: Any, reader: Any, logical: list[int]) -> Any:
    out = view.allocate(reader.info.schema, len(logical), np.zeros)
    numbers = np.array(logical, np.int64)
    keys = Keys(np.zeros(len(numbers), np.int32), np.zeros(len(numbers), np.int32), numbers)
    view.fill(ShardTable([reader]), keys, np.arange(len(numbers)), out, Copier())
    return out


def test_hand_worked_transitions(shards: Any, blank: Any) -> None:
    _, reader = _hand_made(shards, blank)
    out = _fill(NStepView(reader.info.schema, 2, 0.5), reader, [0, 2, 3, 5, 6, 7])
    assert out.reward.tolist() == [1 + 0.5 * 2, 4 + 0.5 * 8, 8, 16 + 0.5 * 32, 32 + 0.5 * 64, 64]
    assert out.discount.tolist() == [0.25, 0.0, 0.0, 0.25, 0.25, 0.5]
    assert out.next_obs[:, 0].tolist() == [3, 5, 5, 8, 9, 9]  # the final observations of rows 4 and 8
    assert out.obs[:, 0].tolist() == [1, 3, 4, 6, 7, 8]
    assert out.action.tolist() == [0, 2, 3, 5, 6, 7]


def test_hand_worked_stacks(shards: Any, blank: Any) -> None:
    """Zeros before an episode's first frame; the final observation is stacked upon the episode it ends."""
    _, reader = _hand_made(shards, blank, stack=3)
    out = _fill(NStepView(reader.info.schema, 1, 0.9), reader, [0, 1, 2, 3, 5, 7, 9 - 1])
    assert out.obs[:, :, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 6], [6, 7, 8], [7, 8, 9]]
    assert out.next_obs[:6, :, 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [0, 6, 7], [7, 8, 9]]


def test_hand_worked_sequence(shards: Any, blank: Any) -> None:
    _, reader = _hand_made(shards, blank)
    view = SequenceView(reader.info.schema, length=2, burn_in=1)
    assert (view.steps, view.span.after) == (3, 3)
    out = _fill(view, reader, [2, 5])
    assert out.obs[:, :, 0].T.tolist() == [[3, 4, 5, 6], [6, 7, 8, 9]]
    assert out.boundary.T.tolist() == [[STEP, STEP, FINAL, STEP], [STEP, STEP, STEP, FINAL]]
    assert out.reward.T.tolist() == [[4, 8, 0], [16, 32, 64]]
    assert out.terminated.T.tolist() == [[False, True, False], [False, False, False]]
    assert out.truncated.T.tolist() == [[False, False, False], [False, False, True]]


def test_a_view_forgets_shards_that_are_gone(shards: Any, blank: Any) -> None:
    """A new reader may get the address of one that is gone; its rows are its own all the same."""
    _, first = _hand_made(shards, blank)
    view, schema = NStepView(first.info.schema, 1, 0.9), first.info.schema
    for number in range(20):
        writer, reader = shards.small(64, obs=(1,))
        assert reader.info.schema == schema
        writer.append_chunk(blank(writer.info, 10, obs=number))
        assert _fill(view, reader, [3]).obs.tolist() == [[number]]
        del writer, reader


def test_views_that_cannot_be_are_refused(schema_of: Callable[..., Any]) -> None:
    schema = schema_of(extras=EXTRAS)
    for n, gamma in ((0, 0.9), (1, -0.1), (1, 1.1)):
        with pytest.raises(ReplayError, match=f"n={n}, gamma={gamma}"):
            NStepView(schema, n, gamma)
    for length, burn_in in ((0, 0), (1, -1)):
        with pytest.raises(ReplayError, match=f"got {length} and {burn_in}"):
            SequenceView(schema, length, burn_in)
    with pytest.raises(WrongSchema, match="No column 'logits'"):
        SequenceView(schema, 2, 0, ("logits",))
    with pytest.raises(ReplayError, match="core"):
        SequenceView(schema, 2, 0, ("core", "log_prob"), ("core",))


def test_small_rows_lie_draw_by_draw_and_large_ones_by_time(schema_of: Any) -> None:
    """Time is the first axis either way. Extras stay by time: learners drop their last row."""
    schema = schema_of(obs=(17,), extras=(Column("logits", "float32", (3,)),))
    assert schema["obs"].nbytes > SMALL >= schema["action"].nbytes
    batch: Any = SequenceView(schema, 4, 1, ("logits",)).allocate(schema, 8, np.zeros)
    assert batch.obs.shape == (6, 8, 17) and batch.obs.flags.c_contiguous
    assert batch.reward.shape == (5, 8) and batch.reward.T.flags.c_contiguous
    assert batch.extras["logits"].shape == (6, 8, 3) and batch.extras["logits"].flags.c_contiguous


def test_a_narrowed_batch_is_the_same_memory(schema_of: Any) -> None:
    schema = schema_of(stack=2, extras=(Column("logits", "float32", (3,)), Column("state", "float32", (5,))))
    sequence = SequenceView(schema, 4, 1, ("logits",), ("state",))
    whole: Any = sequence.allocate(schema, 8, np.zeros)
    part: Any = sequence.narrowed(whole, 3)
    for name in whole._fields[:-1]:
        assert getattr(part, name).shape[1] == 3 and np.shares_memory(getattr(part, name), getattr(whole, name))
    assert part.extras["logits"].shape == (6, 3, 3) and part.extras["state"].shape == (3, 5)
    transitions = NStepView(schema, 1, 0.9)
    batch: Any = transitions.allocate(schema, 8, np.zeros)
    few: Any = transitions.narrowed(batch, 3)
    for name in batch._fields:
        assert len(getattr(few, name)) == 3 and np.shares_memory(getattr(few, name), getattr(batch, name))
