"""Shared by the benchmarks: interleaved rounds, medians, one table, one JSON file.

Contenders are measured in turn within every round and compared within the round. The machine may be shared, and its
speed changes from second to second; the ratio of two neighbouring measurements changes much less. A round's rate is
that of its median call, so that calls interrupted by other processes do not count. Minor page faults are counted per
call, because a newly allocated batch causes page faults, and whether a batch is newly allocated depends on the
allocator.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
console = Console(width=None if sys.stdout.isatty() else 170)


def say(text: str) -> None:
    """Prints a line of progress to stderr; only the table goes to stdout."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Measured:
    """One contender's rates, one value per round."""

    rates: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def faults_per_call(self) -> float:
        return statistics.median(self.faults) if self.faults else 0.0


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def interleave(
    what: str, contenders: Mapping[str, Callable[[], Any]], *, seconds: float, rounds: int, per_call: float = 1.0
) -> dict[str, Measured]:
    """Runs every contender for `seconds` in every round. Rates are `per_call` times calls per second."""
    say(f"  {what}: {', '.join(contenders)}")
    measured = {name: Measured() for name in contenders}
    for call in contenders.values():  # first calls build caches and touch pages
        call()
        call()
    for _ in range(rounds):
        for name, call in contenders.items():
            took: list[float] = []
            faults, start = _faults(), time.perf_counter()
            while (before := time.perf_counter()) - start < seconds or len(took) < 3:
                call()
                took.append(time.perf_counter() - before)
            measured[name].rates.append(per_call / statistics.median(took))
            measured[name].faults.append((_faults() - faults) / len(took))
    return measured


def ratio(ours: Measured, theirs: Measured) -> float:
    """The median of the ratios per round."""
    return statistics.median(a / b for a, b in zip(ours.rates, theirs.rates, strict=True))


@dataclass
class Row:
    """One line of the results. `bar` is the target ratio (or bound), set before the measurement."""

    what: str
    shoal: float
    best_peer: float | None = None
    peer: str = ""
    ratio: float | None = None
    bar: str = ""
    holds: bool | None = None
    others: dict[str, float] = field(default_factory=dict)
    faults: dict[str, float] = field(default_factory=dict)


def compared(
    what: str,
    measured: Mapping[str, Measured],
    *,
    ours: str = "shoal",
    peers: tuple[str, ...] | None = None,
    at_least: float | None = None,
) -> Row:
    """Shoal against the fastest peer, with all rates. `at_least` is the bar for the ratio."""
    shoal = measured[ours]
    candidates = [name for name in (peers if peers is not None else measured) if name != ours and name in measured]
    others = {name: one.rate for name, one in measured.items() if name != ours}
    faults = {name: one.faults_per_call for name, one in measured.items()}
    if not candidates:
        return Row(what, shoal.rate, others=others, faults=faults)
    best = max(candidates, key=lambda name: measured[name].rate)
    value = ratio(shoal, measured[best])
    holds = None if at_least is None else value >= at_least
    bar = "" if at_least is None else f">= {at_least:g}x"
    return Row(what, shoal.rate, measured[best].rate, best, value, bar, holds, others, faults)


def bounded(what: str, value: float, *, at_most: float) -> Row:
    """One of Shoal's figures against an upper bound."""
    return Row(what, value, bar=f"<= {at_most:g}", holds=value <= at_most)


def _run(*command: str) -> str:
    try:
        here = Path(__file__).parent
        return subprocess.run(command, capture_output=True, text=True, cwd=here, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def described(packages: tuple[str, ...]) -> dict[str, Any]:
    """Machine, commit and versions, which every figure depends on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory / 2**30, 1),
            "system": platform.platform(),
            "load": os.getloadavg(),
        },
        "commit": _run("git", "rev-parse", "HEAD") or "none",
        "uncommitted_changes": bool(_run("git", "status", "--porcelain")),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def report(name: str, rows: list[Row], packages: tuple[str, ...], settings: Mapping[str, Any]) -> bool:
    """Prints the table, writes `results/<name>.json` and returns whether every bar holds."""
    table = Table(title=f"{name}: Shoal and its peers, interleaved; medians", title_justify="left")
    for heading, side in (
        ("what", "left"),
        ("Shoal", "right"),
        ("best peer", "right"),
        ("", "left"),
        ("ratio", "right"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for heading in ("bar", "holds", "others (page faults per call)"):
        table.add_column(heading)
    for row in rows:
        verdict = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: ""}[row.holds]
        others = ", ".join(
            f"{other} {_number(rate)}" + (f" ({row.faults[other]:,.0f})" if row.faults.get(other, 0) >= 1 else "")
            for other, rate in row.others.items()
        )
        value = f"{row.ratio:.2f}x" if row.ratio is not None else ""
        table.add_row(row.what, _number(row.shoal), _number(row.best_peer), row.peer, value, row.bar, verdict, others)
    console.print(table)
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = {**described(packages), "settings": dict(settings), "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    failed = [row.what for row in rows if row.holds is False]
    console.print(f"{RESULTS / f'{name}.json'} written.")
    open_bars = any(row.bar and row.holds is None for row in rows)
    held = "No bar that could be judged fails." if open_bars else "[green]Every bar holds.[/]"
    console.print(f"[bold red]Bars that do not hold: {'; '.join(failed)}[/]" if failed else held)
    return not failed
