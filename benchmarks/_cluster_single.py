"""Rates of what an actor and a learner do on one node, as JSON; runs with the code of any commit (`PYTHONPATH`)."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.load import load_target
from shoal.loops.assembly import build_actor, make_pace, open_ledger
from shoal.loops.plan import make_plan
from shoal.loops.preparation import prepare
from shoal.loops.run_paths import RunPaths
from shoal.replay import NStepView, Prioritized, Replay, ShardReader, ShardWriter

SECONDS = 0.6
PIECE = 0.01


def rate(call: Callable[[], Any], calls: int) -> float:
    """Calls per second of the median piece of so many calls: interruptions do not count."""
    call()
    took, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        for _ in range(calls):
            call()
        took.append(time.perf_counter() - before)
    return calls / statistics.median(took)


def main(folder: Path) -> None:
    settings = load_target("cartpole_apex_dqn", ["actors=8", "replay.samples_per_insert=null", "env.lanes=4"])
    plan = make_plan(settings).at(RunPaths(folder, folder))
    prepare(plan, 10, "bench")
    actor, ledger = build_actor(plan, 0), open_ledger(plan)
    pace = make_pace(plan, ledger)
    found = {"actor's loop (vector steps/s)": rate(lambda: actor.run(steps=50), 1) * 50}
    rng, lanes = np.random.default_rng(0), settings.env.lanes
    for index in range(1, 8):
        writer = ShardWriter(plan.shards[index])
        row: dict[str, Any] = {}
        for column in plan.schema.columns:
            row[column.name] = rng.random((1000, lanes, *column.shape)).astype(column.dtype)
        row["boundary"][:] = 0
        while writer.head < plan.rows_per_shard:
            writer.append_chunk({name: values[: plan.rows_per_shard // 4] for name, values in row.items()})
    one = {name: values[0] for name, values in row.items()}
    found["shard append (rows/s)"] = rate(lambda: writer.append(one), 200)
    found["ledger and pace (looks/s)"] = rate(lambda: (pace.may_act(), ledger.stop), 1000)
    readers = [ShardReader(path) for path in plan.shards]
    replay = Replay(readers, Prioritized(0.6), NStepView(plan.schema, 3, 0.99), 512)
    priorities = rng.random(512, dtype=np.float32)

    def cycle() -> None:
        sample = replay.sample()
        assert sample is not None
        replay.update_priorities(sample.keys, priorities)

    found["replay, sample and update 512 (batches/s)"] = rate(cycle, 10)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        main(Path(name))
