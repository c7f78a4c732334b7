"""An environment's own error in one line, with the place in the user's code that it came from."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import gymnasium

_SHOAL = Path(__file__).resolve().parents[1]
_NOT_THE_USERS = (_SHOAL, Path(gymnasium.__file__).resolve().parent, Path(sysconfig.get_paths()["stdlib"]).resolve())


def explain(error: BaseException) -> str:
    """`no such size (/home/me/my_env.py:12)`: the error's text, or its line of source if it has none, and its place."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.msg} ({error.filename}:{error.lineno})"
    frame = _blamed(traceback.extract_tb(error.__traceback__))
    text = str(error).strip() or (frame.line if frame else None) or "no message"
    return f"{text} ({frame.filename}:{frame.lineno})" if frame else text


def traceback_if_asked(error: BaseException) -> str:
    """The whole traceback of an error that does not end the run, for SHOAL_DEBUG=1; else nothing."""
    if os.environ.get("SHOAL_DEBUG", "0") in ("", "0"):
        return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def close_quietly(env: Any) -> None:
    """Closes an environment that is no longer needed: an error of its `close` would be nobody's concern."""
    with contextlib.suppress(Exception, SystemExit):
        env.close()


def _blamed(frames: traceback.StackSummary) -> traceback.FrameSummary | None:
    """The user's innermost frame; without one the innermost of all, unless that is Shoal's own check."""
    for frame in reversed(frames):
        if _is_users(Path(frame.filename)):
            return frame
    return frames[-1] if frames and _SHOAL not in Path(frames[-1].filename).parents else None


def _is_users(file: Path) -> bool:
    if file.name.startswith("<") or {"site-packages", "dist-packages"} & set(file.parts):
        return False
    return not any(folder in file.resolve().parents for folder in _NOT_THE_USERS)
