"""Replay shared between runs, compared with Stable-Baselines3's own buffer: `make bench-sharing`.

- alone: SAC with Shoal's buffer and no peers against SAC with SB3's: identical weights, and steps per second; also the
  time of `add` and `sample` there, where an update after each call evicts their data from the caches.
- four: four runs that share at 0.2 against four that do not, in separate processes, one group at a time.
- sample: a batch of 256, 20 % of it from three peers of 1M rows, against SB3's `sample` from its own 1M.
- add: rows per second against SB3's `add`, one call after the other.
- memory: four runs of 1M rows. The memory is the size of the registry's files plus the growth of the four processes'
  anonymous memory (where a copy would be) since before they created their buffers. The sum of PSS, in which a shared
  page counts once, confirms it. USS alone is not sufficient: it counts a shared page that only one process has read.

Every group runs in a separate process. On a shared machine, the rows by CPU time are more stable.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import Row, report, say

PACKAGES = ("gymnasium", "numba", "numpy", "psutil", "stable-baselines3", "torch")
GROUPS = ("alone", "four", "sample", "add", "memory")
STARTS, SLICES = 3, 10
"""How often both groups of `four` are started; slices per round for the models of `alone`."""


def measure(group: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one group."""
    import _sharing_alone
    import _sharing_buffers as buffers
    import _sharing_runs

    rows = 200_000 if options.quick else 1_000_000
    if group == "alone":
        return _sharing_alone.alone(SLICES * options.rounds)
    if group == "four":
        return _sharing_runs.four(max(2.0, 8 * options.seconds), options.rounds, 1 if options.quick else STARTS)
    if group == "memory":
        return buffers.memory(rows)
    calls = {"sample": buffers.sample, "add": buffers.add}
    return calls[group](rows, options.seconds, options.rounds)


def in_child(group: str, options: argparse.Namespace) -> list[Row]:
    """Runs a group in a separate process, which ends with this one."""
    say(group)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--group", group, "--found", str(result)]
        command += ["--seconds", str(options.seconds), "--rounds", str(options.rounds)]
        child = subprocess.Popen(command + ["--quick"] * options.quick)
        try:
            if child.wait():
                raise SystemExit(f"The group {group} failed.")
        finally:
            child.terminate()  # it stops its runs and removes its registry
            child.wait()
        return [Row(**row) for row in json.loads(result.read_text())]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows and few rounds: a smoke test")
    parser.add_argument(
        "--seconds", type=float, help="per contender and round (0.5; quick: 0.1); runs work 8 times that"
    )
    parser.add_argument("--rounds", type=int, help=f"rounds (10; quick: 2); SAC alone has {SLICES} slices in each")
    parser.add_argument("--only", choices=GROUPS, help="one group instead of all")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seconds = options.seconds or (0.1 if options.quick else 0.5)
    options.rounds = options.rounds or (2 if options.quick else 10)
    return options


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that stopped processes and shared memory are released
    if options.group:
        options.found.write_text(json.dumps([asdict(row) for row in measure(options.group, options)]))
        return 0
    rows = [row for group in GROUPS if options.only in (None, group) for row in in_child(group, options)]
    settings = {
        "seconds": options.seconds,
        "rounds": options.rounds,
        "quick": options.quick,
        "slices": SLICES,
        "starts": STARTS,
    }
    name = "sharing" if not options.quick and options.only is None else "sharing-partial"
    holds = report(name, rows, PACKAGES, settings)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
