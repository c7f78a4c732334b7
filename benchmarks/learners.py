"""Several learners: what the exchange takes of an update, and updates per second of one and two:
`make bench-learners`.

Nature's network on frames of 84 x 84, IMPALA's update, gloo on the loopback interface, a thread for each learner. The
batch is divided: two learners make the same update as one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import Row, bounded, report, say

PACKAGES = ("numpy", "torch")
UNROLL, BATCH = 20, 16


def member(folder: Path, rank: int, ranks: int, updates: int) -> None:
    """Updates in this process; prints seconds per update, and in exchanges, as JSON."""
    import numpy as np
    import torch

    from shoal.algorithms import get_algorithm
    from shoal.algorithms.interface import LearnerContext
    from shoal.loops.team import Learners
    from shoal.types import EnvSpec, Keys, Sample, Sequence

    torch.set_num_threads(1)
    team = Learners(folder / "learners.bin", rank, ranks) if ranks > 1 else None
    spec = EnvSpec("Frames-v0", (4, 84, 84), "uint8", 4, 6, ())
    algorithm = get_algorithm("impala")
    config = algorithm.config(torso="shallow", image_hidden=512, unroll=UNROLL)
    learner = algorithm.make_learner(config, spec, LearnerContext(torch.device("cpu"), exchange=team))
    rng, lanes = np.random.default_rng(rank), BATCH // ranks
    steps = (UNROLL, lanes)
    data = Sequence(
        obs=rng.integers(0, 255, (UNROLL + 1, lanes, 4, 84, 84), np.uint8),
        action=rng.integers(0, 6, steps),
        reward=rng.standard_normal(steps).astype(np.float32),
        terminated=np.zeros(steps, np.bool_),
        truncated=np.zeros(steps, np.bool_),
        boundary=np.zeros((UNROLL + 1, lanes), np.uint8),
        extras={"behaviour": np.zeros((UNROLL + 1, lanes, 6), np.float32)},
    )
    sample = Sample(data, Keys.empty(lanes), np.ones(lanes), lanes, 0.0, np.ones(lanes, np.bool_))
    while team is not None and not team.join():
        time.sleep(0.001)
    took, exchanged = [], []
    for _ in range(updates + 2):
        while team is not None and not team.may_update(True):
            time.sleep(1e-4)  # neither is ahead of the other: what is left in the exchange is the exchange
        began, before = time.perf_counter(), team.seconds if team else 0.0
        learner.step(sample)
        took.append(time.perf_counter() - began)
        exchanged.append((team.seconds if team else 0.0) - before)
    least = sorted(b / a for a, b in zip(took[2:], exchanged[2:], strict=True))
    print(json.dumps({"update": statistics.median(took[2:]), "share": statistics.median(least), "least": least[0]}))


def measured(ranks: int, updates: int) -> list[dict[str, float]]:
    """What each of so many learners printed."""
    from shoal.loops.team import Learners

    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        if ranks > 1:
            Learners.create(folder / "learners.bin", ranks)
        command = [sys.executable, __file__, "--member", name, "--ranks", str(ranks), "--updates", str(updates)]
        running = [subprocess.Popen([*command, "--rank", str(one)], stdout=subprocess.PIPE) for one in range(ranks)]
        return [json.loads(one.communicate(timeout=600)[0]) for one in running]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--member")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    if given.member:
        member(Path(given.member), given.rank, given.ranks, given.updates)
        return 0
    shares, single, double = [], [], []
    for number in range(given.rounds):
        single.append(1 / measured(1, given.updates)[0]["update"])
        both = measured(2, given.updates)
        double.append(1 / max(one["update"] for one in both))
        # Of the member that came last: the other one's share also holds its waiting for this one.
        shares.append(100 * min(one["share"] for one in both))
        say(f"  round {number + 1}: {single[-1]:.2f} and {double[-1]:.2f} updates/s, exchange {shares[-1]:.1f} %")
    speed = statistics.median(b / a for a, b in zip(single, double, strict=True))
    rows = [
        bounded("exchange, % of an update (2 learners)", statistics.median(shares), at_most=15),
        Row("updates/s, 1 learner", statistics.median(single)),
        Row("updates/s, 2 learners", statistics.median(double), statistics.median(single), "1 learner", speed),
    ]
    settings = {"updates": given.updates, "rounds": given.rounds, "unroll": UNROLL, "batch": BATCH}
    return 0 if report("learners", rows, PACKAGES, settings) else 1


if __name__ == "__main__":
    sys.exit(main())
