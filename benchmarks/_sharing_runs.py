"""Four runs of SAC that share and four that do not, one process per run, all alive.

While one group works, the other is stopped (SIGSTOP). Steps are read from outside, from the shards' headers. The only
addition to a run, in both groups, is reading one number per step. Both groups are restarted a few times, because the
location of a process's memory changes its speed by some percent for its whole life.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import time
from dataclasses import dataclass
from typing import Any

import psutil
from _harness import Measured, Row, say
from _sharing_alone import ENV, RATIO, SAC_SETTINGS, judged, made_registry, make_model

from shoal.replay import ShardReader
from shoal.sharing import Registry, connect_registry

RUNS = 4
WARM_STEPS = 1_500
"""Steps of every run before it is measured: more than the 1,000 rows a peer must have, and well into learning."""
SETTLE_SECONDS = 0.5
START_SECONDS = 400.0
NEVER = 2**60
LAST = -1


def _run(seed: int, path: str, strategy: str, asked: Any, pipe: Any) -> None:
    """A run's process: learns until it is told to stop. Sends the buffer's statistics whenever `asked` changes."""
    registry, parent, answered = connect_registry(path), os.getppid(), 0
    buffer_id = registry.register_buffer(f"run-{seed}", "SAC", ENV)
    shared = {"registry": registry, "buffer_id": buffer_id, "sample_strategy": strategy, "cross_sample_ratio": RATIO}
    model = make_model(seed, shared)

    def step(*_: Any) -> bool:
        nonlocal answered
        if asked.value == answered:
            return os.getppid() == parent
        answered = asked.value
        pipe.send(model.replay_buffer.get_stats())
        return bool(answered != LAST)

    model.learn(NEVER, callback=step)


@dataclass(frozen=True)
class Turn:
    """The work of a group in one turn."""

    steps: int
    seconds: float
    cpu_seconds: float


class Runs:
    """Runs that are started, stopped and resumed together."""

    def __init__(self, registry: Registry, strategy: str) -> None:
        self._registry, self._strategy = registry, strategy
        context = multiprocessing.get_context("spawn")
        self._asked, self._asks = context.RawValue("i", 0), 0
        self._pipes, self._processes = [], []
        for seed in range(1, RUNS + 1):
            ours, theirs = context.Pipe()
            arguments = (seed, str(registry.path), strategy, self._asked, theirs)
            process = context.Process(target=_run, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._watched = [psutil.Process(process.pid) for process in self._processes]

    def start(self) -> None:
        """Waits until every run has learned for a while and found the others, then stops them until their turn."""
        say(f"  starting {RUNS} runs, {self._strategy}")
        deadline = time.monotonic() + START_SECONDS
        while not self._warm():
            self._check()
            if time.monotonic() > deadline:
                raise SystemExit(f"Not {WARM_STEPS} steps each within {START_SECONDS:.0f} s.")
            time.sleep(0.2)
        time.sleep(2.0)  # runs look for each other once a second
        self.before = self._ask()
        self._signal(signal.SIGSTOP)

    def work(self, seconds: float) -> Turn:
        """Lets all runs work for this long."""
        self._signal(signal.SIGCONT)
        try:
            time.sleep(SETTLE_SECONDS)
            steps, cpu, began = self._steps, self._cpu, time.perf_counter()
            time.sleep(seconds)
            turn = Turn(self._steps - steps, time.perf_counter() - began, self._cpu - cpu)
        finally:
            self._signal(signal.SIGSTOP)
        self._check()
        return turn

    def finish(self) -> None:
        """The final statistics: how much each run read from each other run since `start`."""
        self._signal(signal.SIGCONT)
        self.after = self._ask(last=True)

    def foreign(self) -> list[float]:
        """The foreign fraction of the samples of every run during the measurement."""
        fractions = []
        for one, other in zip(self.before, self.after, strict=True):
            total = sum(other[name] - one[name] for name in ("local_samples", "distributed_samples"))
            fractions.append((_foreign(other) - _foreign(one)) / total)
        return fractions

    def end(self) -> None:
        self._signal(signal.SIGCONT)
        self._asked.value = LAST
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()

    def _warm(self) -> bool:
        shards = [shard for entry in self._registry.entries() for shard in entry.shards]
        if len(shards) < RUNS:
            return False
        self._readers = [ShardReader(shard) for shard in shards]
        return all(reader.steps >= WARM_STEPS for reader in self._readers)

    def _ask(self, *, last: bool = False) -> list[dict[str, Any]]:
        self._asks += 1
        self._asked.value = LAST if last else self._asks
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(30):
                raise SystemExit("A run does not answer.")
            answers.append(pipe.recv())
        return answers

    def _check(self) -> None:
        if not all(process.is_alive() for process in self._processes):
            raise SystemExit("A run ended by itself.")

    @property
    def _steps(self) -> int:
        return sum(reader.steps for reader in self._readers)

    @property
    def _cpu(self) -> float:
        times = [process.cpu_times() for process in self._watched]
        return sum(one.user + one.system for one in times)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive():
                process_id = process.pid
                assert process_id  # 0 would signal the whole process group
                os.kill(process_id, number)


def _foreign(stats: dict[str, Any]) -> int:
    return sum(peer["samples"] for peer in stats["peers"].values())


NAMES = {"self_heavy": "shoal", "local_only": "not sharing"}


def start_and_measure(seconds: float, rounds: int) -> tuple[dict[str, list[Turn]], dict[str, Runs]]:
    """Starts both groups once. Returns the turns of each, and the groups at their end."""
    with contextlib.ExitStack() as stack:
        groups: dict[str, Runs] = {}
        for strategy, name in NAMES.items():
            registry = stack.enter_context(made_registry(SAC_SETTINGS["buffer_size"]))
            groups[name] = runs = Runs(registry, strategy)
            stack.callback(runs.end)
            runs.start()
        turns: dict[str, list[Turn]] = {name: [] for name in groups}
        for number in range(rounds):
            for name in list(groups)[:: 1 if number % 2 else -1]:
                turns[name].append(turn := groups[name].work(seconds))
                say(f"    round {number + 1}: {name}: {turn.steps / turn.seconds:,.0f} steps/s")
        for runs in groups.values():
            runs.finish()
    return turns, groups


def four(seconds: float, rounds: int, starts: int) -> list[Row]:
    """A group that shares against a group that does not, restarted several times."""
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES.values()}
    ended: list[dict[str, Runs]] = []
    for _ in range(starts):
        found, groups = start_and_measure(seconds, max(2, rounds // starts))
        for name, those in found.items():
            turns[name] += those
        ended.append(groups)
    wall = [Measured([turn.steps / turn.seconds for turn in those]) for those in turns.values()]
    cpu = [Measured([turn.steps / turn.cpu_seconds for turn in those]) for those in turns.values()]
    title = f"{RUNS} runs sharing at {RATIO} against {RUNS} not sharing"
    return [
        judged(f"{title}: env steps/s of all", *wall, "not sharing", 0.97),
        judged("(the same by CPU time: env steps per CPU second)", *cpu, "not sharing"),
        _fraction_row([one["shoal"] for one in ended], [one["not sharing"] for one in ended]),
    ]


def _fraction_row(sharing: list[Runs], apart: list[Runs]) -> Row:
    """Checks that the measured runs did share."""
    fractions = [fraction for runs in sharing for fraction in runs.foreign()]
    peers = [stats["num_shared_buffers"] for runs in sharing for stats in runs.after]
    none = max(fraction for runs in apart for fraction in runs.foreign())
    mean = statistics.mean(fractions)
    holds = abs(mean - RATIO) <= 0.01 and set(peers) == {RUNS - 1} and none == 0.0
    row = Row(f"{RUNS} runs sharing at {RATIO}: foreign fraction", mean, bar=f"{RATIO} ± 0.01", holds=holds)
    row.others = {"least of a run": min(fractions), "most": max(fractions), "peers": min(peers), "not sharing": none}
    return row
