"""`shoal` itself: help, versions, errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Shoal
from typer.main import get_command

import shoal
from shoal.cli import app, main
from shoal.errors import ConfigError, UnknownName

HEAVY = {"torch", "ray", "gymnasium", "numba", "numpy", "pydantic", "yaml"}
COMMANDS = (
    "train",
    "resume",
    "attach",
    "stop",
    "nodes",
    "eval",
    "share",
    "compare",
    "algorithms",
    "scenarios",
    "config",
    "clean",
)


def _environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(shoal.__file__).parents[1])} | changes


def test_help_loads_nothing_heavy() -> None:
    code = f"""
import sys
from shoal.cli import main
try:
    main(["--help"])
except SystemExit as ended:
    assert not ended.code
found = {HEAVY!r} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment(), stdout=subprocess.DEVNULL)


def test_python_m_shoal_is_the_command_line() -> None:
    asked = [sys.executable, "-m", "shoal", "train", "CartPole-v1", "seed=-1"]
    done = subprocess.run(asked, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "Error: seed = -1 cannot be used: it must be a whole number of at least 0.\n"


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_every_help(run_shoal: Shoal, command: tuple[str, ...], option: str) -> None:
    result = run_shoal(*command, option)
    assert result.code == 0 and result.err == ""
    assert "shoal" in result.out
    assert "Examples:" in result.out or not command


def test_every_option_and_argument_has_a_help_text() -> None:
    tree: Any = get_command(app)
    assert set(tree.commands) == set(COMMANDS)
    for name, command in tree.commands.items():
        assert command.get_short_help_str(limit=60).endswith("."), name
        for parameter in command.params:
            assert parameter.help, f"{name}: {parameter.name}"


def test_version(run_shoal: Shoal) -> None:
    assert run_shoal("--version").out == f"shoal {shoal.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [("tarin",), ("train", "CartPole-v1", "--sead", "1"), ("eval",), ("eval", "x", "-n", "0")]
)
def test_usage_errors(run_shoal: Shoal, arguments: tuple[str, ...]) -> None:
    result = run_shoal(*arguments)
    assert result.code == 2 and "Traceback" not in result.err


def test_no_arguments_shows_help(run_shoal: Shoal) -> None:
    result = run_shoal()
    assert "Commands:" in result.out + result.err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(ConfigError):
        main(["train", "CartPole-v1", "seed=-1"])
    with pytest.raises(UnknownName):
        main(["config", "nothing"])
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    with pytest.raises(SystemExit):
        main(["train", "CartPole-v1", "seed=-1"])


def test_what_the_operating_system_refuses_is_a_sentence(run_shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "x" * 300
    result = run_shoal("train", f"{name}.yaml")
    assert result.code == 1 and result.out == ""
    assert result.err == f"Error: {name}.yaml: File name too long. Choose a folder with a shorter path.\n"
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(OSError, match="too long"):
        main(["train", f"{name}.yaml"])
