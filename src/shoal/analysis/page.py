"""The report: a picture, a JSON file, and one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import json
import os
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from shoal.analysis.cautions import verdicts, warnings
from shoal.analysis.figure import draw
from shoal.analysis.results import Comparison
from shoal.analysis.tables import TextTable, as_json, definitions, groups_table, runs_table, threshold_table
from shoal.errors import ConfigError


class Report(NamedTuple):
    """The files of a report."""

    page: Path
    picture: Path
    data: Path


def write_report(comparison: Comparison, folder: Path, command: str) -> Report:
    """Writes `comparison.html`, `curves.png` and `comparison.json` into a folder, which is created if needed."""
    report = Report(folder / "comparison.html", folder / "curves.png", folder / "comparison.json")
    picture = draw(comparison)
    content = {"command": command, **as_json(comparison, verdicts(comparison), warnings(comparison))}
    data = json.dumps(content, indent=1, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report.picture.write_bytes(picture)
        report.data.write_text(data + "\n", encoding="utf-8")
        page = _page(comparison, picture, command, folder.resolve())
        report.page.write_bytes(page.encode("utf-8", "replace"))  # a path may have bytes that are no UTF-8
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
        f"<h2>Warnings</h2>{_list('warning', cautions)}" if cautions else "",
        "<h2>What the numbers are</h2><dl>",
        *(f"<dt>{html.escape(one)}</dt><dd>{html.escape(text)}</dd>" for one, text in definitions(comparison).items()),
        "</dl>",
        _table(runs_table(comparison, folder), link=True),
    ]
    style = resources.files("shoal.analysis").joinpath("page.css").read_text(encoding="utf-8")
    head = f'<meta charset="utf-8"><title>{title}</title><style>\n{style}</style>'
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _list(kind: str, lines: list[str]) -> str:
    return f'<ul class="{kind}">' + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _table(table: TextTable, link: bool = False) -> str:
    """A table; with `link`, the last column holds paths."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = []
    for row in table.rows:
        cells = [f"<td>{html.escape(text)}</td>" for text in row]
        if link:
            target, text = html.escape(quote(os.fsencode(row[-1]))), html.escape(row[-1])
            cells[-1] = f'<td class="path"><a href="{target}/">{text}</a></td>'
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<h2>{html.escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        "<tbody>" + "\n".join(rows) + "</tbody></table></div>"
    )
