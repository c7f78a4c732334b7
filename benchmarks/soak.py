"""One run on a cluster of three nodes, for an hour: what grows? `make soak ARGS="--minutes 15"`.

Memory, file handles, threads and files on shared memory of every process of the run and of its Ray are sampled. The
bar: after warm-up, memory grows by less than 2 %, and nothing else grows. Memory is what a process has for itself, its
anonymous pages, in memory or swapped out: pages of shards that it has touched are the replay's, which has a fixed size,
and whether pages of a program count as its own (USS) depends on who else on the machine runs it. Threads of gRPC's own
pools, which grow while the machine is busy, are counted apart and judged less strictly: they may grow after warm-up,
but at the end there must not be more of them than ever before. That they have a limit is not shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from _harness import RESULTS, console, described
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.lab import LabTraining, light_cluster

GROWTH = 0.02
POOLS = ("event_engine", "default-executo", "resolver-execut", "grpc")
"""How the names of threads in gRPC's pools begin."""
Samples = dict[str, list[dict[str, float]]]


def names(run: LabTraining) -> dict[int, str]:
    """What each process of the lab is."""
    roles = {pid: name for name, pid in run.read("processes.json").items()}
    found: dict[int, str] = {}
    for number, node in enumerate(run.lab.nodes):
        for one in node.processes():
            with suppress(psutil.NoSuchProcess):
                words = one.cmdline()
                if one.pid in roles:
                    name = roles[one.pid]
                elif one.pid == run.command.pid:
                    name = "supervisor"
                elif words and words[0].startswith("ray::Host"):
                    name = f"actor on node {number}"
                elif words and words[0].startswith("ray::Courier"):
                    name = f"courier on node {number}"
                elif one.name() in ("raylet", "gcs_server"):
                    name = f"{one.name()} of node {number}"
                else:
                    continue
                found[one.pid] = name
    return found


def own_memory(pid: int) -> float:
    """MiB that a process has for itself."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:"))) / 2**10


def sample(run: LabTraining, samples: Samples) -> None:
    """One look at all processes."""
    for pid, name in names(run).items():
        with suppress(psutil.NoSuchProcess, OSError):
            threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
            pooled = sum(thread.startswith(POOLS) for thread in threads)
            values = {"memory_mib": own_memory(pid), "handles": psutil.Process(pid).num_fds()}
            samples[f"{name} ({pid})"].append(values | {"threads": len(threads) - pooled, "grpc_threads": pooled})
    files = sum(1 for node in run.lab.nodes for path in node.files.rglob("*") if path.is_file())
    samples["files on shared memory"].append({"files": files})


def growth(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians of the first and of the last fifth after warm-up, which is a third; for pools also the most before."""
    after = samples[len(samples) // 3 :]
    part = max(1, len(after) // 5)
    result = {}
    for what in after[0]:
        first = statistics.median(one[what] for one in after[:part])
        last = statistics.median(one[what] for one in after[-part:])
        result[what] = {"first": round(first, 1), "last": round(last, 1), "growth": round(last / first - 1, 4)}
        if what == "grpc_threads":
            result[what]["most_before"] = max(one[what] for one in samples[:-part])
    return result


def over_time(samples: list[dict[str, float]], parts: int = 20) -> dict[str, str]:
    """Medians of equal parts of the time, warm-up included: does it rise all the time, or fill up to a limit?"""
    size = max(1, len(samples) // parts)
    chunks = [samples[at : at + size] for at in range(0, len(samples), size)]
    return {
        what: " ".join(f"{statistics.median(one[what] for one in chunk):.1f}".removesuffix(".0") for chunk in chunks)
        for what in samples[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    given = parser.parse_args()
    samples: Samples = defaultdict(list)
    with light_cluster(cpus=[2, 1, 1]) as lab, tempfile.TemporaryDirectory(prefix="soak-") as folder:
        words = ("train", "cartpole_apex_dqn", "--address", "auto", "--actors", "2", "--stop-return", "1000000")
        run = LabTraining(lab, lab.nodes[0], Path(folder), *words, "--steps", "1000000000")
        run.wait_for_start(seconds=180)
        began = time.monotonic()
        while time.monotonic() - began < 60 * given.minutes:
            sample(run, samples)
            assert run.command.poll() is None, run.output
            time.sleep(given.every)
        steps = run.steps()
        run.press_ctrl_c()
        assert run.end(60) == 0, run.output
    # A process that was there for a part of the time has no growth to speak of.
    longest = max(map(len, samples.values()))
    found = {name: growth(values) for name, values in samples.items() if len(values) > 0.9 * longest}
    passing = [name for name in samples if name not in found]
    result = {
        "minutes": given.minutes,
        "samples": longest,
        "steps": steps,
        "growth": found,
        "medians_over_time": {name: over_time(samples[name]) for name in found},
        "processes_of_a_part_of_the_time": passing,
        "machine": described(("ray", "torch", "numpy")),
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if show(result) else 1)


def show(result: dict[str, Any]) -> bool:
    """The table; whether the bar is held."""
    table = Table(title=f"soak: {result['minutes']:g} minutes, {result['steps']:,} steps")
    for name in ("process", "what", "after warm-up", "at the end", "growth"):
        table.add_column(name)
    held = True
    for name, each in result["growth"].items():
        for what, value in each.items():
            fine = value["growth"] < (GROWTH if what == "memory_mib" else 1e-9)
            fine |= value["last"] <= value.get("most_before", -1)
            held &= fine
            table.add_row(
                name, what, f"{value['first']:g}", f"{value['last']:g}", f"{value['growth']:+.1%}{'' if fine else ' !'}"
            )
    console.print(table)
    return held


if __name__ == "__main__":
    main()
