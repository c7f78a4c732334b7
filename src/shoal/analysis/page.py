"""The report: a picture, a JSON file, and one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import html
import json
import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from shoal.analysis.cautions import verdicts, warnings
from shoal.analysis.figure import draw
from shoal.analysis.results import Comparison
from shoal.analysis.tables import TextTable, as_json, definitions, groups_table, runs_table, threshold_table
from shoal.errors import ConfigError

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #202124; background: #fff; max-width: 1180px; margin: 2em auto;
  padding: 0 1.2em; }
h1 { font-size: 1.6em; margin-bottom: .2em; }
h2 { font-size: 1.15em; margin-top: 2em; }
code { font: 13px ui-monospace, monospace; background: #f1f3f4; padding: .15em .35em; border-radius: 4px; }
p.command { overflow-x: auto; white-space: nowrap; }
img { width: 100%; height: auto; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: .35em .8em; border-bottom: 1px solid #e4e6e8; text-align: right; white-space: nowrap; }
th { color: #5f6368; font-weight: 600; border-bottom: 2px solid #bdc1c6; }
th:first-child, td:first-child, td:last-child.path, th.path { text-align: left; }
ul.verdict { padding-left: 1.2em; font-size: 1.08em; }
ul.warning { background: #fef7e0; border-left: 4px solid #E69F00; padding: .7em 1em .7em 2em; }
dt { font-weight: 600; margin-top: .5em; }
dd { margin-left: 1.5em; }
"""


class Report(NamedTuple):
    """The files of a report."""

    page: Path
    picture: Path
    data: Path


def write_report(comparison: Comparison, folder: Path, command: str) -> Report:
    """Writes `comparison.html`, `curves.png` and `comparison.json` into a folder, which is made if need be."""
    report = Report(folder / "comparison.html", folder / "curves.png", folder / "comparison.json")
    picture = draw(comparison)
    said, cautions = verdicts(comparison), warnings(comparison)
    data = json.dumps({"command": command, **as_json(comparison, said, cautions)}, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report.picture.write_bytes(picture)
        report.data.write_text(data + "\n", encoding="utf-8")
        page = _page(comparison, picture, command, folder.resolve())
        report.page.write_bytes(page.encode("utf-8", "replace"))  # a path may have letters that are only bytes
    except OSError as error:
        raise ConfigError(f"Cannot write into {folder}: {error.strerror}. Choose another --out.") from error
    return report


def _page(comparison: Comparison, picture: bytes, command: str, folder: Path) -> str:
    first, *others = (html.escape(one.group.name) for one in comparison.groups)
    title = f"{', '.join(others)} against {first}" if others else first
    image = base64.b64encode(picture).decode("ascii")
    cautions = warnings(comparison)
    threshold = threshold_table(comparison)
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="command"><code>{html.escape(command)}</code></p>',
        _list("verdict", verdicts(comparison)),
        f'<img alt="Learning curves over steps and over seconds" src="data:image/png;base64,{image}">',
        _table(groups_table(comparison)),
        _table(threshold) if threshold else "",
        f"<h2>Mind</h2>{_list('warning', cautions)}" if cautions else "",
        "<h2>What the numbers are</h2><dl>",
        *(f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in definitions(comparison)),
        "</dl>",
        _table(runs_table(comparison, folder), link=True),
    ]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _list(kind: str, lines: list[str]) -> str:
    return f'<ul class="{kind}">' + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _table(table: TextTable, link: bool = False) -> str:
    """A table; with `link`, the last column holds paths."""

    def cell(text: str, last: bool) -> str:
        if link and last:
            return f'<td class="path"><a href="{html.escape(quote(os.fsencode(text)))}/">{html.escape(text)}</a></td>'
        return f"<td>{html.escape(text)}</td>"

    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = (
        "<tr>" + "".join(cell(text, number == len(row) - 1) for number, text in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{html.escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        "<tbody>" + "\n".join(rows) + "</tbody></table></div>"
    )
