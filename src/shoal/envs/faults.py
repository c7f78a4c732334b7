"""An environment's own error in one line, with the place in the user's code that raised it."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import gymnasium

_SHOAL = Path(__file__).resolve().parents[1]
_GYMNASIUM = Path(gymnasium.__file__).resolve().parent
_STDLIB = Path(sysconfig.get_paths()["stdlib"]).resolve()
_NOBODYS = 2


def explain(error: BaseException) -> str:
    """`no such size (/home/me/my_env.py:12)`: the error's text, or its line of source if it has none, and its place."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.msg} ({error.filename}:{error.lineno})"
    frame = _blamed(traceback.extract_tb(error.__traceback__))
    text = " ".join(str(error).split()) or (frame.line if frame else None) or "no message"
    return f"{text} ({frame.filename}:{frame.lineno})" if frame else text


def traceback_if_asked(error: BaseException) -> str:
    """The whole traceback of an error that does not end the run, for SHOAL_DEBUG=1; else nothing."""
    if os.environ.get("SHOAL_DEBUG", "0") in ("", "0"):
        return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def close_quietly(env: Any) -> None:
    """Closes an environment that is no longer needed and ignores errors of its `close`."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def _blamed(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """The innermost frame in the user's own files, else in an installed package, else of all. None where Shoal's own
    check raised.
    """
    if not frames or _SHOAL in Path(frames[-1].filename).resolve().parents:
        inside: list[traceback.FrameSummary] = [frame for frame in frames if _distance(frame) < _NOBODYS]
    else:
        inside = list(frames)
    return min(reversed(inside), key=_distance, default=None)  # of equals the first, which is the innermost


def _distance(frame: traceback.FrameSummary) -> int:
    """0 for a frame in the user's own files, 1 in an installed package, 2 elsewhere."""
    file = Path(frame.filename)
    folders = file.resolve().parents
    if file.name.startswith("<") or _SHOAL in folders or _GYMNASIUM in folders:
        return _NOBODYS
    if {"site-packages", "dist-packages"} & set(file.parts):
        return 1
    return _NOBODYS if _STDLIB in folders else 0
