"""The progress of a run: a live view on a terminal, plain lines anywhere else.

with Progress("CartPole-v1 · apex-dqn") as progress:
    progress.update(Snapshot(env_steps=12_000, target_steps=100_000, elapsed=3.2, steps_per_second=4100.0))
    progress.note("actor 1 died and was started again")
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_REFRESH_S = 0.25
_BAR_CELLS = 24
_UNKNOWN = "-"
_NUMBER = re.compile(r"-?0x[0-9a-fA-F]+|(?<![:\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""Except the line number in `file.py:12`, which follows a colon."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment. None or NaN: unknown, shown as a dash or left out."""

    env_steps: int
    elapsed: float
    target_steps: int | None = None
    seconds_left: float | None = None
    """Until the run's time is up; None: it has no limit, or has not begun."""
    steps_per_second: float | None = None
    updates: int = 0
    updates_per_second: float | None = None
    train_return: float | None = None
    eval_return: float | None = None
    evaluations: int = 0
    """How many there were. Plain output has a line for each: for each change of this or of `eval_return`."""
    eval_steps: int | None = None
    """Environment steps when the weights of the last one were taken."""
    stop_return: float | None = None
    loss: float | None = None
    staleness: float | None = None
    replay_rows: int | None = None
    replay_capacity: int | None = None
    restarts: int = 0
    bottleneck: str = ""
    note: str = ""
    """What it is doing, unless that is plain training: "filling the replay", "saving"."""


class Progress:
    """Shows snapshots: a view at most four times a second, or a line every `interval` seconds. Use it as a context.

    Args:
        title: first line of the live view.
        quiet: show nothing, not even notes.
        interval: seconds between plain lines.
        console: where to; standard output when None.
    """

    def __init__(
        self, title: str = "", *, quiet: bool = False, interval: float = 5.0, console: Console | None = None
    ) -> None:
        self._title = title
        self._quiet = quiet
        self._interval = interval
        self._console = Console() if console is None else console
        self._live: Live | None = None
        self._last: Snapshot | None = None
        self._printed: Snapshot | None = None
        self._next = -math.inf
        self._open = False
        self._recurring: dict[str, tuple[int, str]] = {}

    def __enter__(self) -> Progress:
        self._open = True
        console = self._console
        able = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        # With FORCE_COLOR, rich takes any file for a terminal: ask the file itself too.
        if not self._quiet and able and console.file.isatty():
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def update(self, snapshot: Snapshot) -> None:
        """Takes the newest numbers. Cheap: it shows them only when it is time to."""
        if self._quiet or not self._open:
            return
        previous, self._last = self._last, snapshot
        now = time.monotonic()
        if self._live is None and _evaluated(previous, snapshot):
            result = f"{number(snapshot.eval_return)}{_goal(snapshot)}"
            steps = snapshot.env_steps if snapshot.eval_steps is None else snapshot.eval_steps
            self.note(f"{steps:,} steps | evaluation: return {result}")
        if now < self._next:
            return
        if self._live is None:
            self.note(plain_line(snapshot))
            self._printed = snapshot
            self._next = now + self._interval
        else:
            self._draw(self._live, snapshot)
            self._next = now + _REFRESH_S

    def recurring_note(self, text: str) -> None:
        """Prints a line once, and its count at 10, 100, … times and at the end. Lines are the same if they differ only
        in numbers and addresses; line numbers in a file do count.
        """
        kind = _NUMBER.sub("#", text)
        count = self._recurring.get(kind, (0, ""))[0] + 1
        self._recurring[kind] = count, text
        if count == 1:
            self.note(text)
        elif math.log10(count).is_integer():
            self.note(_again(count, text))

    def stop(self) -> None:
        """Shows the last snapshot and frees the terminal; may be called twice."""
        if not self._open:
            return
        self._open = False
        for count, text in self._recurring.values():
            if count > 1 and not math.log10(count).is_integer():
                self.note(_again(count, text))
        if self._live is not None:
            live, self._live = self._live, None
            try:
                if self._last is not None:
                    self._draw(live, self._last)
            finally:
                with contextlib.suppress(OSError):
                    live.stop()
        elif self._last is not None and self._last is not self._printed:
            self.note(plain_line(self._last))

    def note(self, text: str) -> None:
        """Prints a line that stays: a restart, a warning, the folder of the results."""
        if self._quiet:
            return
        encoding = self._console.encoding  # a name that the terminal cannot show must not end a run
        try:
            self._console.print(Text(text.encode(encoding, "replace").decode(encoding)), soft_wrap=True)
        except OSError:
            self._quiet = True

    def _draw(self, live: Live, snapshot: Snapshot) -> None:
        try:
            live.update(_view(self._title, snapshot), refresh=True)
        except OSError:  # the terminal was closed; the run, perhaps under nohup, goes on
            self._quiet = True


def _again(count: int, text: str) -> str:
    return f"{text.partition(chr(10))[0]} … again ({count - 1:,} more)"


def plain_line(snapshot: Snapshot) -> str:
    """A snapshot as one line; what is unknown is left out."""
    target = f" of {snapshot.target_steps:,} ({_percent(snapshot)})" if snapshot.target_steps else ""
    numbers = {
        "{} steps/s": _rate(snapshot.steps_per_second),
        "{} updates/s": _rate(snapshot.updates_per_second),
        "return {}": number(snapshot.train_return),
        "eval {}": _evaluation(snapshot),
        "loss {}": number(snapshot.loss),
        "staleness {}": number(snapshot.staleness),
        "replay {}": _replay_fill(snapshot),
    }
    parts = [
        f"{snapshot.env_steps:,} steps{target}",
        *(form.format(text) for form, text in numbers.items() if text != _UNKNOWN),
        f"{snapshot.restarts} restart{'s' if snapshot.restarts > 1 else ''}" if snapshot.restarts else "",
        f"bottleneck: {snapshot.bottleneck}" if snapshot.bottleneck else "",
        f"ETA {_clock(seconds)}" if (seconds := eta(snapshot)) is not None else f"{_clock(snapshot.elapsed)} elapsed",
        snapshot.note,
    ]
    return " | ".join(part for part in parts if part)


def eta(snapshot: Snapshot) -> float | None:
    """Seconds until `target_steps` at the present speed, or until time is up if that is sooner; None: unknown."""
    target, speed, left = snapshot.target_steps, snapshot.steps_per_second, snapshot.seconds_left
    if not target or speed is None or not _known(speed) or not speed:
        return left
    return min(max(0.0, target - snapshot.env_steps) / speed, math.inf if left is None else left)


def _view(title: str, snapshot: Snapshot) -> Group:
    steps = Text(f"{snapshot.env_steps:,}")
    if snapshot.target_steps:
        filled = round(_BAR_CELLS * min(1.0, snapshot.env_steps / snapshot.target_steps))
        steps.append(f" / {snapshot.target_steps:,}  ")
        steps.append("━" * filled, style="green").append("━" * (_BAR_CELLS - filled), style="bright_black")
        steps.append(f" {_percent(snapshot)}")
    steps.append(f"   {_rate(snapshot.steps_per_second)}/s   {_clock(snapshot.elapsed)} elapsed")
    if (seconds := eta(snapshot)) is not None:
        steps.append(f"   ETA {_clock(seconds)}")
    returns = Text(f"train {number(snapshot.train_return)}   eval ")
    returns.append(_evaluation(snapshot), style="bold").append(_goal(snapshot))
    learning = f"loss {number(snapshot.loss)}   staleness {number(snapshot.staleness)}"
    rows = {
        "steps": steps,
        "updates": Text(f"{snapshot.updates:,}   {_rate(snapshot.updates_per_second)}/s   {learning}"),
        "return": returns,
        "replay": Text(f"{_replay_fill(snapshot)}   restarts {snapshot.restarts}"),
        "bottleneck": Text(snapshot.bottleneck or _UNKNOWN),
    }
    lines = [Text(title, style="bold")] if title else []
    lines += [Text(f"  {name:<11}", style="cyan").append_text(row) for name, row in rows.items()]
    if snapshot.note:
        lines.append(Text(f"  {snapshot.note}", style="yellow"))
    for line in lines:  # one row each: a narrow terminal cuts, it does not wrap and jump
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _evaluated(previous: Snapshot | None, snapshot: Snapshot) -> bool:
    if not _known(snapshot.eval_return):
        return False
    before = (0, None) if previous is None else (previous.evaluations, previous.eval_return)
    return before != (snapshot.evaluations, snapshot.eval_return)


def _evaluation(snapshot: Snapshot) -> str:
    """The return and, where they differ from the run's, the steps of the weights that were evaluated."""
    at = snapshot.eval_steps
    known = _known(snapshot.eval_return) and at is not None and at != snapshot.env_steps
    return f"{number(snapshot.eval_return)}{f' at {at:,}' if known else ''}"


def _goal(snapshot: Snapshot) -> str:
    return f" (goal {number(snapshot.stop_return)})" if _known(snapshot.stop_return) else ""


def _replay_fill(snapshot: Snapshot) -> str:
    if snapshot.replay_rows is None:
        return _UNKNOWN
    if not snapshot.replay_capacity:
        return f"{snapshot.replay_rows:,} rows"
    share = 100 * snapshot.replay_rows / snapshot.replay_capacity
    return f"{snapshot.replay_rows:,} / {snapshot.replay_capacity:,} rows ({share:.0f} %)"


def _percent(snapshot: Snapshot) -> str:
    # Rounded down: 100 % only when the target is reached.
    return f"{100 * snapshot.env_steps // (snapshot.target_steps or 1)} %"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def number(value: float | None) -> str:
    """Four significant digits, or a dash. What rounding leaves of 0 is 0."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    value = value if abs(value) > 1e-9 else 0.0
    return f"{value:,.1f}" if 100 <= abs(value) < 1e7 else f"{value:.4g}"


def _rate(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
