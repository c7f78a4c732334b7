"""Replay compared with cpprb, tianshou, Stable-Baselines3, a Ray actor and the memory limit: `make bench-replay`.

Each group runs in a separate process, so that its memory is free again afterwards. The Atari group runs twice: with
default settings, and with an allocator that recycles memory (three glibc variables), which saves the peers the page
faults of their new batches. The bars apply to the second, because it compares only the libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import Measured, Row, bounded, compared, interleave, report, say

RECYCLE = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "268435456",
}
PACKAGES = ("numpy", "numba", "cpprb", "tianshou", "stable-baselines3", "ray", "torch")
PEERS = ("cpprb", "tianshou")
THREADS = min(2, os.cpu_count() or 1)
Found = dict[str, Any]


def plain(measured: dict[str, Measured]) -> Found:
    """A row as JSON values, to send it from a group's process to this one."""
    return {name: asdict(one) for name, one in measured.items()}


def side_by_side(options: argparse.Namespace, *, atari: bool) -> Found:
    """All contenders on the same transitions, per operation."""
    import _replay_contenders as c

    full = 50_000 if atari else 1_000_000
    rows = full // 10 if options.quick else full
    case = c.Case((4, 84, 84), "uint8", 4, rows, THREADS) if atari else c.Case((4,), "float32", 1, rows, 1)
    say(f"  filling {rows:,} transitions each")
    n_step = 3 if atari else 1
    shoal = c.Shoal(case, n_step)
    longer = shoal if atari else c.Shoal(case, 3, beside=shoal)
    try:
        cpprb, tianshou = c.Cpprb(case), c.Tianshou(case)
        sb3 = c.Sb3(case, min(rows, 10_000) if atari else rows)
        meta = tianshou.buffer._meta
        limits = {k: c.Limit(meta.obs, meta.obs_next, k) for k in {1, case.threads}}
        timing = {"seconds": options.seconds, "rounds": options.rounds}
        found: Found = {"bytes": shoal.bytes_per_step}
        for count in (1, 50, 500):
            found[f"insert {count}"] = plain(
                interleave(
                    f"insert, chunks of {count}",
                    {
                        "shoal": shoal.insert(count, indexed=True),
                        "shoal, writer's part": shoal.insert(count, indexed=False),
                        "cpprb": cpprb.insert(count),
                        "tianshou": tianshou.insert(count),
                        "sb3 (uniform)": sb3.insert(count),
                    },
                    per_call=count,
                    **timing,
                )
            )
        for operation, n in (("sample", 256), ("sample", 512), ("update", 512), ("cycle", 256), ("cycle", 512)):
            calls = {"shoal": getattr(shoal, operation)(n)}
            if longer is not shoal:
                calls["shoal, n-step 3"] = getattr(longer, operation)(n)
            calls |= {name: getattr(one, operation)(n) for name, one in (("cpprb", cpprb), ("tianshou", tianshou))}
            if operation != "update":
                calls |= {f"limit, {k} thread{'s' * (k > 1)}": limit.gather(n) for k, limit in limits.items()}
            found[f"{operation} {n}"] = plain(interleave(f"{operation} {n}", calls, **timing))
        uniform = {"shoal": shoal.uniform(512), "sb3": sb3.uniform(512)}
        found["uniform 512"] = plain(interleave("uniform 512", uniform, **timing))
        return found
    finally:
        shoal.close()


def crossing(options: argparse.Namespace) -> Found:
    """Two writers and a learner in separate processes."""
    import _replay_cross

    rows, seconds = (10_000 if options.quick else 50_000), max(2.0, 4 * options.seconds)
    found = _replay_cross.measure(rows, seconds, options.rounds, THREADS)
    return {name: plain(measured) for name, measured in found.items()}


def in_child(group: str, options: argparse.Namespace, environment: dict[str, str]) -> Found:
    """Runs a group in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--group", group, "--found", str(result)]
        command += ["--seconds", str(options.seconds), "--rounds", str(options.rounds)]
        command += ["--quick"] if options.quick else []
        say(f"{group}{' (recycling allocator)' if environment else ''}")
        subprocess.run(command, check=True, env=os.environ | environment)
        found: Found = json.loads(result.read_text())
    return found


def measured(found: Found) -> dict[str, Measured]:
    """The inverse of `plain`."""
    return {name: Measured(**one) for name, one in found.items()}


def group_rows(title: str, found: Found, bars: dict[str, float]) -> list[Row]:
    """One row per operation; `bars` are the minimum ratios to the best peer."""
    rows = []
    for operation, one in found.items():
        if operation != "bytes":
            unit = "steps/s" if operation.startswith("insert") else "calls/s"
            name = f"{title}: {operation} ({unit})"
            rows.append(
                compared(name, measured(one), peers=(*PEERS, "sb3", "sb3 (uniform)"), at_least=bars.get(operation))
            )
    return rows


def atari_bars(found: Found) -> list[Row]:
    """The bars without peers: memory limit, page faults, bytes."""
    cycle = measured(found["cycle 512"])
    limit = f"limit, {THREADS} thread{'s' * (THREADS > 1)}"
    return [
        compared("Atari, recycled: cycle 512 against the gather limit", cycle, peers=(limit,), at_least=0.85),
        # If this is near 1, there was no free second core, and Shoal's second thread could not help either.
        compared("(the machine: gather limit, all threads against one)", cycle, ours=limit, peers=("limit, 1 thread",)),
        bounded("Atari, recycled: page faults per cycle 512", cycle["shoal"].faults_per_call, at_most=1.0),
        bounded("Atari: bytes per stored step", found["bytes"], at_most=7200),
    ]


def cross_rows(found: Found) -> list[Row]:
    """The cross-process bars, against the better of the two Ray actors for each quantity."""
    rows = []
    for ours, title in (
        ("shoal", "writers at full speed"),
        ("shoal, paced", "writers held to 15x the Ray actor's rate"),
    ):
        for what, bar in (("batches", 1.8), ("steps", 10.0)):
            rates = measured(found[what])
            peers = tuple(name for name in rates if name.startswith("ray"))
            rows.append(
                compared(f"2 writers + learner, {title}: {what}/s", rates, ours=ours, peers=peers, at_least=bar)
            )
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and short rounds: a smoke test")
    parser.add_argument("--seconds", type=float, help="per contender and round (0.5; quick: 0.1)")
    parser.add_argument("--rounds", type=int, help="rounds per operation (5; quick: 2)")
    parser.add_argument("--only", choices=("small", "atari", "cross"), help="one group instead of all")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--group", choices=("small", "atari", "cross"), help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seconds = options.seconds or (0.1 if options.quick else 0.5)
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def main() -> int:
    options = parse()
    if options.group:
        found = crossing(options) if options.group == "cross" else side_by_side(options, atari=options.group == "atari")
        options.found.write_text(json.dumps(found))
        return 0
    rows: list[Row] = []
    if options.only in (None, "small"):
        small = in_child("small", options, {})
        rows += group_rows("small", small, {"cycle 512": 2.0})
        cycle = measured(small["cycle 512"])
        rows.append(compared("small: cycle 512, Shoal with n-step 3", cycle, ours="shoal, n-step 3", peers=PEERS))
    if options.only in (None, "atari"):
        rows += group_rows("Atari", in_child("atari", options, {}), {})
        recycled = in_child("atari", options, RECYCLE)
        rows += group_rows("Atari, recycled", recycled, {"cycle 512": 1.3}) + atari_bars(recycled)
    if options.only in (None, "cross"):
        rows += cross_rows(in_child("cross", options, {}))
    settings = {"seconds": options.seconds, "rounds": options.rounds, "quick": options.quick, "threads": THREADS}
    name = "replay" if not options.quick and options.only is None else "replay-partial"
    holds = report(name, rows, PACKAGES, settings)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
