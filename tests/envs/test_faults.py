"""Which line of whose code an error is put down to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from shoal.envs.faults import explain, traceback_if_asked


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except (Exception, SystemExit) as error:
        return error
    raise AssertionError("it did not raise")


def compiled(path: Path, source: str) -> Callable[[], object]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return lambda: exec(compile(source, str(path), "exec"), {"np": np})


def test_the_users_innermost_line_is_named_though_a_library_raised(tmp_path: Path) -> None:
    call = compiled(tmp_path / "mine.py", "def inner():\n    np.stack([])\n\n\ninner()\n")
    assert explain(caught(call)) == f"need at least one array to stack ({tmp_path / 'mine.py'}:2)"


def test_an_error_without_text_shows_its_line(tmp_path: Path) -> None:
    call = compiled(tmp_path / "mine.py", "size = 0\nassert size > 0\n")
    assert explain(caught(call)) == f"assert size > 0 ({tmp_path / 'mine.py'}:2)"


def test_without_a_line_of_the_users_the_innermost_counts(tmp_path: Path) -> None:
    # Called straight from here, and this file is a user's: so only what lies below is looked at.
    error = caught(compiled(tmp_path / "site-packages" / "theirs.py", "raise ValueError('no')\n"))
    assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # from theirs.py on
    assert explain(error) == f"no ({tmp_path / 'site-packages' / 'theirs.py'}:1)"
    assert explain(ValueError("no")) == "no" and explain(ValueError()) == "no message"


def test_an_installed_environment_is_named_though_python_raised(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "theirs.py"
    error = caught(compiled(file, "import json\njson.loads('{')\n"))
    assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # from theirs.py on: this file is a user's
    assert explain(error).endswith(f"({file}:2)")


def test_an_error_of_several_lines_is_one(tmp_path: Path) -> None:
    call = compiled(tmp_path / "mine.py", "raise ValueError('first\\n  second')\n")
    assert explain(caught(call)) == f"first second ({tmp_path / 'mine.py'}:1)"


def test_gymnasiums_own_lines_are_not_the_users() -> None:
    said = explain(caught(lambda: gymnasium.make("CartPole-v1").step(0)))
    assert f"({__file__}:" in said


def test_a_file_that_cannot_be_parsed(tmp_path: Path) -> None:
    call = compiled(tmp_path / "mine.py", "x = 1\ny = (\n")
    assert explain(caught(call)) == f"'(' was never closed ({tmp_path / 'mine.py'}:2)"


def test_the_traceback_comes_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = caught(compiled(tmp_path / "mine.py", "raise ValueError('no')\n"))
    monkeypatch.delenv("SHOAL_DEBUG", raising=False)
    assert traceback_if_asked(error) == ""
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    assert traceback_if_asked(error).startswith("\nTraceback") and "mine.py" in traceback_if_asked(error)
