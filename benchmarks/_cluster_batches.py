"""Batches drawn from mirrors, for benchmarks/cluster.py: how quickly, and with which probabilities."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _cluster_rows import Rig, Writers
from _harness import Measured, Row, bounded, compared, say

BATCH, N_STEP, GAMMA, ALPHA = 512, 3, 0.99, 0.6
PACE = 12_500.0
"""Steps per second of Ape-X."""
RATIO = 19 * 512 / PACE
"""Draws per step of Ape-X: 19 batches of 512 per second."""


def make_replay(shards: list[Path], seed: int = 0) -> Any:
    """A learner's prioritized replay of these shards."""
    from shoal.replay import NStepView, Prioritized, Replay, ShardReader

    readers = [ShardReader(path) for path in shards]
    return Replay(readers, Prioritized(ALPHA), NStepView(readers[0].info.schema, N_STEP, GAMMA), BATCH, seed=seed)


def _pin(pids: Iterable[int], cores: set[int]) -> None:
    """Restricts all threads of some processes to some cores."""
    for pid in pids:
        for task in list(Path(f"/proc/{pid}/task").iterdir()) if Path(f"/proc/{pid}/task").is_dir() else []:
            try:
                os.sched_setaffinity(int(task.name), cores)
            except ProcessLookupError:
                continue


@contextmanager
def _alone(others: list[int]) -> Iterator[None]:
    """Gives the first core to this process, and the others to the other processes: home has cores for its learner."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    _pin(others, set(cores[1:]))
    _pin([os.getpid()], {cores[0]})
    try:
        yield
    finally:
        _pin([os.getpid(), *others], set(cores))


def batches_while_filled(rig: Rig, frames: Any, seconds: float, rounds: int) -> list[Row]:
    """Batches per second from mirrors against the same rows from local writers."""
    from shoal.replay import ShardReader, create_shard

    local = [rig.home.files / "local" / str(actor) for actor in range(rig.actors)]
    for path in local:
        create_shard(path, ShardReader(rig.mirrors[0]).info)
    writers = Writers(local, [], frames)
    try:
        contenders = {"mirrors": (rig.mirrors, rig.writers), "local writers": (local, writers)}
        replays = {}
        for name, (shards, filling) in contenders.items():
            readers = [ShardReader(path) for path in shards]
            with filling.writing():
                while any(reader.head < 1.2 * reader.rows for reader in readers):  # full, and every page touched
                    time.sleep(0.02)
            replays[name] = make_replay(shards)
        say("  batches while rows come: mirrors, local writers")
        found = {name: Measured() for name in contenders}
        pids = [process.pid for node in rig.lab.nodes for process in node.processes()]
        pids += [*rig.writers.pids, *writers.pids]
        with _alone(pids):
            for _ in range(rounds):
                for name, (_, filling) in contenders.items():
                    found[name].rates.append(_draw(replays[name], filling, seconds))
    finally:
        writers.close()
    title = "batches/s of 512 from mirrors being filled (12.5k steps/s)"
    return [compared(title, found, ours="mirrors", at_least=0.95)]


def _draw(replay: Any, filling: Writers, seconds: float) -> float:
    priorities = np.random.default_rng(1).random(BATCH, dtype=np.float32)
    with filling.writing(PACE):
        time.sleep(0.3)
        took, start = [], time.perf_counter()
        while (before := time.perf_counter()) - start < seconds:
            sample = replay.sample()
            replay.update_priorities(sample.keys, priorities)
            took.append(time.perf_counter() - before)
    return 1 / statistics.median(took)


def busy_learner(rig: Rig, rate: str | None, seconds: float) -> tuple[float, float, str]:
    """How busy a learner of Ape-X's speed is that reads the mirrors: its share, steps per second, and the verdict."""
    from shoal.loops.reports import LinkReport, MirrorReport
    from shoal.runtime.bottleneck import Share, Waits

    rig.outpost.limit(rate)
    try:
        replay, update = make_replay(rig.mirrors), BATCH / (RATIO * PACE)
        with rig.writers.writing(PACE):
            time.sleep(2.0)
            rig.reports.clear()
            start, waited, drawn = time.perf_counter(), 0.0, 0
            first = sum(reader.steps for reader in replay.shards)
            while (before := time.perf_counter()) - start < seconds:
                steps = sum(reader.steps for reader in replay.shards) - first
                if drawn > RATIO * steps:
                    time.sleep(0.001)
                    waited += time.perf_counter() - before
                    continue
                replay.sample()
                drawn += BATCH
                time.sleep(max(0.0, update - (time.perf_counter() - before)))
            took = time.perf_counter() - start
        waits = Waits(Share(waited, took), Share(0.0, took))
        for told in list(rig.reports):
            link = LinkReport(told["rows"], told["bytes"], told["calls"], told["behind"], 0, 0, told["lag"], 0.0)
            waits.take(MirrorReport(told["seconds"], {0: link}))
        from _cluster_home import make_rows_plan

        verdict = waits.verdict(make_rows_plan(rig.actors, 16, 50_000, []).settings)
        return 1.0 - waited / took, steps / took, verdict
    finally:
        rig.outpost.limit(None)


def link_rows(rig: Rig, seconds: float) -> list[Row]:
    """A learner of Ape-X's speed, whose rows come over a limited link."""
    rows = []
    for rate, bar in (
        ("1gbit", "busy >= 90 %, or the verdict names the links"),
        ("400mbit", "verdict names the links"),
    ):
        busy, steps, verdict = busy_learner(rig, rate, seconds)
        say(f"  {rate}: busy {100 * busy:.0f} %, {steps:,.0f} steps/s, {verdict}")
        names = verdict.startswith("links")
        holds = names if rate == "400mbit" else busy >= 0.9 or names
        rows.append(Row(f"learner busy at Ape-X's ratio, {rate} link (%)", 100 * busy, bar=bar, holds=holds))
        rows[-1].others["steps/s"] = steps
    return rows


def priority_rows(draws: int) -> list[Row]:
    """Draws over home's shards and mirrors of two further nodes, against one shard, so one tree, with the same rows."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        three, one, lanes = _three_nodes(Path(name))
        counts, exact = [], []
        for replay in (three, one):
            count, probability = _frequencies(replay, draws, lanes)
            counts.append(count)
            exact.append(probability)
        drawn = counts[0] + counts[1] > 0
        known = np.isfinite(exact[0]) & np.isfinite(exact[1])
        expected = exact[1][known] * counts[0].sum()
        chi = float(((counts[0][known] - expected) ** 2 / expected).sum() / (known.sum() - 1))
        both = (counts[0] - counts[1])[drawn] ** 2 / (counts[0] + counts[1])[drawn]
        chi_two = float(both.sum() / (drawn.sum() - 1))
        weights = [(three.size * p[known]) ** -0.4 for p in exact]
        difference = float(np.max(np.abs(weights[0] / weights[1] - 1)))
    bar = "0.8 to 1.2"
    title = f"prioritized over three nodes, {draws:,} draws:"
    return [
        Row(f"{title} chi² per degree, exact probabilities", chi, bar=bar, holds=0.8 <= chi <= 1.2),
        Row(f"{title} chi² per degree, against one tree", chi_two, bar=bar, holds=0.8 <= chi_two <= 1.2),
        bounded(f"{title} largest difference of an importance weight", difference, at_most=1e-6),
    ]


def _three_nodes(folder: Path) -> tuple[Any, Any, int]:
    """A replay over home and mirrors of two outposts, one over a single shard with the same rows, and the lanes."""
    from shoal.config.load import load_target
    from shoal.loops.courier import HomeFolder, NodeFolder
    from shoal.loops.plan import make_plan
    from shoal.loops.preparation import prepare, prepare_outpost, where_it_stopped
    from shoal.loops.run_paths import RunPaths
    from shoal.replay import ShardInfo, ShardWriter, create_shard

    settings = load_target("cartpole_apex_dqn", ["actors=6", "replay.capacity=30_000", "env.lanes=4"])
    plan = replace(make_plan(settings), outposts=((2, 3), (4, 5))).at(RunPaths(folder / "home", folder))
    plan.paths.replay.mkdir()
    prepare(plan, 1, "bench")
    home, lanes, rows = HomeFolder(plan), settings.env.lanes, plan.rows_per_shard - 100
    chunks = [_cartpole_rows(rows, lanes, actor) for actor in range(6)]
    for number, actors in enumerate(plan.outposts):
        there = replace(plan.at(RunPaths(folder / f"node{number}", folder)), outpost=number)
        there.paths.replay.mkdir()
        prepare_outpost(there, 1, "bench", {actor: where_it_stopped(plan, actor) for actor in actors}, 1)
        node = NodeFolder(there.paths, home.start(actors))
        for actor in actors:
            ShardWriter(there.paths.shard(actor)).append_chunk(chunks[actor])
        while (parcel := node.fetch(0.0)).chunks:
            home.take(parcel)
    for actor in (0, 1):
        ShardWriter(plan.shards[actor]).append_chunk(chunks[actor])
    single = folder / "single"
    create_shard(single, ShardInfo(plan.schema, plan.rows_per_shard, 6 * lanes))
    whole = {name: np.concatenate([chunk[name] for chunk in chunks], axis=1) for name in chunks[0]}
    ShardWriter(single).append_chunk(whole)
    return make_replay(plan.shards, seed=1), make_replay([single], seed=2), lanes


def _cartpole_rows(rows: int, lanes: int, seed: int) -> dict[str, Any]:
    rng, shape = np.random.default_rng(seed), (rows, lanes)
    terminated = rng.random(shape) < 0.01
    boundary = np.zeros(shape, np.uint8)
    boundary[1:] = terminated[:-1]
    return {
        "obs": rng.random((*shape, 4), dtype=np.float32),
        "action": rng.integers(0, 2, shape),
        "reward": np.ones(shape, np.float32),
        "terminated": terminated,
        "truncated": np.zeros(shape, np.bool_),
        "boundary": boundary,
        "weights_version": np.ones(shape, np.uint32),
        "priority": rng.gamma(1.0, 1.0, shape).astype(np.float32),
    }


def _frequencies(replay: Any, draws: int, lanes: int) -> tuple[Any, Any]:
    """How often each row was drawn, and the probability that came with it; by lane of all shards and row."""
    shape = (24, replay.shards[0].rows)
    counts, probability = np.zeros(shape, np.int64), np.full(shape, np.nan)
    for _ in range(draws // BATCH):
        sample = replay.sample()
        lane = sample.keys.shard * lanes + sample.keys.lane
        np.add.at(counts, (lane, sample.keys.logical), 1)
        probability[lane, sample.keys.logical] = sample.probabilities
    return counts, probability


def cpu_per_mb(flows: list[Any]) -> dict[str, float]:
    """Milliseconds of a core per MB, by process: the median."""
    names = flows[0].cpu
    return {name: statistics.median(1000 * flow.cpu[name] / flow.mb_per_second for flow in flows) for name in names}
