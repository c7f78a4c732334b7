"""Nobody waits for ever: whatever validation lets through, actors go on writing and the learner goes on learning."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import prepared

from shoal.config.checks import check_environment
from shoal.config.load import settings_for
from shoal.errors import ConfigError
from shoal.loops import assembly
from shoal.loops.plan import make_limiter
from shoal.loops.settings import RunSettings
from shoal.replay import LedgerWord

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
}


@st.composite
def choices(draw: Any) -> tuple[str, list[str]]:
    """An algorithm, and settings that pull in different directions."""
    algo = draw(st.sampled_from(sorted(SELECTORS)))
    settings = {
        "replay.selectors": draw(st.sampled_from(SELECTORS[algo])),
        "replay.samples_per_insert": draw(st.sampled_from(["null", 0.25, 1, 2, 8, 64])),
        "replay.min_size": draw(st.sampled_from([1, 7, 100])),
        "replay.capacity": draw(st.sampled_from([1_000, 4_000])),
        "learner.batch_size": draw(st.sampled_from([1, 2, 16])),
        "learner.batch.min": draw(st.sampled_from(["null", 1])),
        "learner.prefetch": draw(st.sampled_from([0, 0, 0, 2])),  # seldom: each wait takes time
        "actors": draw(st.integers(1, 3)),
        "env.lanes": draw(st.sampled_from([1, 2, 5])),
    }
    if algo == "impala":
        lstm = draw(st.sampled_from([0, 4]))
        settings |= {"unroll": draw(st.sampled_from([1, 5, 20])), "lstm": lstm, "hidden": "[4]"}
        settings |= {"burn_in": draw(st.sampled_from([0, 3]))} if lstm else {}
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
            turns.go_on(3, only=0)  # the others are dead, or slow
        finally:
            turns.close()
