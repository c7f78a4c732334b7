"""Does it learn with nothing set? `make bench-learning`: every algorithm, its environments, 5 seeds, beside SB3.

Each run has its own process with one thread, as many at a time as there are cores. Finished runs are kept in
results/learning-partial.jsonl, and the next call goes on with what is missing; failed runs are tried again. SB3's SAC
and TD3 take 20 minutes per run on such a core and come last. So measure in parts:

    make bench-learning ARGS="--minutes 100"                        # stop after about 100 minutes
    make bench-learning ARGS="--only apex-dqn,sb3-dqn --env CartPole-v1,Acrobot-v1"
    make bench-learning ARGS="--fresh apex-dqn --only apex-dqn"     # measure changed code again
    make bench-learning ARGS="--report"                             # only table, page and picture

Changed code does not discard results: the page says which code each contender's runs had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import _cpu, say
from _learning_plan import CONTENDERS, FILE, ROOT, SEEDS, STORE, TASKS, Store, Unit, source_of, units

LIMIT = 3 * 3600.0
"""Seconds after which a run counts as failed."""


class Process:
    """A unit at work."""

    def __init__(self, unit: Unit) -> None:
        self.unit, self.began, self.source = unit, time.monotonic(), source_of(unit.contender)
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-learning-"))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        program = str(Path(__file__).with_name("_learning_unit.py"))
        command = [sys.executable, "-W", "ignore", program, json.dumps(asdict(unit)), str(self.folder)]
        with (self.folder / "output.txt").open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=self.folder)

    def result(self) -> dict[str, Any] | None:
        """None while it runs; then what was found, or the error."""
        code = self._process.poll()
        if code is None and time.monotonic() - self.began < LIMIT:
            return None
        try:
            if code == 0:
                return json.loads((self.folder / "found.json").read_text())
            lines = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
            why = f"not ready after {LIMIT:g} s" if code is None else f"exit code {code}"
            return {"error": f"{why}: {lines[-1][:300] if lines else 'no output'}"}
        finally:
            self.end()

    def end(self) -> None:
        """Stops it if it still runs, and removes its files, also the replay that an interrupted run keeps."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for place in self.folder.glob("runs/*/replay.json"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                shutil.rmtree(json.loads(place.read_text())["path"], ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def work(store: Store, wanted: list[Unit], jobs: int, minutes: float) -> None:
    """Runs what is missing, `jobs` at a time; starts nothing new after `minutes`."""
    waiting = store.missing(wanted)
    say(f"{len(wanted) - len(waiting)} of {len(wanted)} runs are there; {jobs} at a time.")
    began, done, running = time.monotonic(), 0, list[Process]()
    number = len(waiting)
    where = {"cpu": _cpu(), "jobs": jobs}
    try:
        while running or (waiting and time.monotonic() - began < minutes * 60):
            while waiting and len(running) < jobs and time.monotonic() - began < minutes * 60:
                running.append(Process(waiting.pop(0)))
            time.sleep(0.2)
            for one in list(running):
                if (found := one.result()) is None:
                    continue
                running.remove(one)
                when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
                store.add(one.unit, {**found, "source": one.source, "machine": where, "time": when})
                done += 1
                took = time.monotonic() - one.began
                said = f"FAILED, {found['error']}" if "error" in found else f"{found['score']:.4g}"
                say(f"  [{done}/{number}] {one.unit}: {said} ({took:.0f} s)")
    finally:
        for one in running:
            say(f"  stopped: {one.unit}")
            one.end()
    if waiting:
        say(f"{len(waiting)} runs are missing: the same command goes on with them.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(known: Any) -> Any:
        def read(text: str) -> list[str]:
            given = text.split(",")
            if unknown := [name for name in given if name not in known]:
                raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
            return given

        return read

    parser.add_argument("--only", type=names(CONTENDERS), metavar="NAME,…", help=f"some of {', '.join(CONTENDERS)}")
    parser.add_argument("--env", type=names(TASKS), metavar="ID,…", help=f"some of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds, from 1 on ({SEEDS})")
    parser.add_argument("--steps", type=int, help="instead of each environment's own; prints the table, writes no page")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time (cores)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--zoo", action="store_true", help="also SB3 with the RL Zoo's tuned settings")
    parser.add_argument("--fresh", type=names(CONTENDERS), metavar="NAME,…", help="first forget results (of --env)")
    parser.add_argument("--report", action="store_true", help="run nothing; table, page and picture of what is there")
    parser.add_argument("--store", type=Path, default=STORE, help="where finished runs are kept")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    return parser.parse_args()


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runs are stopped too
    store, envs = Store(options.store, FILE if options.store == STORE else None), options.env or list(TASKS)
    if options.fresh:
        say(f"{store.drop(options.fresh, envs)} results forgotten: {', '.join(options.fresh)}.")
    tasks = [TASKS[env] for env in envs]
    if not options.report:
        wanted = units(tasks, options.seeds, only=options.only, steps=options.steps, zoo=options.zoo)
        try:
            work(store, wanted, options.jobs, options.minutes)
        except KeyboardInterrupt:
            say("Interrupted. The same command goes on with what is missing.")
            return 130
    from _learning_report import write

    holds = write(store.read(), options.steps)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
