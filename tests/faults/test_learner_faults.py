"""Several learners, killed for real: the others go on with the one that comes back, without a checkpoint."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.faults.test_ray_faults import SCENARIO, Start, ledger_of

pytestmark = pytest.mark.faults
REJOIN_SECONDS = float(os.environ.get("SHOAL_REJOIN_SECONDS", "60"))
"""The bar is 10 on a machine with free cores: most of it is the start of a process."""


def updates(training: object) -> int:
    ledger = ledger_of(training)  # type: ignore[arg-type]
    return ledger.updates if ledger else 0


def test_either_of_two_learners_may_die_and_the_run_solves(train: Start) -> None:
    training = train("train", SCENARIO, "learners=2", "learner.checkpoint_seconds=100000", "--stop-return", "1000000")
    training.wait_for(lambda: updates(training) > 100, "updates")
    took = []
    for role in ("learner 1", "learner 0", "learner 1", "learner 0", "learner 1"):
        pid = training.wait_for(lambda role=role: training.pids().get(role), f"process of {role}")
        os.kill(pid, signal.SIGKILL)
        killed, before = time.monotonic(), updates(training)
        training.wait_for(lambda before=before: updates(training) > before + 20, f"updates after {role} died")
        took.append(time.monotonic() - killed)
        assert updates(training) >= before
        training.wait_for(lambda role=role, pid=pid: training.pids().get(role) != pid, "its process to be known")
    print("seconds until 20 updates later:", [round(one, 1) for one in took])
    assert max(took) < REJOIN_SECONDS
    assert not list((training.run / "checkpoints").glob("step_*")), "nothing was restored from a checkpoint"
    assert "restart 5" in training.text and "goes back" not in training.text
    training.press_ctrl_c()
    assert training.end(60) == 0, training.output
    assert training.survivors() == []
    again = train("resume", "runs/latest", "learners=1", "--stop-return", "475")  # from its last checkpoint
    assert again.end(300) == 0, again.output
    assert again.read("summary.json")["status"] == "solved"
    assert again.survivors() == []
