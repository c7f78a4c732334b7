"""The inline runtime: every role in this process, in turn, as the rate limiter says.

Two runs with one seed give identical metrics (but for `time/…`), and a breakpoint stops everything. The debugger's
runtime.
"""

from __future__ import annotations

import sys

from shoal.errors import ShoalError
from shoal.loops import assembly
from shoal.loops.assembly import RunPaths
from shoal.replay import LedgerWord
from shoal.replay.ledger import WIND_DOWN
from shoal.runtime.run_folder import Status
from shoal.runtime.supervisor import Supervisor

RECORD_STEPS = 1_000
"""Environment steps between two lines of metrics: steps and not seconds, so that they do not depend on the clock."""


def run_inline(supervisor: Supervisor, places: RunPaths) -> Status:
    """Runs until the supervisor says how it ended."""
    settings, ledger = supervisor.settings, supervisor.ledger
    # A prefetching thread would make the order of draws and updates a race.
    settings = settings.model_copy(update={"learner": settings.learner.model_copy(update={"prefetch": 0})})
    pace = assembly.make_pace(settings, ledger)
    learner = assembly.build_learner(settings, places)
    actors = [assembly.build_actor(settings, places, index) for index in range(settings.actors)]
    evaluator = assembly.build_evaluator(settings, places)
    next_record = ledger.env_steps + RECORD_STEPS
    try:
        while (outcome := supervisor.outcome()) is None:
            for actor in actors:
                supervisor.actor(actor.run(steps=1))
            if updates := pace.batches_due(settings.rows_per_batch):
                supervisor.learner(learner.run(updates=updates))
            if ledger.env_steps >= next_record:
                next_record += RECORD_STEPS
                supervisor.record()
            if supervisor.take_evaluation_turn():
                supervisor.evaluation(evaluator.run(settings.evaluation.episodes, supervisor.evaluation_seconds))
            supervisor.tick()
        if outcome == "finished" and supervisor.final_evaluation_due:
            ledger[LedgerWord.STOP] = WIND_DOWN
            learner.end()
            supervisor.show()
            supervisor.note("judging the final weights")
            report = evaluator.run(settings.evaluation.episodes, supervisor.evaluation_seconds, final=True)
            supervisor.evaluation(report)
            outcome = supervisor.outcome() or outcome
        supervisor.record()
    finally:
        failing = sys.exception() is not None
        for actor in actors:
            actor.end()
        try:
            learner.end()
        except ShoalError:  # ruined weights are not saved; what ruined them is the error to show
            if not failing:
                raise
        learner.close()
        evaluator.end()
    return outcome
