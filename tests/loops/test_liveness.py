"""Nobody waits for ever: whatever validation lets through, actors go on writing and the learner goes on learning."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import prepared

from shoal.config.checks import check_environment
from shoal.config.load import settings_for
from shoal.errors import ConfigError
from shoal.loops import assembly
from shoal.loops.gradient_board import GradientBoard, PushCounts
from shoal.loops.plan import make_limiter
from shoal.loops.settings import RunSettings
from shoal.replay import LedgerWord, ShardReader

ENV = "tests.fakes:TestCorridor-v0"
TURNS = 4_000
DROPS = "{type: fifo, on_full: drop, capacity: 16}"


class Turns:
    """Real actors and a real learner, one step and one update each in turn, as the inline runtime does it."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.settings = settings
        self.plan, self.ledger = prepared(folder, settings)
        self.learner = assembly.build_learner(self.plan)
        self.actors = [assembly.build_actor(self.plan, index) for index in range(settings.actors)]

    def restart_actors(self) -> None:
        """As if all were killed: every stream is broken, wherever it is."""
        self.actors = [assembly.build_actor(self.plan, index) for index in range(len(self.actors))]

    def restart_learner(self) -> None:
        """As if it was killed; a last checkpoint was saved."""
        self.learner.save()
        self.learner.close()
        self.learner = assembly.build_learner(self.plan)

    def go_on(self, updates: int, *, only: int | None = None) -> None:
        """Until so many more updates were made; fails when they are not in so many turns."""
        wanted, inserts = self.ledger.updates + updates, self.ledger.inserts
        for _ in range(TURNS):
            for actor in self.actors if only is None else [self.actors[only]]:
                actor.run(steps=1)
            self.learner.run(updates=1)
            if self.ledger.updates >= wanted:
                return
        raise AssertionError(
            f"{self.ledger.updates} of {wanted} updates, {self.ledger.inserts} inserts ({inserts} before)"
        )

    def close(self) -> None:
        self.learner.close()


SELECTORS = {
    "apex-dqn": ["[{type: prioritized}]", "[{type: uniform, capacity: 1}]", "[{type: newest, fraction: 0.01}]"],
    "impala": [
        "[{type: uniform}]",
        "[{type: elite, capacity: 3, insertion: true, insertion_sample: 2}]",
        "[{type: fifo}]",
        "[{type: fifo, on_full: drop, capacity: 1}]",
        "[{type: fifo, ratio: 0.5, capacity: 1}, {type: uniform, ratio: 0.5, capacity: 1}]",
        "[{type: circular, ratio: 0.5, slots: 2}, {type: attentive, ratio: 0.5, capacity: 2}]",
        "[{type: circular, on_full: drop, passes: 3, ratio: 0.5}, {type: newest, fraction: 0.01, ratio: 0.5}]",
    ],
    "ppo": ["[{type: rollout}]", "[{type: rollout, lag: 1}]", "[{type: rollout, share: 0.3}]"],
    "a3c": ["[{type: rollout}]"],
}


@st.composite
def choices(draw: Any) -> tuple[str, list[str]]:
    """An algorithm, and settings that pull in different directions."""
    algo = draw(st.sampled_from(sorted(SELECTORS)))
    sizes = {
        "replay.selectors": draw(st.sampled_from(SELECTORS[algo])),
        "replay.capacity": draw(st.sampled_from([1_000, 4_000])),
        "actors": draw(st.integers(1, 3)),
        "env.lanes": draw(st.sampled_from([1, 2, 5])),
    }
    settings = {
        "replay.samples_per_insert": draw(st.sampled_from(["null", 0.25, 1, 2, 8, 64])),
        "replay.min_size": draw(st.sampled_from([1, 7, 100])),
        "learner.batch_size": draw(st.sampled_from([1, 2, 16])),
        "learner.batch.min": draw(st.sampled_from(["null", 1])),
        "learner.prefetch": draw(st.sampled_from([0, 0, 0, 2])),  # seldom: each wait takes time
    }
    settings = sizes if algo in ("ppo", "a3c") else sizes | settings
    if algo == "a3c":
        settings |= {
            "k": draw(st.sampled_from([1, 2, 5, "actors"])),
            "on_full": draw(st.sampled_from(["wait", "newest"])),
        }
    if algo != "apex-dqn":
        lstm = draw(st.sampled_from([0, 4]))
        settings |= {"unroll": draw(st.sampled_from([1, 5, 20])), "lstm": lstm, "hidden": "[4]"}
        settings |= {"burn_in": draw(st.sampled_from([0, 3]))} if lstm and algo == "impala" else {}
    else:
        settings |= {"n_step": draw(st.sampled_from([1, 3, 20, 64])), "hidden": "[4]"}
    return algo, [f"{name}={value}" for name, value in settings.items()]


@pytest.mark.parametrize(
    ("algo", "overrides"),
    [
        ("apex-dqn", ["n_step=20", "min_size=1", "batch_size=8", "samples_per_insert=8", "env.lanes=4"]),
        ("impala", ["replay=[{type: uniform}]", "samples_per_insert=8", "batch_size=16", "env.lanes=8"]),
        ("impala", [f"replay=[{DROPS}]", "samples_per_insert=1", "batch_size=2", "env.lanes=4"]),
    ],
)
def test_learning_begins_and_goes_on_at_the_ratio(tmp_path: Path, algo: str, overrides: list[str]) -> None:
    """More rows are needed for a first batch than the rate limiter would let actors write ahead of it."""
    turns = Turns(tmp_path, settings_for(ENV, algo, [*overrides, "actors=2", "learner.prefetch=0", "hidden=[4]"]))
    turns.go_on(60)
    turns.close()
    limiter, ledger = make_limiter(turns.settings), turns.ledger
    error, batch = limiter.error(ledger.inserts, ledger[LedgerWord.SAMPLES]), turns.settings.rows_per_batch
    assert -limiter.tolerance - batch <= error <= limiter.tolerance + batch * 8, "what was granted is made up for"


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(choices())
def test_whatever_passes_validation_learns_and_goes_on(choice: tuple[str, list[str]]) -> None:
    algo, overrides = choice
    try:
        chosen = settings_for(ENV, algo, overrides)
        check_environment(chosen)
    except ConfigError:
        return  # said before anything is started
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(Path(folder), chosen)
        try:
            turns.go_on(3)
            turns.restart_actors()
            turns.go_on(3)
            waits = algo == "ppo" or (algo == "a3c" and "k=1" not in overrides and "on_full=wait" in overrides)
            if not waits or "share" in str(overrides):  # else it waits for them: a run restarts its actors
                turns.go_on(1 if algo == "ppo" else 3, only=0)  # the others are dead, or slow
        finally:
            turns.close()


@pytest.mark.parametrize("lag", [0, 1])
def test_rollouts_are_of_the_newest_weights(tmp_path: Path, lag: int) -> None:
    """The first row of a rollout is the bootstrap row of the one before, and may be one version older."""
    selector = f"replay=[{{type: rollout, lag: {lag}}}]"
    turns = Turns(tmp_path, settings_for(ENV, "ppo", [selector, "actors=2", "env.lanes=2", "unroll=6", "hidden=[4]"]))
    for _ in range(5):
        turns.go_on(1)
        turns.restart_learner()  # repeats nothing that was learned from
    turns.restart_actors()
    turns.go_on(2)
    turns.close()
    for path in turns.plan.shards:
        versions = ShardReader(path).columns["weights_version"][:, 0][:31].astype(int)  # before the restart of actors
        assert versions[0] == 1, "no step before there are weights"
        assert (np.diff(versions[1:].reshape(5, 6)) == 0).all(), versions


def test_a_share_of_the_actors_is_enough(tmp_path: Path) -> None:
    chosen = ["replay=[{type: rollout, share: 0.5}]", "actors=2", "env.lanes=2", "unroll=6", "hidden=[4]"]
    turns = Turns(tmp_path, settings_for(ENV, "ppo", chosen))
    turns.go_on(4, only=1)
    turns.go_on(4)
    turns.close()


def test_all_actors_are_waited_for(tmp_path: Path) -> None:
    turns = Turns(tmp_path, settings_for(ENV, "ppo", ["actors=2", "env.lanes=2", "unroll=6", "hidden=[4]"]))
    with pytest.raises(AssertionError, match="0 of 1 updates"):
        turns.go_on(1, only=1)
    turns.go_on(2)
    turns.close()


def counts_of(turns: Turns) -> list[PushCounts]:
    return [GradientBoard(turns.plan.paths.gradients(index)).counts for index in range(turns.settings.actors)]


@pytest.mark.parametrize(("on_full", "k"), [("wait", 1), ("wait", 2), ("wait", "actors"), ("newest", 1), ("newest", 7)])
def test_gradients_keep_coming_whoever_is_restarted(tmp_path: Path, on_full: str, k: int | str) -> None:
    rules = [f"on_full={on_full}", f"k={k}", "actors=3", "env.lanes=2", "unroll=6", "hidden=[4]"]
    turns = Turns(tmp_path, settings_for(ENV, "a3c", rules))
    turns.go_on(6)
    turns.restart_learner()
    turns.go_on(3)
    turns.restart_actors()
    turns.go_on(3)
    if k != "actors":
        turns.go_on(2, only=0 if k == 1 or on_full == "newest" else None)  # the others are dead, or slow
    turns.close()
    counts = counts_of(turns)
    assert all(one.pushed == one.applied + one.dropped and one.waiting == 0 for one in counts)
    taken = 3 if k == "actors" else k
    assert sum(one.applied for one in counts) == turns.ledger.updates * taken


def test_a_rollout_is_of_one_policy_and_a2c_is_never_stale(tmp_path: Path) -> None:
    turns = Turns(tmp_path, settings_for(ENV, "a3c", ["k=actors", "actors=2", "env.lanes=2", "unroll=6", "hidden=[4]"]))
    turns.go_on(6)
    assert turns.learner.run(updates=1).staleness == 0
    turns.close()
    for path in turns.plan.shards:
        versions = ShardReader(path).columns["weights_version"][:, 0][:36].astype(int)
        assert (versions.reshape(6, 6) == np.arange(1, 7)[:, None]).all(), versions
    assert [one.dropped for one in counts_of(turns)] == [0, 0]


def test_gradients_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    """Actor 1 sleeps with its first gradient while actor 0 learns."""
    rules = ["max_staleness=3", "on_full=newest", "actors=2", "env.lanes=1", "unroll=4", "hidden=[4]"]
    turns = Turns(tmp_path, settings_for(ENV, "a3c", rules))
    late = turns.actors[1]
    late.run(steps=3)  # one short of a rollout
    turns.go_on(8, only=0)
    late.run(steps=1)
    turns.learner.run(updates=1)
    assert counts_of(turns)[1] == (1, 0, 1, 0)
    late.run(steps=4)
    turns.learner.run(updates=1)
    assert counts_of(turns)[1] == (2, 1, 1, 0)
    turns.close()


def test_a_worker_that_does_not_wait_replaces_its_gradient(tmp_path: Path) -> None:
    rules = ["on_full=newest", "actors=1", "env.lanes=1", "unroll=4", "hidden=[4]"]
    turns = Turns(tmp_path, settings_for(ENV, "a3c", rules))
    turns.actors[0].run(steps=40)
    assert counts_of(turns)[0] == (10, 0, 9, 1)
    turns.learner.run(updates=1)
    assert counts_of(turns)[0] == (10, 1, 9, 0)
    turns.close()


def test_a_worker_that_waits_stops_at_its_gradient(tmp_path: Path) -> None:
    turns = Turns(tmp_path, settings_for(ENV, "a3c", ["actors=1", "env.lanes=1", "unroll=4", "hidden=[4]"]))
    turns.actors[0].run(steps=40)
    assert turns.plan.pushes is not None and counts_of(turns)[0] == (1, 0, 0, 1)
    turns.close()
    assert counts_of(turns)[0] == (1, 0, 1, 0), "what nobody will apply is dropped"
