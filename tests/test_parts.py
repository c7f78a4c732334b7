"""The public parts are there, and so are their documents."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from shoal import parts

ROOT = Path(__file__).resolve().parents[1]


def test_every_part_is_documented() -> None:
    page = (ROOT / "docs" / "how-to" / "own-loop.md").read_text(encoding="utf-8")
    public = {name for name in vars(parts) if not name.startswith("_")} - {"annotations"}
    assert len(public) > 30 and not [name for name in public if f"`{name}" not in page and f"{name}(" not in page]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/own_loop_*.py")), ids=lambda path: path.stem)
def test_own_loops_are_short(path: Path) -> None:
    """Functions of 40 lines at most, without any class."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(node, ast.ClassDef)
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 40, node.name
