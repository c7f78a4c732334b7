"""Output and options that several commands share."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.loops.settings import RunSettings
    from shoal.runtime.looking_on import Answer, Ask
    from shoal.runtime.run_folder import RunFolder, Summary

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", show_default=False, help="A run's folder, such as runs/latest.")
]

Address = Annotated[str | None, typer.Option("--address", metavar="HOST:PORT", help="A running Ray cluster, or auto.")]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; print the run's folder only.")]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Use what a run folder from somebody else names: modules to import, addresses, folders."
    ),
]


WIDTH = 160
"""Columns of output that is not a terminal: a file or a pipe can hold whole rows."""


def wide_console() -> Console:
    """The terminal, or something as wide as a table."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def relative(path: Path) -> str:
    """A path inside the working folder relative to it; another path unchanged."""
    inside = os.path.relpath(path)
    return str(path) if inside.startswith("..") else inside


@contextmanager
def nothing_begun() -> Iterator[None]:
    """Handles Ctrl-C while modules are loaded and settings are checked, before there is a run to stop."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped before the run began.", err=True)
        raise typer.Exit from None


def duration(seconds: float) -> str:
    """`59.9 s`, `2 min 05 s` or `3 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {int(seconds % 60):02d} s"


def question() -> Ask | None:
    """Asks what a Ctrl-C means for a run on another node; None where nobody can answer."""
    return _ask if sys.stdin.isatty() and sys.stdout.isatty() else None


def _ask() -> Answer:
    answers: dict[str, Answer] = {"s": "stop", "d": "detach", "w": "watch"}
    while True:
        try:
            typed = input("\nStop the run, detach (it goes on), or go on watching? [s/d/w] ").strip().lower()
        except EOFError:  # the terminal is gone
            return "detach"
        if typed[:1] in answers:
            return answers[typed[:1]]


def conclude(settings: RunSettings, folder: RunFolder, summary: Summary | None, *, quiet: bool = False) -> None:
    """Prints how a run ended, or that it goes on without this terminal.

    Raises:
        typer.Exit: it failed.
    """
    # The run has ended: a Ctrl-C now, or while the interpreter shuts down, must not turn it into a failure.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = relative(folder.path)
    if quiet:
        typer.echo(run)
    elif summary is None:
        name = shlex.quote(run)
        typer.echo(f"The run goes on. `shoal attach {name}` looks on again, `shoal stop {name}` stops it.")
    else:
        print_outcome(settings, folder, summary)
    if summary is not None and summary.status == "failed":
        raise typer.Exit(1)


def print_outcome(settings: RunSettings, folder: RunFolder, summary: Summary) -> None:
    """Prints the result of a training run, and commands to try next."""
    from shoal.runtime.progress import number  # here: --help loads no runtime

    evaluated = f"{number(summary.eval_return_mean)} ± {number(summary.eval_return_std)}"
    goal = f" (goal {settings.stop.mean_return:g})" if settings.stop.mean_return is not None else ""
    rate = f" at {summary.steps_per_second:,.0f} a second" if math.isfinite(summary.steps_per_second) else ""
    rows = {
        "evaluation": (evaluated if math.isfinite(summary.eval_return_mean) else "none yet") + goal,
        "steps": f"{summary.env_steps:,}{rate}",
        "updates": f"{summary.updates:,}",
        "time": duration(summary.wall_seconds),
        "run": relative(folder.path),
    }
    typer.echo(f"\n{summary.status.capitalize()}: {settings.algo} on {settings.env.id}")
    for name, text in rows.items():
        typer.echo(f"  {name:<11} {text}")
    if summary.error:
        typer.echo(f"  {'error':<11} {summary.error}")
    for text in summary.health:
        typer.echo(f"\n{text}")
    if not summary.updates:
        least = settings.replay.min_size
        lacked = f"replay.min_size = {least} steps were" if summary.env_steps < least else "a first batch was"
        typer.echo(f"\nNothing was learned: it ended before {lacked} there.")
    typer.echo("\nNext:")
    for command in next_commands(settings, folder, summary):
        typer.echo(f"  {command}")


def next_commands(settings: RunSettings, folder: RunFolder, summary: Summary) -> list[str]:
    """Commands to try after a run."""
    run = shlex.quote(relative(folder.path))
    commands = []
    if summary.updates:
        commands.append(f"shoal eval {run}")
    commands.append(f"tensorboard --logdir {run}/tensorboard")
    steps = settings.stop.steps
    if steps is not None and summary.env_steps >= steps and summary.status != "solved":
        commands.append(f"shoal resume {run} --steps {2 * steps}")
    elif summary.status != "solved":
        commands.append(f"shoal resume {run}")
    return commands
