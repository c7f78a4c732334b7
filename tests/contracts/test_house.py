"""House rules that a reader would otherwise have to trust: sizes, docstrings, honest docs, scenarios that load.

Each rule is a function from a text to a list of complaints, and has a text that it must refuse.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "shoal"
MAX_LINES = 350

SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SCENARIOS = sorted(PACKAGE.glob("scenarios/*.y*ml"))
FOLDERS = ("src", "docs", "examples", "benchmarks")
SHIPPED = sorted(
    [
        *(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*")),
        *ROOT.glob("*.md"),
        *(ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run", ".gitignore")),
    ]
)
SHELL = {"", "bash", "sh", "shell", "console", "text"}
TEXT = {".py", ".pyi", ".md", ".yaml", ".yml", ".toml", ".txt", ".json", ".sh", ".cfg", ""}

Rule = Callable[[str], list[str]]


def _id(value: object) -> str:
    if isinstance(value, Path):
        return value.relative_to(ROOT).as_posix()
    return getattr(value, "__name__", "text")


def _nodes(text: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(text))


# Rules for the source.


def short_enough(text: str) -> list[str]:
    """A file is read in one sitting; a second noun is a second file."""
    lines = len(text.splitlines())
    return [f"{lines} lines, {MAX_LINES} allowed: split it at its second noun"] if lines > MAX_LINES else []


def no_bare_except(text: str) -> list[str]:
    """`except:` also swallows Ctrl-C."""
    return [
        f"line {node.lineno}: bare except"
        for node in _nodes(text)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def no_print(text: str) -> list[str]:
    """Only the command line talks to the terminal."""
    return [
        f"line {node.lineno}: print"
        for node in _nodes(text)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def todos_have_dates(text: str) -> list[str]:
    """An undated to-do is never done: write `TODO(2025-01-31): ...`."""
    return [
        f"line {number}: to-do without a date"
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME)\b", line) and not re.search(r"\b(TODO|FIXME)\b.*\d{4}-\d{2}-\d{2}", line)
    ]


def has_docstring(text: str) -> list[str]:
    """A module says what it is."""
    return [] if ast.get_docstring(ast.parse(text)) else ["no module docstring"]


SOURCE_RULES: tuple[Rule, ...] = (short_enough, no_bare_except, no_print, todos_have_dates, has_docstring)


def breaches(rule: Rule, paths: list[Path]) -> str:
    """A line for each file that the rule complains about."""
    found = ((path, rule(path.read_text(encoding="utf-8"))) for path in paths)
    return "\n".join(f"{_id(path)}: {'; '.join(complaints)}" for path, complaints in found if complaints)


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=_id)
def test_source_rule_holds(rule: Rule) -> None:
    paths = [path for path in SOURCES if rule is not no_print or path.relative_to(PACKAGE).parts[0] != "cli"]
    assert paths
    assert not (found := breaches(rule, paths)), found


# Rules for everything that is shipped.


def no_machine_paths(text: str) -> list[str]:
    """What works on one machine only does not belong here."""
    return [f"names the path {found}" for found in re.findall(r"(?<![\w.~})-])/(?:work|root)\b(?:/\S*)?", text)]


def no_package_hosts(text: str) -> list[str]:
    """Where packages come from is the reader's choice; pip is already set up for it."""
    hosts = r"\b[\w.-]*py(?:pi|thonhosted)\b[\w.-]*\.[a-z]{2,}|\b[\w-]+://\S+/(?:simple|whl)\b|--(?:extra-)?index-url"
    return [f"names the package index {found}" for found in re.findall(hosts, text, flags=re.IGNORECASE)]


SHIPPED_RULES: tuple[Rule, ...] = (no_machine_paths, no_package_hosts)


@pytest.mark.parametrize("rule", SHIPPED_RULES, ids=_id)
def test_shipped_text_rule_holds(rule: Rule) -> None:
    texts = [path for path in SHIPPED if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts]
    assert texts
    assert not (found := breaches(rule, texts)), found


# The commands in the docs.


def _shell_lines(page: str) -> Iterator[str]:
    """Lines of the fenced shell blocks, continued lines joined, prompts dropped."""
    for block in re.finditer(r"^ *(`{3,})(\w*)[^\n]*\n(.*?)^ *\1 *$", page, flags=re.MULTILINE | re.DOTALL):
        if block[2] in SHELL:
            for line in re.sub(r"\\\n\s*", " ", block[3]).splitlines():
                yield re.sub(r"^\s*(?:[$>%] )?", "", line)


def commands(page: str) -> list[list[str]]:
    """Every `shoal ...` command of a page's shell blocks, as its arguments after the word `shoal`."""
    found = []
    for line in _shell_lines(page):
        if "shoal" not in line:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";|&()<>"):
                words.append(word)
                continue
            while words and re.fullmatch(r"\w+=.*", words[0]):  # VAR=value before the command
                words.pop(0)
            if words and words[0].rsplit("/", 1)[-1] == "shoal":
                found.append(words[1:])
            words = []
    return found


def unknown_words(arguments: list[str], command: Any) -> list[str]:
    """Subcommands and options that the click command tree under `command` does not have."""
    takes_value: dict[str, bool] = {}

    def learn(group: Any) -> None:
        for parameter in group.params:
            for option in [*getattr(parameter, "opts", ()), *getattr(parameter, "secondary_opts", ())]:
                takes_value[option] = not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))

    takes_value["--help"] = False
    learn(command)
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        if re.match(r"--?[A-Za-z]", word):
            option, given, _ = word.partition("=")
            if option not in takes_value:
                return [f"unknown option {option}"]
            if takes_value[option] and not given:
                next(words, None)
        elif getattr(command, "commands", None):
            if word not in command.commands:
                return [f"unknown subcommand {word!r}"]
            command = command.commands[word]
            takes_value.clear()
            takes_value["--help"] = False
            learn(command)
    return []


@pytest.fixture(scope="module")
def shoal_command() -> Any:
    """The click tree behind `shoal`."""
    from typer.main import get_command

    from shoal.cli import app

    return get_command(app)


def test_commands_in_docs_exist(shoal_command: Any) -> None:
    def unknown_commands(page: str) -> list[str]:
        asked = ((arguments, unknown_words(arguments, shoal_command)) for arguments in commands(page))
        return [f"shoal {shlex.join(arguments)}: {', '.join(unknown)}" for arguments, unknown in asked if unknown]

    assert any(commands(page.read_text(encoding="utf-8")) for page in PAGES)
    assert not (found := breaches(unknown_commands, PAGES)), found


def test_commands_are_found_in_a_page() -> None:
    page = """Text with `shoal inline`, which is not in a block.

```bash
$ shoal train a.yaml \\
    --seed 1 learner.batch_size=256   # a comment
X=1 .venv/bin/shoal eval runs/latest && make test | shoal compare
```

```python
shoal.train("shoal bogus")
```

- in a list:

  ```
  shoal algorithms
  ```
"""
    assert commands(page) == [
        ["train", "a.yaml", "--seed", "1", "learner.batch_size=256"],
        ["eval", "runs/latest"],
        ["compare"],
        ["algorithms"],
    ]


def _toy_command() -> Any:
    import typer

    app = typer.Typer()
    group = typer.Typer()

    @app.command()
    def train(scenario: str, seed: int = 0, wandb: bool = False) -> None: ...

    @group.command()
    def show(wide: bool = False) -> None: ...

    app.add_typer(group, name="config")
    return typer.main.get_command(app)


@pytest.mark.parametrize(
    "line",
    [
        "train a.yaml --seed 1 --wandb x=1",
        "train a.yaml --seed=-1 --no-wandb",
        "--help",
        "train --help",
        "config show --wide",
        "train x -- --odd",
    ],
)
def test_known_command_passes(line: str) -> None:
    assert unknown_words(line.split(), _toy_command()) == []


@pytest.mark.parametrize(
    "line", ["tarin a.yaml", "train a.yaml --sead 1", "--seed 1", "config shwo", "config show --seed 1"]
)
def test_unknown_command_is_refused(line: str) -> None:
    assert unknown_words(line.split(), _toy_command())


# Start-up.


def test_roles_that_only_write_start_without_numba() -> None:
    """Importing it takes a second, in every actor."""
    code = "import sys, shoal.config.load, shoal.loops.assembly; print('numba' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"


# Scenarios.


def _load_scenario() -> Callable[[Path], Any]:
    from shoal.config.load import load_scenario

    return load_scenario


@pytest.mark.parametrize("path", SCENARIOS, ids=_id)
def test_scenario_loads(path: Path) -> None:
    from shoal.config.sb3_scenario import is_sb3_scenario, load_sb3_scenario

    load = load_sb3_scenario if is_sb3_scenario(path) else _load_scenario()
    assert load(path) is not None


def test_scenario_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    load_scenario = _load_scenario()
    from shoal.errors import ConfigError

    assert SCENARIOS, "src/shoal/scenarios is empty"
    bad = tmp_path / "bad.yaml"
    bad.write_text(SCENARIOS[0].read_text(encoding="utf-8") + "\nno_such_key_in_shoal: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no_such_key_in_shoal"):
        load_scenario(bad)


# Every rule can fail.

REFUSED: list[tuple[Rule, str]] = [
    (short_enough, "x = 1\n" * (MAX_LINES + 1)),
    (no_bare_except, "try:\n    f()\nexcept:\n    pass"),
    (no_print, "def f():\n    print('x')"),
    (todos_have_dates, "# TODO: later"),
    (todos_have_dates, "# 2025-01-31 TODO(me): later"),
    (todos_have_dates, "x = 1  # FIXME soon"),
    (has_docstring, "# only a comment\nx = 1"),
    (no_machine_paths, "look in /root/x"),
    (no_machine_paths, "`/work`"),
    (no_machine_paths, "path=/work/main/runs"),
    (no_package_hosts, "see https://py" + "pi.org/project/x"),
    (no_package_hosts, "pip install --index-url x torch"),
    (no_package_hosts, "https://example.org/whl/cpu"),
    (no_package_hosts, "https://example.org/simple/"),
]
ACCEPTED: list[tuple[Rule, str]] = [
    (short_enough, "x = 1\n" * MAX_LINES),
    (no_bare_except, "try:\n    f()\nexcept Exception:\n    pass"),
    (no_print, "console.print('x')\nfootprint()"),
    (todos_have_dates, "# TODO(2025-01-31): later"),
    (has_docstring, '"""What it is."""'),
    (no_machine_paths, "https://example.org/work/x, tree/root, /workers, framework/root, ~/work"),
    (no_package_hosts, "pip install torch; a simple, copyist's piece; https://example.org/simplest"),
]


@pytest.mark.parametrize(("rule", "text"), REFUSED, ids=_id)
def test_rule_can_fail(rule: Rule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "text"), ACCEPTED, ids=_id)
def test_rule_lets_good_text_pass(rule: Rule, text: str) -> None:
    assert rule(text) == []
