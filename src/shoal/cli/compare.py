"""`shoal compare`: compares groups of runs in numbers, a picture and a page."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.output import WIDTH, relative, wide_console

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.analysis.results import Comparison


def compare(
    groups: Annotated[
        list[Path],
        typer.Argument(
            metavar="GROUP",
            show_default=False,
            help="Folders with runs in them, at any depth; the first is the baseline.",
        ),
    ],
    metric: Annotated[
        str, typer.Option("--metric", metavar="auto|eval|rollout", help="Which return; auto: eval if every run has it.")
    ] = "auto",
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="R", help="Also say when runs reached this return.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the bootstrap.")] = 0,
    resamples: Annotated[
        int, typer.Option("--resamples", min=100, max=100_000, metavar="N", help="Resamples of the bootstrap.")
    ] = 2_000,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Where the report goes.  [default: compare_<time>, beside the first group]"
        ),
    ] = None,
) -> None:
    """Compare groups of runs.

    A group is a folder; every folder in it that has a metrics.jsonl is a run. Runs below different folders of a group
    count as different launches. Runs of one launch may have learned from each other, so intervals are computed over
    launches where there are several. Groups are compared with the first one: did it help, and how certain is that?

    Prints a table and writes comparison.html (one page with everything, definitions included), curves.png and
    comparison.json.

    \b
    Examples:
      shoal compare runs/alone runs/shared
      shoal compare runs/alone runs/shared runs/newest --threshold 475
      shoal compare runs/alone runs/shared --metric rollout --out report
    """
    from shoal.analysis.comparison import compare as compare_groups
    from shoal.analysis.page import write_report
    from shoal.analysis.runs import read_groups

    found = read_groups(groups)
    comparison = compare_groups(found, metric, threshold, seed, resamples)
    command = _command(groups, metric, threshold, seed, resamples)
    report = write_report(comparison, out or _beside(found[0].path, datetime.now()), command)
    _print(comparison)
    typer.echo("")
    for name, path in report._asdict().items():
        typer.echo(f"{name:<8} {relative(path)}")


def _command(groups: list[Path], metric: str, threshold: float | None, seed: int, resamples: int) -> str:
    """The command that reproduces the numbers."""
    options = {"--metric": metric, "--seed": seed, "--resamples": resamples}
    words = ["shoal", "compare", *map(str, groups)]
    if threshold is not None:
        words.append(f"--threshold={threshold!r}")
    return shlex.join([*words, *(f"{name}={value}" for name, value in options.items())])


def _beside(group: Path, now: datetime) -> Path:
    """A path beside the group that does not exist yet."""
    path, number = group.parent / (name := f"compare_{now:%Y%m%d-%H%M%S}"), 1
    while path.exists():
        number += 1
        path = group.parent / f"{name}-{number}"
    return path


def _print(comparison: Comparison) -> None:
    from shoal.analysis.cautions import verdicts, warnings
    from shoal.analysis.tables import groups_table, threshold_table

    console = wide_console()
    for table in (groups_table(comparison), threshold_table(comparison)):
        if table is not None:
            _print_table(console, table.title, table.columns, table.rows)
    for line in verdicts(comparison):
        typer.echo(line)
    for line in warnings(comparison):
        typer.echo(f"Note: {line}")


def _print_table(console: Console, title: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max(len(row[0]) for row in rows)
    for number, name in enumerate(columns):
        width = min(longest, 24) if number == 0 else None
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", min_width=width)
    for row in rows:
        if console.width < WIDTH:
            row = tuple(text.replace(" [", "\n[") for text in row)  # intervals below their numbers
        table.add_row(*map(Text, row))  # names are not markup
    console.print(table)
