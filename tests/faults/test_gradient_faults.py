"""Those who push gradients, and those who apply them, are killed: training goes on and every push is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.conftest import Training

from shoal.loops.gradient_board import GradientBoard, PushCounts
from shoal.replay import Ledger, LedgerWord, ShardReader

pytestmark = pytest.mark.faults
Start = Callable[..., Training]
UNROLL, ACTORS = 8, 2
SETTINGS = (f"unroll={UNROLL}", f"actors={ACTORS}", "env.lanes=2", "evaluation.every_steps=1000000", "replay.keep=true")


def boards(training: Training) -> list[GradientBoard]:
    replay = Path(training.read("replay.json").get("path", "missing"))
    found = sorted(replay.glob("gradients_???.bin"))
    return [GradientBoard(path) for path in found] if len(found) == ACTORS else []


def applied(training: Training) -> int:
    return sum(board.counts.applied for board in boards(training))


@pytest.mark.parametrize(("on_full", "k"), [("wait", ACTORS), ("newest", 1)], ids=["a2c", "newest"])
def test_the_server_and_any_worker_may_die(train: Start, on_full: str, k: int) -> None:
    training = train(
        "train", "CartPole-v1", "--algo", "a3c", *SETTINGS, f"on_full={on_full}", f"k={k}", "--seconds", "300"
    )
    training.wait_for(lambda: applied(training) > 50, "gradients")
    for role in ("learner", "actor 0", "learner", "actor 1"):
        training.kill_role(role)
        before = applied(training)
        training.wait_for(lambda before=before: applied(training) > before + 50, f"gradients after {role} died")
    training.press_ctrl_c()
    assert training.end(60) == 0, training.output
    assert training.read("summary.json")["restarts"] == 4 and "Traceback" not in training.output
    found = boards(training)
    counts = [board.counts for board in found]
    for board, one in zip(found, counts, strict=True):
        board.check()
        assert one.pushed == one.applied + one.dropped + one.waiting and min(one) >= 0
    total = PushCounts(*map(sum, zip(*counts, strict=True)))
    # Counted by others: updates by the learner; rows by the shards, of which each worker's death cost one rollout.
    replay = Path(training.read("replay.json")["path"])
    shards = sorted(replay.glob("shard_???"))
    ledger = Ledger(replay, shards)
    assert 0 <= ledger[LedgerWord.UPDATES] * k - total.applied <= 2 * k, "a killed server had at most one update open"
    rollouts = [ShardReader(path).head / UNROLL for path in shards]
    for pushed, complete in zip((one.pushed for one in counts), rollouts, strict=True):
        assert complete - 3 <= pushed <= complete, "every complete rollout was pushed"
    if on_full == "wait":
        assert total.dropped <= 2 * ACTORS + ACTORS, "only what died with a server, or waited at the end"
    assert training.survivors() == []


def test_a_killed_driver_leaves_gradients_that_a_resumed_run_counts_on(train: Start) -> None:
    training = train("train", "CartPole-v1", "--algo", "a3c", *SETTINGS, "--seconds", "300")
    training.wait_for(lambda: applied(training) > 50, "gradients")
    training.process.kill()
    training.process.wait()
    assert training.survivors(40) == []
    before = applied(training)
    again = train("resume", "runs/latest", "--seconds", "5")
    assert again.end() == 0, again.output
    counts = [board.counts for board in boards(again)]
    assert sum(one.applied for one in counts) > before
    assert all(one.pushed == one.applied + one.dropped + one.waiting for one in counts)
