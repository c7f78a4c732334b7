"""The size budget: how many lines of code the package may have. Every line must be read, tested and maintained."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "shoal"
BUDGET = 23_992
"""Code lines of src/shoal, as `code_lines` counts them. The aim is 13,500: lower this number with what you remove."""

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines of a file without blank ones, comments and docstrings (any string that is a statement by itself)."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_the_package_keeps_to_its_budget() -> None:
    sizes = {path: code_lines(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    folders: dict[str, int] = {}
    for path, size in sizes.items():
        folder = path.relative_to(PACKAGE).parts[0]
        folders[folder] = folders.get(folder, 0) + size
    largest = ", ".join(f"{name} {size:,}" for name, size in sorted(folders.items(), key=lambda item: -item[1])[:6])
    total = sum(sizes.values())
    assert total <= BUDGET, (
        f"src/shoal has {total:,} code lines, {BUDGET:,} are allowed ({largest}). Remove what is written twice, has "
        "only one caller or is not used. A feature worth its lines raises BUDGET in its own change, and says why."
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""What it is."""\n\nx = 1\n', 1),
        ("# why\nx = 1  # and why not\n\n", 1),
        ("x = f(\n    # why\n    1,\n)\n", 3),
        ('class A:\n    """A.\n\n    More.\n    """\n\n    x: int = 1\n    """Of A."""\n', 2),
        ('x = """one\n\ntwo"""\n', 3),
        ("", 0),
    ],
)
def test_code_lines(text: str, lines: int) -> None:
    assert code_lines(text) == lines
