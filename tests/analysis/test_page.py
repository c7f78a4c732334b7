"""The report: three files, and a page that needs nothing but itself."""

from __future__ import annotations

import base64
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.analysis.fakes import write_group, write_run

from shoal.analysis import compare, read_groups, write_report
from shoal.errors import ConfigError


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href"):
                self.found.setdefault(name, []).append(value or "")
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_of_its_own(tmp_path: Path) -> None:
    base = write_group(tmp_path / "base & <b>", [[[0, 1], [1, 2]]] * 2)
    new = write_run(tmp_path / "new #1" / "run", [0, 1], tail="{")
    comparison = compare(read_groups([base, new.parent]), threshold=1, resamples=100)
    report = write_report(comparison, tmp_path / "some" / "where", command="shoal compare 'a<b'")
    page = report.page.read_text()
    links = _Links()
    links.feed(page)
    assert not links.open  # every tag is closed, in order
    (image,) = links.found["src"]
    assert base64.b64decode(image.removeprefix("data:image/png;base64,")) == report.picture.read_bytes()
    assert "http" not in re.sub(r"base64,[^\"]*", "", page) and "<script" not in page
    assert links.found["href"][-1] == "../../new%20%231/run/"
    for text in (
        "<h1>new #1 against base &amp; &lt;b&gt;</h1>",
        "shoal compare &#x27;a&lt;b&#x27;",
        "1 damaged line skipped",
        "cannot tell",
        "2 launches of 2 runs",
        "<dt>IQM</dt>",
        "not reached",
    ):
        assert text in page
    data = json.loads(report.data.read_text())
    assert data["command"] == "shoal compare 'a<b'" and data["warnings"] and data["verdicts"]


def test_paths_that_are_only_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path / os.fsdecode(b"caf\xe9") / "run", [0, 1])
    comparison = compare(read_groups([run.parent]), resamples=100)
    report = write_report(comparison, tmp_path / "report", command=f"shoal compare {run.parent}")
    links = _Links()
    links.feed(report.page.read_text(encoding="utf-8"))
    assert links.found["href"] == ["../caf%E9/run/"]
    assert json.loads(report.data.read_text())["command"] == f"shoal compare {run.parent}"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    comparison = compare(read_groups([write_run(tmp_path / "r", [1.0])]), resamples=100)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"Cannot write into .*file/deep: .* Choose another --out"):
        write_report(comparison, tmp_path / "file" / "deep", command="")
