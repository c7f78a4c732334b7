"""Does a run's memory stay constant? Pong after its replay is full, per process: `make bench-memory`.

Runs `shoal train` on Pong with a small replay that is full within a minute; then learning begins. When every role has
worked once (also the evaluator), the memory of all processes is read every few seconds: RSS, which counts shared pages
in every process that touched them, and USS, which would be free if that process ended. Growth is the median of the
last tenth of the readings relative to the median of the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from _harness import RESULTS, Row, bounded, console, report, say
from rich.table import Table

PACKAGES = ("ale-py", "gymnasium", "numpy", "psutil", "ray", "torch")
ROOT = Path(__file__).resolve().parents[1]
SCENARIO = "pong_apex_dqn"
CAPACITY, QUICK_CAPACITY = 20_000, 4_000
START_SECONDS = 900.0
MOST_GROWTH = 2.0
MIB = 2**20


def overrides(quick: bool) -> list[str]:
    """Learning begins when the replay is full. The evaluator starts before the first reading and runs often."""
    capacity = QUICK_CAPACITY if quick else CAPACITY
    small = ["env.max_episode_steps=300", "evaluation.episodes=1"] if quick else ["evaluation.episodes=2"]
    sizes = [f"replay.capacity={capacity}", f"replay.min_size={capacity}", "evaluation.every_steps=5_000"]
    return [*sizes, *small, "evaluation.lanes=2", "stop.mean_return=null", "stop.steps=null", "stop.seconds=864_000"]


@dataclass
class Reading:
    """Bytes by role, at one moment."""

    seconds: float
    rss: dict[str, int] = field(default_factory=dict)
    uss: dict[str, int] = field(default_factory=dict)

    def add(self, role: str, rss: int, uss: int) -> None:
        self.rss[role] = self.rss.get(role, 0) + rss
        self.uss[role] = self.uss.get(role, 0) + uss


class WatchedRun:
    """A run of Pong and all its processes."""

    def __init__(self, quick: bool, out: Path) -> None:
        self._out, self._run, self._log = out, out / "runs" / "latest", out / "output.txt"
        command = [sys.executable, "-m", "shoal", "train", SCENARIO, *overrides(quick), "--seed", "1"]
        with self._log.open("w") as log:
            self._driver = psutil.Popen([*command, "--out", str(out / "runs")], cwd=ROOT, stdout=log, stderr=log)

    def wait_until_settled(self) -> None:
        """Waits until the replay is full, updates are made and one evaluation is done."""
        deadline = time.monotonic() + START_SECONDS
        while not self._evaluated():
            self.check()
            if time.monotonic() > deadline:
                raise SystemExit(f"No evaluation within {START_SECONDS:.0f} s:\n{self._log.read_text()[-4000:]}")
            time.sleep(1.0)

    def _evaluated(self) -> bool:
        with contextlib.suppress(OSError):
            return "eval/mean_reward" in (self._run / "metrics.jsonl").read_text()
        return False

    def check(self) -> None:
        """Ends the benchmark if the run has ended."""
        if self._driver.poll() is not None:
            raise SystemExit(f"The run ended by itself:\n{self._log.read_text()[-4000:]}")

    def read(self, seconds: float) -> Reading:
        """Current memory of each role."""
        roles = {int(pid): role for role, pid in json.loads((self._run / "processes.json").read_text()).items()}
        reading = Reading(seconds)
        for process in (self._driver, *self._driver.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = process.memory_full_info()
                role = "driver" if process.pid == self._driver.pid else roles.get(process.pid) or _ray_part(process)
                reading.add(role, memory.rss, memory.uss)
        return reading

    def end(self) -> dict[str, Any]:
        """Interrupts the run, frees its replay and returns its summary."""
        if self._driver.poll() is None:
            self._driver.send_signal(signal.SIGINT)
            try:
                self._driver.wait(90)
            except psutil.TimeoutExpired:
                self._driver.kill()
        with contextlib.suppress(OSError, ValueError):
            shutil.rmtree(json.loads((self._run / "replay.json").read_text())["path"], ignore_errors=True)
        with contextlib.suppress(OSError):
            return dict(json.loads((self._run / "summary.json").read_text()))
        return {}


def _ray_part(process: psutil.Process) -> str:
    name = process.name()
    if name.startswith("ray::IDLE"):
        return "ray: idle workers"
    return f"ray: {name}" if name in ("raylet", "gcs_server") else "ray: agents"


@contextlib.contextmanager
def watched(quick: bool) -> Iterator[tuple[WatchedRun, dict[str, Any]]]:
    """A run, and its summary after it has ended."""
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = WatchedRun(quick, Path(folder))
        try:
            yield run, summary
        finally:
            summary |= run.end()


def collect(run: WatchedRun, seconds: float, every: float) -> list[Reading]:
    """Takes readings for this long."""
    readings, began = [], time.monotonic()
    while (now := time.monotonic() - began) <= seconds:
        run.check()
        readings.append(run.read(now))
        if len(readings) % 12 == 0:
            say(f"  {now:.0f} s: {sum(readings[-1].rss.values()) / MIB:,.0f} MiB RSS")
        time.sleep(max(0.0, every - (time.monotonic() - began - now)))
    return readings


def ends(values: list[int]) -> tuple[float, float]:
    """Medians of the first and of the last tenth."""
    tenth = max(1, len(values) // 10)
    return statistics.median(values[:tenth]), statistics.median(values[-tenth:])


def growth(values: list[int]) -> float:
    """In percent."""
    first, last = ends(values)
    return 100 * (last - first) / first if first else 0.0


def show(readings: list[Reading]) -> None:
    """Prints one line per role."""
    table = Table(title=f"memory: {len(readings)} readings over {readings[-1].seconds:.0f} s", title_justify="left")
    table.add_column("role")
    for heading in ("RSS first, MiB", "last", "growth %", "USS first, MiB", "last", "growth %"):
        table.add_column(heading, justify="right")
    found = {role for reading in readings for role in reading.rss}
    roles = sorted(found, key=lambda role: (role.startswith("ray"), role))
    for role in (*roles, "all"):
        cells = []
        for kind in ("rss", "uss"):
            values = series(readings, kind, None if role == "all" else role)
            cells += [f"{one / MIB:,.1f}" for one in ends(values)] + [f"{growth(values):+.2f}"]
        table.add_row(role, *cells, style="bold" if role == "all" else "")
    console.print(table)


def series(readings: list[Reading], kind: str, role: str | None = None) -> list[int]:
    """One quantity over time, of one role or of all."""
    held = [getattr(reading, kind) for reading in readings]
    return [sum(one.values()) if role is None else one.get(role, 0) for one in held]


def rows_of(readings: list[Reading], summary: dict[str, Any]) -> list[Row]:
    """The bars."""
    roles = [role for role in readings[-1].uss if not role.startswith("ray")]
    worst = max(roles, key=lambda role: growth(series(readings, "uss", role)))
    return [
        bounded("growth of RSS, all processes together, %", growth(series(readings, "rss")), at_most=MOST_GROWTH),
        bounded("growth of USS, all processes together, %", growth(series(readings, "uss")), at_most=MOST_GROWTH),
        Row(f"growth of USS, worst role ({worst}), %", growth(series(readings, "uss", worst))),
        Row("USS of all processes, MiB", ends(series(readings, "uss"))[1] / MIB),
        Row("env steps made", summary.get("env_steps", 0), others={"updates": summary.get("updates", 0)}),
        bounded("restarts", summary.get("restarts", 0), at_most=0),
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller replay, 20 s: a smoke test")
    parser.add_argument("--seconds", type=float, help="how long to watch (600; quick: 20)")
    parser.add_argument("--every", type=float, help="seconds between readings (5; quick: 1)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    options = parser.parse_args()
    options.seconds = options.seconds or (20.0 if options.quick else 600.0)
    options.every = options.every or (1.0 if options.quick else 5.0)
    return options


def main() -> int:
    options = parse()
    say("waiting until the replay is full and every role has worked")
    with watched(options.quick) as (run, summary):
        run.wait_until_settled()
        say(f"reading for {options.seconds:.0f} s")
        readings = collect(run, options.seconds, options.every)
    show(readings)
    settings = {"seconds": options.seconds, "every": options.every, "quick": options.quick}
    settings["overrides"] = overrides(options.quick)
    name = "memory" if not options.quick and options.seconds >= 600 else "memory-partial"
    holds = report(name, rows_of(readings, summary), PACKAGES, settings)
    written = RESULTS / f"{name}.json"
    series_by_role = [{"seconds": one.seconds, "rss": one.rss, "uss": one.uss} for one in readings]
    written.write_text(json.dumps(json.loads(written.read_text()) | {"readings": series_by_role}, indent=1) + "\n")
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
