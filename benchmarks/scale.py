"""A thousand actors on 32 nodes, as far as one machine can imitate them: `make bench-scale`.

Home's folder has all shards, one outpost is real, and its parcels are also taken as those of the 31 others: what home,
a courier, an actor and the learner do at that size is done, in one process, and its CPU time measured. No Ray, no
network and no environment: their costs are those of `bench-cluster`. The second part calculates, from these figures,
at which rate each of them is busy all the time. docs/scale.md explains it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from _cluster_home import make_rows_plan
from _cluster_rows import columns, pong_frames
from _harness import RESULTS, Row, report, say

PACKAGES = ("numpy", "lz4", "zstandard")
STEPS_PER_ACTOR = 12_500 / 360
"""Of Ape-X: 360 actors, 12.5k steps/s."""
ROWS = 100
"""Ring rows of a shard: enough for three seconds."""
GIGABIT = 117.0
"""MB/s of rows on a link of 1 Gb/s, as measured by bench-cluster's TCP."""
OBJECT_MS_PER_MB = 0.7
"""CPU of home's raylet and of the role's `ray.get`, if bench-cluster has not been run here."""


def cpu(call: Callable[[], Any], seconds: float = 0.3, least: int = 3) -> float:
    """CPU seconds of a call: the median."""
    call()
    took, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds or len(took) < least:
        before = time.thread_time()
        call()
        took.append(time.thread_time() - before)
    return statistics.median(took)


def handles() -> int:
    """Open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class Size:
    """How large the imitated cluster is."""

    actors: int
    nodes: int

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """The actors of each outpost."""
        return [tuple(map(int, part)) for part in np.array_split(np.arange(self.actors), self.nodes)]


class Imitation:
    """Home with all shards, and one outpost."""

    def __init__(self, size: Size, folder: Path, frames: Any, codec: str) -> None:
        from shoal.loops.courier import HomeFolder, NodeFolder
        from shoal.loops.preparation import prepare, prepare_outpost, where_it_stopped
        from shoal.loops.run_paths import RunPaths
        from shoal.replay import ShardWriter

        began = time.perf_counter()
        plan = make_rows_plan(size.actors, 1, ROWS * size.actors, [f"replay.compress={codec}"])
        self.size, self.frames = size, frames
        self.plan = replace(plan, outposts=tuple(size.parts)).at(RunPaths(folder / "home", folder))
        self.plan.paths.replay.mkdir(parents=True)
        prepare(self.plan, 1, "scale")
        self.prepared = time.perf_counter() - began
        there = replace(self.plan.at(RunPaths(folder / "node", folder)), outpost=0)
        there.paths.replay.mkdir()
        starts = {actor: where_it_stopped(self.plan, actor) for actor in size.parts[0]}
        prepare_outpost(there, 1, "scale", starts, 1)
        before = handles()
        self.home = HomeFolder(self.plan)
        links = [self.home.start(actors) for actors in size.parts]
        self.role_handles = handles() - before
        before = handles()
        self.node = NodeFolder(there.paths, links[0])
        self.courier_handles = handles() - before
        self.writers = [ShardWriter(there.paths.shard(actor)) for actor in size.parts[0]]
        self.orders = [self.home.order(actors) for actors in size.parts]

    def write(self, rows: int) -> None:
        """Each actor of the outpost writes so many."""
        chunk = {name: column[:rows, :1] for name, column in columns(self.frames).items()}
        for writer in self.writers:
            writer.append_chunk(chunk)

    def take_everywhere(self, parcel: Any) -> None:
        """The same rows, as if they came from each of the outposts."""
        for actors in self.size.parts:
            chunks = zip(parcel.chunks.values(), actors, strict=False)
            self.home.take(parcel._replace(chunks={actor: chunk for chunk, actor in chunks}))


def home_and_courier(imitation: Imitation) -> dict[str, float]:
    """CPU seconds of home's role and of a courier, per call and per MB."""
    home, node, size, found = imitation.home, imitation.node, imitation.size, dict[str, float]()
    packs, takes = [], []
    for _ in range(6):
        imitation.write(PARCEL_ROWS)
        before = time.thread_time()
        parcel = node._pack()
        packs.append((time.thread_time() - before) / parcel.nbytes * 1e6)
        before = time.thread_time()
        imitation.take_everywhere(parcel)
        takes.append((time.thread_time() - before) / size.nodes / parcel.nbytes * 1e6)
    found["courier, pack (s/MB)"], found["role, take (s/MB)"] = statistics.median(packs), statistics.median(takes)
    found["bytes per row on the way"] = parcel.data.nbytes / max(1, sum(one.rows for one in parcel.chunks.values()))
    actors = size.parts[0]
    found["role, order (s)"] = cpu(lambda: home.order(actors))
    found["order (bytes)"] = len(pickle.dumps(imitation.orders[0], protocol=5))
    empty = node._pack()
    found["role, take of an empty parcel (s)"] = cpu(lambda: home.take(empty))
    numbers = iter(range(2**62, 2**62 + 10**9))
    found["courier, deliver (s)"] = cpu(lambda: node.deliver(imitation.orders[0]._replace(number=next(numbers)), None))
    found["courier, one look (s)"] = cpu(lambda: node.fetch(0.0))
    return found


def actor_and_learner(imitation: Imitation, folder: Path) -> dict[str, float]:
    """CPU seconds of an actor's look at the counts, and of the learner's batches from so many shards."""
    from shoal.loops.assembly import make_pace, open_ledger
    from shoal.replay import Ledger, NStepView, Prioritized, Replay, ShardInfo, ShardReader, ShardWriter, create_shard

    plan, found = imitation.plan, dict[str, float]()
    del imitation.home, imitation.node, imitation.writers  # a process may have too few open files for all of them
    gc.collect()
    before = handles()
    ledger = open_ledger(plan)
    found["actor, open files"] = handles() - before + len(plan.schema.columns) + 3
    pace = make_pace(plan, ledger)
    found["actor, ledger.inserts (s)"] = cpu(lambda: ledger.inserts)
    found["actor, may_act (s)"] = cpu(pace.may_act)
    own = Ledger(plan.paths.replay, [plan.shards[actor] for actor in imitation.size.parts[0]])
    found["actor, the same over its own node's shards (s)"] = cpu(lambda: own.inserts)
    rng, priorities = np.random.default_rng(0), np.random.default_rng(1).random(512, dtype=np.float32)

    def draws(paths: Sequence[Path]) -> tuple[float, float, float, int]:
        before = handles()
        replay = Replay([ShardReader(path) for path in paths], Prioritized(0.6), NStepView(plan.schema, 3, 0.99), 512)

        def cycle() -> None:
            sample = replay.sample()
            assert sample is not None
            replay.update_priorities(sample.keys, priorities)

        sample = replay.sample()
        update = cpu(lambda: replay.update_priorities(sample.keys, priorities))
        return cpu(cycle), cpu(replay.refresh), update, handles() - before

    batch, refresh, update, files = draws(plan.shards)
    found["learner, batch of 512 from all shards (s)"], found["learner, open files"] = batch, files
    found["learner, of that: refresh (s)"], found["learner, of that: priorities (s)"] = refresh, update
    few, lanes = [folder / f"few_{number}" for number in range(8)], plan.settings.actors // 8
    for path in few:
        create_shard(path, ShardInfo(plan.schema, ROWS, lanes))
        whole = {name: np.repeat(column[:, :1], lanes, axis=1) for name, column in columns(imitation.frames).items()}
        whole["priority"] = rng.random(whole["priority"].shape, dtype=np.float32)
        ShardWriter(path).append_chunk({name: column[: ROWS - 10] for name, column in whole.items()})
    found["learner, batch of 512 from 8 shards (s)"] = draws(few)[0]
    return found


def calculated(size: Size, found: dict[str, float], row_bytes: int) -> list[Row]:
    """Environment steps per second at which each part is busy all the time."""
    object_ms, known = OBJECT_MS_PER_MB, RESULTS / "cluster.json"
    if known.is_file():
        for row in json.loads(known.read_text())["rows"]:
            cost = row["others"]
            if row["what"].startswith("mirrored Atari rows"):
                object_ms = sum(cost[f"{who} (ms of a core per MB)"] for who in ("role", "home's raylet"))
    rate, mb = size.actors * STEPS_PER_ACTOR, row_bytes / 1e6
    per_node = rate / size.nodes
    parcels = max(1 / FETCH_SECONDS, per_node / PARCEL_STEPS)  # per second and node
    calls = 1000 * parcels * size.nodes / rate
    wire = found["bytes per row on the way"] / 1e6
    orders = found["order (bytes)"] / 1e6 * calls / 1000
    call = found["role, order (s)"] + found["role, take of an empty parcel (s)"] + CALL_SECONDS
    role = mb * found["role, take (s/MB)"] + calls / 1000 * call
    # A courier packs what its node's actors write, obeys each order, and looks at the shards 200 times per second.
    looks = 200 * found["courier, one look (s)"]
    courier = per_node * mb * found["courier, pack (s/MB)"] + parcels * found["courier, deliver (s)"] + looks
    limits = {
        "home's link of 10 Gb/s, rows as they are": 10 * GIGABIT / mb,
        "home's link of 1 Gb/s, rows as they are": GIGABIT / mb,
        "home's link of 1 Gb/s, rows as they travel": GIGABIT / wire,
        "Ray at home (raylet and role), rows as they are, one core": 1 / (mb * object_ms / 1000),
        "the role's one thread": 1 / role,
        "an actor's look at all counts, at 10 % of its time": size.actors * 0.1 / found["actor, may_act (s)"],
        "the learner's draws, at 0.78 per step": 512 / (0.78 * found["learner, batch of 512 from all shards (s)"]),
    }
    rows = [Row(f"steps/s: {what}", value, rate, "wanted", value / rate) for what, value in limits.items()]
    rows += [
        Row("a courier's share of a core (%)", 100 * courier),
        Row("Ray calls per 1,000 steps", calls),
        Row("lag (s)", 1 / parcels),
        Row("orders, all nodes (MB/s)", orders * rate),
    ]
    return sorted(rows[: len(limits)], key=lambda row: row.shoal) + rows[len(limits) :]


CALL_SECONDS = 0.4e-3
"""CPU of one Ray call in the role's process, beyond the bytes: submit, wait, get."""
PARCEL_ROWS = 13
PARCEL_STEPS, FETCH_SECONDS = 400, 0.25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--compress", default="none", choices=["none", "lz4", "zstd"])
    given = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    size, shared = Size(given.actors, given.nodes), Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        imitation = Imitation(size, Path(name), pong_frames(), given.compress)
        say(f"  {size.actors} shards made in {imitation.prepared:.1f} s")
        found = {
            "home's folder made (s)": imitation.prepared,
            "role, open files": imitation.role_handles,
            "courier, open files": imitation.courier_handles,
            **home_and_courier(imitation),
            **actor_and_learner(imitation, Path(name)),
        }
        row_bytes = imitation.plan.schema.bytes_per_step
    rows = []
    for what, value in found.items():
        small = what.endswith(("(s)", "(s/MB)")) and "made" not in what
        rows.append(Row(f"measured: {what.replace('(s', '(µs') if small else what}", value * (1e6 if small else 1)))
    rows += calculated(size, found, row_bytes)
    report("scale" if given.compress == "none" else f"scale_{given.compress}", rows, PACKAGES, vars(given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
