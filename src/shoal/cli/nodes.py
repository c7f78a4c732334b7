"""`shoal nodes`: who is where in a run on several machines, and how the ways between them are doing."""

from __future__ import annotations

import time
from typing import Any

import typer

from shoal.cli.output import RunPath, duration

_COLUMNS = ("where", "node", "roles", "rows/s", "MB/s", "behind", "lag", "lost", "calls/s", "couriers", "moves")


def nodes(run: RunPath) -> None:
    """Show where the roles of a run are, and how the ways between its nodes are doing.

    "behind" are rows that the learner's node does not have yet, "lag" is the longest time between two parcels, "lost"
    are rows that were overwritten before they could be sent. "couriers" counts those that were started again, "moves"
    how often an outpost lost its node.

    \b
    Examples:
      shoal nodes runs/latest
    """
    from shoal.files import read_object
    from shoal.runtime.run_folder import RunFolder

    folder = RunFolder.open(run)
    found = read_object(folder.path / "nodes.json")
    sites = found.get("sites")
    if not isinstance(sites, list):
        typer.echo("This run is on one machine. `shoal train … --address auto` uses the nodes of a Ray cluster.")
        return
    table = [_COLUMNS, *(_row(site) for site in sites if isinstance(site, dict))]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    for row in table:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    written, owner = found.get("written"), folder.owner()
    age = f"{duration(max(0.0, time.time() - written))} ago" if isinstance(written, int | float) else "some time ago"
    ended = "the run has ended, or goes on elsewhere: `shoal attach`"
    typer.echo(f"\nAs of {age}; {ended if owner is None else f'the run is going on ({owner})'}.")


def _row(site: dict[str, Any]) -> tuple[str, ...]:
    outpost = site.get("outpost")
    where = "home" if outpost is None else f"outpost {outpost}"
    node = f"{site.get('address')} ({str(site.get('node'))[:6]})"
    link = [
        _number(site, name, form)
        for name, form in (
            ("rows_per_second", ",.0f"),
            ("mb_per_second", ",.1f"),
            ("rows_behind", ",.0f"),
            ("lag_seconds", ".2f"),
            ("rows_lost", ",.0f"),
            ("calls_per_second", ",.1f"),
            ("courier_restarts", ".0f"),
        )
    ]
    return where, node, _names(site.get("roles")), *link, "" if outpost is None else _number(site, "moves", ".0f")


def _number(site: dict[str, Any], name: str, form: str) -> str:
    value = site.get(name)
    return format(value, form) if isinstance(value, int | float) else ""


def _names(roles: Any) -> str:
    """`learner, evaluator, actors 0 2`."""
    names = [str(role) for role in roles] if isinstance(roles, list) else []
    actors = [name.removeprefix("actor ") for name in names if name.startswith("actor ")]
    others = [name for name in names if not name.startswith("actor ")]
    return ", ".join([*others, *([f"actor{'s' * (len(actors) > 1)} {' '.join(actors)}"] if actors else [])])
