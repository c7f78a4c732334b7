"""Rates of what an actor and a learner do on one node; runs with the code of any commit (`PYTHONPATH`).

For each line on standard input, the name of one of them, it prints its rate: so two versions can be measured in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from shoal.config.load import load_target
from shoal.loops.assembly import build_actor, make_pace, open_ledger
from shoal.loops.plan import make_plan
from shoal.loops.preparation import prepare
from shoal.loops.run_paths import RunPaths
from shoal.replay import NStepView, Prioritized, Replay, ShardReader, ShardWriter

SECONDS = 0.25


def rate(call: Callable[[], Any], calls: int) -> float:
    """Calls per second of the quickest tenth of pieces: those that nobody interrupted."""
    took, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        before = time.perf_counter()
        for _ in range(calls):
            call()
        took.append(time.perf_counter() - before)
    return calls / statistics.quantiles(took, n=10)[0]


def contenders(folder: Path) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""
    settings = load_target("cartpole_apex_dqn", ["actors=8", "replay.samples_per_insert=null", "env.lanes=4"])
    plan = make_plan(settings).at(RunPaths(folder, folder))
    prepare(plan, 10, "bench")
    actor, ledger = build_actor(plan, 0), open_ledger(plan)
    pace, rng, lanes = make_pace(plan, ledger), np.random.default_rng(0), settings.env.lanes
    rows, size = {}, plan.rows_per_shard // 4
    for column in plan.schema.columns:
        rows[column.name] = rng.random((size, lanes, *column.shape)).astype(column.dtype)
    rows["boundary"][:] = 0
    for index in range(1, 8):
        writer = ShardWriter(plan.shards[index])
        while writer.head < plan.rows_per_shard:
            writer.append_chunk(rows)
    one = {name: values[0] for name, values in rows.items()}
    actor.run(steps=500)
    replay = Replay([ShardReader(path) for path in plan.shards], Prioritized(0.6), NStepView(plan.schema, 3, 0.99), 512)
    priorities = rng.random(512, dtype=np.float32)

    def cycle() -> None:
        sample = replay.sample()
        assert sample is not None
        replay.update_priorities(sample.keys, priorities)

    return {
        "actor's loop (vector steps/s)": lambda: 4 * rate(lambda: actor.run(steps=4), 1),
        "shard append (rows/s)": lambda: rate(lambda: writer.append(one), 200),
        "ledger and pace (looks/s)": lambda: rate(lambda: (pace.may_act(), ledger.stop), 500),
        "replay, sample and update 512 (batches/s)": lambda: rate(cycle, 3),
    }


def main(folder: Path) -> None:
    found = contenders(folder)
    print(json.dumps(list(found)), flush=True)
    for line in sys.stdin:
        print(found[line.strip()](), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        main(Path(name))
