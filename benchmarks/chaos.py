"""A run on a cluster of three nodes that are killed, stopped, cut off and filled up: `make chaos ARGS="--minutes 10"`.

The nodes are network namespaces on this machine, as root on Linux; otherwise raylets on loopback, which cannot be cut
off or filled up. A seed decides what is done. At the end the run is stopped, its mirrors are compared with the actors'
own shards, and it is resumed until it is solved. Nothing may be left then: no process, no folder.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _harness import RESULTS, console, described, say
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
import psutil
from tests.lab import LabTraining, Node, light_cluster, namespaces, unavailable

from shoal.replay import ShardReader
from shoal.types import CUT as CUT_MARK

PAUSE = (4.0, 10.0)
STOPPED = (1.0, 12.0)
CUT = (2.0, 20.0)
FILLED = 6.0
PATIENCE = 90.0
SETTINGS = ("evaluation.every_steps=100000000", "report_seconds=2", "restart_limit=100000", "replay.capacity=200000")


@dataclass
class Event:
    """One attack, and what became of it."""

    at: float
    what: str
    some: float = float("nan")
    """Seconds until steps grew again."""
    all: float = float("nan")
    """Seconds until every actor's steps grew again."""
    restarts: int = 0


class Chaos:
    """Attacks on one run."""

    def __init__(self, lab: Any, run: LabTraining, seed: int) -> None:
        self.lab, self.run, self.random = lab, run, random.Random(seed)
        self.cuts = hasattr(lab.nodes[0], "cut")
        attacks: list[Callable[[], str]] = [self.kill_at_home, self.kill_there, self.stop_at_home, self.stop_there]
        attacks += [self.stop_node, self.kill_node] + [self.cut, self.fill] * self.cuts
        self.attacks = attacks

    @property
    def others(self) -> list[Node]:
        return [node for node in self.lab.nodes[1:] if node.processes()]

    def attack(self) -> str:
        """One of them; returns what was done."""
        return self.random.choice(self.attacks)()

    def kill_at_home(self) -> str:
        name = self.random.choice(["learner", "mirrors"])
        self.run.role(name).kill()
        return f"kill -9 {name}"

    def kill_there(self) -> str:
        victim, name = self._role_there()
        victim.kill()
        return f"kill -9 {name}"

    def stop_at_home(self) -> str:
        name, seconds = self.random.choice(["learner", "mirrors"]), self.random.uniform(*STOPPED)
        self._stop(self.run.role(name), seconds)
        return f"SIGSTOP {name} for {seconds:.0f} s"

    def stop_there(self) -> str:
        (victim, name), seconds = self._role_there(), self.random.uniform(*STOPPED)
        self._stop(victim, seconds)
        return f"SIGSTOP {name} for {seconds:.0f} s"

    def stop_node(self) -> str:
        node, seconds = self.random.choice(self.others), self.random.uniform(*STOPPED)
        node.freeze()
        time.sleep(seconds)
        node.thaw()
        return f"SIGSTOP node for {seconds:.0f} s"

    def kill_node(self) -> str:
        self.random.choice(self.others).kill()
        self._join()
        return "kill -9 node; another joins"

    def cut(self) -> str:
        node, seconds = self.random.choice(self.others), self.random.uniform(*CUT)
        node.cut()  # type: ignore[attr-defined]
        time.sleep(seconds)
        node.mend()  # type: ignore[attr-defined]
        return f"link cut for {seconds:.0f} s"

    def fill(self) -> str:
        node = self.random.choice([self.run.home, *self.others])
        file = node.files / "filled"
        with file.open("wb") as opened:
            try:
                while True:
                    opened.write(bytes(2**20))
            except OSError:
                pass
        time.sleep(FILLED)
        file.unlink()
        return f"shared memory full for {FILLED:.0f} s"

    def mend(self) -> None:
        """Adds nodes in place of those that Ray has given up."""
        while len(self.others) < 2:
            self._join()

    def _join(self) -> None:
        self.lab.add_node(cpus=2)

    def _role_there(self) -> tuple[psutil.Process, str]:
        found = []
        for node in self.lab.nodes:
            if (courier := self.run.courier_on(node)) is not None:
                found.append((courier, "a courier"))
            if node is not self.run.home:
                found += [(one, "an actor") for one in self.run.roles_on(node)]
        return self.random.choice(found) if found else (self.run.role("mirrors"), "mirrors")

    @staticmethod
    def _stop(process: psutil.Process, seconds: float) -> None:
        process.suspend()
        time.sleep(seconds)
        if process.is_running():
            process.resume()


def heads(run: LabTraining) -> list[int]:
    """Rows of every actor that are at home."""
    assert run.replay is not None
    return [ShardReader(path).head for path in sorted(run.replay.glob("shard_???"))]


def watch(run: LabTraining, event: Event) -> None:
    """Waits until all actors' rows arrive again."""
    before, began = heads(run), time.monotonic()
    while time.monotonic() - began < PATIENCE:
        grown = [now > then + 10 for now, then in zip(heads(run), before, strict=True)]
        took = time.monotonic() - began
        if any(grown) and np.isnan(event.some):
            event.some = took
        if all(grown):
            event.all = took
            return
        assert run.command.poll() is None, f"the run ended:\n{run.output}"
        time.sleep(0.1)


def torn(run: LabTraining) -> tuple[int, int]:
    """Rows that differ between an actor's shard and its mirror, and how many were compared. A shard that continues one
    of a lost node has CUT markers only before its first row.
    """
    differ = compared = 0
    for actor, own in run.shards().items():
        mirror = ShardReader(run.replay / f"shard_{actor:03d}")  # type: ignore[operator]
        rows = range(max(own.oldest, mirror.oldest), min(own.head, mirror.head))
        first = next((row for row in rows if (own.columns["boundary"][row % own.rows] != CUT_MARK).any()), rows.stop)
        for row in range(first, rows.stop):
            place = row % own.rows
            same = (np.array_equal(own.columns[name][place], mirror.columns[name][place]) for name in own.columns)
            differ += not all(same)
        compared += rows.stop - first
    return differ, compared


@contextmanager
def laboratory() -> Iterator[Any]:
    """Three nodes: home, which is the head, and two for actors."""
    if unavailable() is None:
        with namespaces(cpus=[2, 2, 2], memory="300m") as lab:
            yield lab
    else:
        say(f"  no namespaces ({unavailable()}): links are not cut, memory is not filled")
        with light_cluster(cpus=[2, 2, 2]) as lab:
            yield lab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "chaos.json")
    given = parser.parse_args()
    with laboratory() as lab, tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        endless = ("--stop-return", "1000000", "--steps", "1000000000", *SETTINGS)
        words = ("train", "cartpole_apex_dqn", "--address", "auto", "--actors", "2")
        run = LabTraining(lab, lab.nodes[0], Path(folder), *words, *endless)
        run.wait_for_start(seconds=180)
        events, began = attack_for(Chaos(lab, run, given.seed), run, 60 * given.minutes), time.monotonic()
        run.press_ctrl_c()
        assert run.end(90) == 0, run.output
        stopped, left = time.monotonic() - began, run.left_running()
        counted, owned, (differ, compared) = run.steps(), run.outpost_steps(), torn(run)
        lost = sum(int(text.replace(",", "")) for text in re.findall(r"are lost, about ([\d,]+)", run.text))
        again = LabTraining(
            lab,
            lab.nodes[0],
            Path(folder),
            "resume",
            "runs/latest",
            "--stop-return",
            "475",
            "evaluation.every_steps=1000",
        )
        solved = again.end(600) == 0 and again.read("summary.json")["status"] == "solved"
        found = [str(path) for node in lab.nodes for path in _replays(node)]
        result = {
            "minutes": given.minutes,
            "seed": given.seed,
            "form": "namespaces" if hasattr(lab.nodes[0], "cut") else "light",
            "steps": counted,
            "steps_of_actors_shards": owned,
            "rows_that_differ": differ,
            "rows_compared": compared,
            "rows_lost_about": lost,
            "restarts": max(map(int, re.findall(r"restart (\d+)\.", run.text)), default=0),
            "stopped_after_seconds": round(stopped, 1),
            "solved_after_resume": solved,
            "processes_left": left + again.left_running(),
            "folders_left": found,
            "machine": described(("ray", "torch", "numpy")),
            "events": [asdict(event) for event in events],
        }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    show(result)
    bad = left or found or differ or not solved or counted != owned or any(np.isnan(event.all) for event in events)
    sys.exit(1 if bad else 0)


def attack_for(chaos: Chaos, run: LabTraining, seconds: float) -> list[Event]:
    began, events = time.monotonic(), list[Event]()
    while time.monotonic() - began < seconds:
        time.sleep(chaos.random.uniform(*PAUSE))
        at, before = time.monotonic() - began, _restarts(run)
        event = Event(round(at, 1), chaos.attack())
        chaos.mend()
        watch(run, event)
        event.restarts = _restarts(run) - before
        events.append(event)
        say(f"  {at:6.0f} s  {event.what}: {event.some:.1f} s, all {event.all:.1f} s, {event.restarts} restarts")
    return events


def _restarts(run: LabTraining) -> int:
    return len(set(re.findall(r"restart (\d+)\.", run.text)))


def _replays(node: Node) -> list[Path]:
    return [path for path in node.files.glob("shoal-*/*") if path.is_dir()] if node.processes() else []


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table(title=f"chaos: {result['minutes']:g} minutes, seed {result['seed']}, {result['form']}")
    for name in ("at (s)", "what was done", "steps grew after (s)", "of all actors (s)", "restarts"):
        table.add_column(name)
    for event in result["events"]:
        table.add_row(*(f"{one:.1f}" if isinstance(one, float) else str(one) for one in event.values()))
    console.print(table)
    for name, value in result.items():
        if name not in ("events", "machine"):
            console.print(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    main()
