"""A3C: episodes to solve machin's task, and environment steps per second of one and of two workers: `make bench-a3c`.

Every run is a separate process, as a user starts it, on a local Ray with a server, an evaluator and the workers. For
the second part the machine must have nothing else to do: the load before each run is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from _harness import Row, report, say
from impala import PACKAGES, solved_after, train

MACHIN = 1350.0
"""Episodes per process in machin's own log of its A3C tutorial, three processes."""
BAR = 300.0


def machin(seeds: int) -> list[Row]:
    """Episodes per worker until solved; the slowest of the three workers counts."""
    needed = []
    for seed in range(1, seeds + 1):
        options = ("--seed", str(seed), "--stop-return", "1e9", "--steps", "120000", "replay.capacity=300000")
        summary, lines, episodes = train("cartpole_a3c", *options, "evaluation.every_steps=1000000")
        each = [solved_after(returns) for returns in episodes]
        needed.append(max(each))
        counts = {name: int(value) for name, value in lines[-1].items() if name.startswith("gradients/")}
        say(f"  seed {seed}: {each} episodes, {summary['steps_per_second']:,.0f} steps/s, {counts}")
    median = statistics.median(needed)
    what, holds = "CartPole capped at 200: episodes per worker, median", median < BAR
    share = median / MACHIN
    return [Row(what, median, MACHIN, "machin's own log", share, f"< {BAR:g}", holds, {"worst": max(needed)})]


def workers(seconds: float, rounds: int) -> list[Row]:
    """Two workers against one, in turn."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for count, found in rates.items():
            load = os.getloadavg()[0]
            options = (
                "--actors",
                str(count),
                "--seconds",
                f"{seconds}",
                "--stop-return",
                "1e9",
                "--steps",
                "1000000000",
            )
            summary, _, _ = train("cartpole_a3c", *options, "evaluation.every_steps=100000000")
            found.append(summary["steps_per_second"])
            say(f"  {count} workers: {found[-1]:,.0f} steps/s, {summary['bottleneck']} (load before: {load:.1f})")
    one, two = (statistics.median(rates[count]) for count in (1, 2))
    row = Row(
        "CartPole: env steps/s, 2 workers against 1", two, one, "1 worker", two / one, ">= 1.7x", two >= 1.7 * one
    )
    return [row]


PARTS = {
    "machin": lambda quick: machin(1 if quick else 5),
    "workers": lambda quick: workers(5.0 if quick else 20.0, 1 if quick else 3),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or PARTS:
        say(f"{name} ({time.strftime('%H:%M:%S')})")
        rows += PARTS[name](options.quick)
    whole = not options.quick and not options.only
    holds = report("a3c" if whole else "a3c-partial", rows, PACKAGES, {"quick": options.quick, "only": options.only})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
