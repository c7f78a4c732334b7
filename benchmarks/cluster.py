"""Rows of other nodes: how quickly they come, and what they cost: `make bench-cluster` (Linux, as root).

Two nodes in network namespaces of this machine, joined by a switch; role, courier and Ray are the real ones. Writers
without environments fill the outpost's shards with frames of Pong. Plain TCP between the same two nodes is measured in
turn. The nodes share this machine's cores, so speeds are lower bounds; shares and counts are not affected.

Parts (`--only rows,lag`): rows, lag, batches, link, priorities, compress, calls, single; and learning, which takes an
hour and runs only when it is named. The results file keeps the rows of parts that are not measured again.

    make bench-cluster ARGS="--only learning"             # goes on with what is missing; --fresh starts over
    make bench-cluster ARGS="--only learning --report"    # judges what is there
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _cluster_batches import PACE, batches_while_filled, cpu_per_mb, link_rows, priority_rows
from _cluster_learning import SECONDS, STORE, learning_rows, told_runs
from _cluster_rows import Rig, cut_flow, pong_frames
from _cluster_runs import call_rows, single_rows
from _harness import RESULTS, Measured, Row, bounded, compared, described, report, say

PACKAGES = ("numpy", "ray", "torch", "lz4", "zstandard")
LEAST_MB = 400.0
NEEDS_LAB = ("rows", "lag", "batches", "link", "compress")


def full_speed(rig: Rig, options: argparse.Namespace) -> list[Row]:
    """Mirrored rows at full speed against plain TCP."""
    found = cut_flow(rig, options.seconds, options.rounds, lambda: rig.flow(options.seconds))
    rates = {"mirrors": Measured([flow.mb_per_second for _, flow in found]), "TCP": Measured([tcp for tcp, _ in found])}
    row = compared("mirrored Atari rows between two nodes (MB/s)", rates, ours="mirrors")
    row.bar = f">= 0.8x or >= {LEAST_MB:g} MB/s"
    row.holds = row.shoal >= LEAST_MB or (row.ratio or 0.0) >= 0.8
    row.others |= {
        f"{name} (ms of a core per MB)": cost for name, cost in cpu_per_mb([one for _, one in found]).items()
    }
    return [row]


def lag(rig: Rig, options: argparse.Namespace) -> list[Row]:
    """Age of the oldest row that home lacks, at Ape-X's rate."""
    flows = [rig.flow(options.seconds, PACE) for _ in range(options.rounds)]
    rows = [bounded("longest lag at 12.5k steps/s (s)", max(one.worst_lag for one in flows), at_most=1.0)]
    rows[0].others["median lag"] = statistics.median(one.lag for one in flows)
    calls = statistics.median(one.calls_per_1000 for one in flows)
    return [*rows, bounded("Ray calls per 1,000 steps at 12.5k steps/s", calls, at_most=5)]


def compressed(frames: Any, options: argparse.Namespace) -> list[Row]:
    """Full speed with each codec, without a limit and over a 1 Gb/s link."""
    rows = []
    plain: dict[str, float] = {}
    for codec, module in (("none", "json"), ("lz4", "lz4"), ("zstd", "zstandard"), ("auto", "json")):
        if find_spec(module) is None:
            say(f"  {codec}: the package {module} is not installed")
            continue
        with Rig(frames, [f"replay.compress={codec}"]) as rig:
            for link in (None, "1gbit"):
                if link:
                    rig.outpost.limit(link)
                flows = [rig.flow(options.seconds) for _ in range(options.rounds)]
                rate, name = statistics.median(one.mb_per_second for one in flows), link or "no limit"
                before = plain.setdefault(name, rate)
                say(f"  {codec}, {name}: {rate:,.0f} MB/s")
                row = Row(f"rows with compress={codec}, {name} (MB/s)", rate)
                if codec != "none":
                    row.best_peer, row.peer, row.ratio = before, "none", rate / before
                row.others["MB/s on the link"] = statistics.median(one.carried for one in flows)
                row.others |= {f"{who} (ms/MB)": cost for who, cost in cpu_per_mb(flows).items()}
                rows.append(row)
    return rows


def main() -> int:
    from tests.lab import unavailable

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="parts, separated by commas")
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fresh", action="store_true", help="learning: forget the runs that are there")
    parser.add_argument("--report", action="store_true", help="learning: run nothing")
    parser.add_argument("--store", type=Path, default=STORE, help="learning: where finished runs are kept")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 1.5, 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that runs and nodes are ended, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    frames = None if options.only == "learning" else pong_frames()
    on_rig: dict[str, Callable[[Rig], list[Row]]] = {
        "rows": lambda rig: full_speed(rig, options),
        "lag": lambda rig: lag(rig, options),
        "batches": lambda rig: batches_while_filled(rig, frames, options.seconds / 3, 4 * options.rounds),
        "link": lambda rig: link_rows(rig, 2 * options.seconds),
    }
    alone: dict[str, Callable[[], list[Row]]] = {
        "priorities": lambda: priority_rows(100_000 if options.quick else 1_000_000),
        "compress": lambda: compressed(frames, options),
        "calls": lambda: call_rows((2,) if options.quick else (2, 4, 8), 8 if options.quick else 20),
        "single": lambda: single_rows(4 * options.rounds),
        "learning": lambda: learning_rows(options),
    }
    chosen = options.only.split(",") if options.only else [part for part in (*on_rig, *alone) if part != "learning"]
    if unknown := set(chosen) - set(on_rig) - set(alone):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if {*NEEDS_LAB} & {*chosen} and (reason := unavailable()):
        print(f"bench-cluster: {reason}; --only {','.join(set(alone) - {*NEEDS_LAB})} works.", file=sys.stderr)
        return 2
    measured: dict[str, list[Row]] = {}
    if wanted := [part for part in on_rig if part in chosen]:
        with Rig(frames, ["replay.compress=none"]) as rig:
            for part in wanted:
                say(part)
                measured[part] = on_rig[part](rig)
    for part, measure in alone.items():
        if part in chosen:
            say(part)
            measured[part] = measure()
    parts = {**kept_parts(), **{part: measured_now(options, rows) for part, rows in measured.items()}}
    if "learning" in measured:
        parts["learning"] |= {"seconds": SECONDS, "rounds": 1, "runs": told_runs(options.store)}
    ordered = [part for part in (*on_rig, *alone) if part in parts]
    rows = [Row(**row) for part in ordered for row in parts[part]["rows"]]
    settings = {part: {key: value for key, value in parts[part].items() if key != "rows"} for part in ordered}
    names = {part: [row["what"] for row in parts[part]["rows"]] for part in ordered}
    held = report("cluster", rows, PACKAGES, {"parts": settings, "rows_of": names})
    return 0 if held else 1


def measured_now(options: argparse.Namespace, rows: list[Row]) -> dict[str, Any]:
    """The rows of a part, and what they depend on."""
    about = described(())
    told = {"seconds": options.seconds, "rounds": options.rounds, "quick": options.quick}
    return {**told, "commit": about["commit"], "time": about["time"], "rows": [asdict(row) for row in rows]}


def kept_parts() -> dict[str, dict[str, Any]]:
    """The parts in the results file, measured earlier."""
    file = RESULTS / "cluster.json"
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())
    rows = {row["what"]: row for row in found["rows"]}
    about = found["settings"].get("parts", {})
    names = found["settings"].get("rows_of", {})
    return {part: {**about[part], "rows": [rows[what] for what in names[part]]} for part in names}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("Interrupted; nothing is left running.")
        sys.exit(130)
