"""What a run shows while it runs: a live view on a terminal, plain lines anywhere else.

with Progress("CartPole-v1 · apex-dqn") as progress:
    progress.update(Snapshot(env_steps=12_000, target_steps=100_000, elapsed=3.2, steps_per_second=4100.0))
    progress.note("actor 1 died and was started again")
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

_REFRESH_S = 0.25
_BAR_CELLS = 24
_UNKNOWN = "-"
_NUMBER = re.compile(r"-?0x[0-9a-fA-F]+|(?<![:\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""Not the number of a line in a file, which follows a colon."""


@dataclass(frozen=True)
class Snapshot:
    """A moment of a run. None or NaN: not known (yet), shown as a dash or left out."""

    env_steps: int
    elapsed: float
    target_steps: int | None = None
    steps_per_second: float | None = None
    updates: int = 0
    updates_per_second: float | None = None
    train_return: float | None = None
    eval_return: float | None = None
    evaluations: int = 0
    """How many there were. Plain output gives each a line: it looks for a change here or of `eval_return`."""
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
    """What it is doing just now, if that is not plain training: "filling the replay", "saving"."""


class Progress:
    """Shows snapshots. Cheap to call often: a view at most four times a second, a line every `interval` seconds.

    Args:
        title: first line of the live view.
        quiet: nothing is shown, notes neither.
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

    def start(self) -> None:
        """Takes the terminal; `with` does it too."""
        self._open = True
        if self._quiet or self._live is not None:
            return
        console = self._console
        able = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        # FORCE_COLOR makes rich call any file a terminal, so the file itself is asked as well.
        if able and console.file.isatty():
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()

    def update(self, status: Snapshot) -> None:
        """Takes the newest numbers, and shows them when it is time to."""
        if self._quiet or not self._open:
            return
        previous, self._last = self._last, status
        now = time.monotonic()
        if self._live is None and _evaluated(previous, status):
            result = f"{_number(status.eval_return)}{_goal(status)}"
            steps = status.env_steps if status.eval_steps is None else status.eval_steps
            self._line(f"{_count(steps)} steps | evaluation: return {result}")
        if now < self._next:
            return
        if self._live is None:
            self._line(plain_line(status))
            self._printed = status
            self._next = now + self._interval
        else:
            self._draw(self._live, status)
            self._next = now + _REFRESH_S

    def note(self, text: str) -> None:
        """Prints a line that stays: a restart, a warning, where the results are."""
        self._line(text)

    def recurring_note(self, text: str) -> None:
        """Prints a line once and from then on counts it: at 10, 100, … times, and at the end. Lines that differ in
        numbers and addresses only, other than those of lines in a file, are the same.
        """
        kind = _NUMBER.sub("#", text)
        count = self._recurring.get(kind, (0, ""))[0] + 1
        self._recurring[kind] = count, text
        if count == 1:
            self._line(text)
        elif math.log10(count).is_integer():
            self._line(_again(count, text))

    def stop(self) -> None:
        """Shows the last status and gives the terminal back; safe to call twice."""
        if not self._open:
            return
        self._open = False
        for count, text in self._recurring.values():
            if count > 1 and not math.log10(count).is_integer():
                self._line(_again(count, text))
        if self._live is not None:
            live, self._live = self._live, None
            try:
                if self._last is not None:
                    self._draw(live, self._last)
            finally:
                with contextlib.suppress(OSError):
                    live.stop()
        elif self._last is not None and self._last is not self._printed:
            self._line(plain_line(self._last))

    def __enter__(self) -> Progress:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _line(self, text: str) -> None:
        if self._quiet:
            return
        encoding = self._console.encoding  # a path or name that the terminal cannot show must not end a run
        try:
            self._console.print(Text(text.encode(encoding, "replace").decode(encoding)), soft_wrap=True)
        except OSError:
            self._quiet = True

    def _draw(self, live: Live, status: Snapshot) -> None:
        try:
            live.update(_view(self._title, status), refresh=True)
        except OSError:  # the terminal was closed; the run, perhaps under nohup, goes on
            self._quiet = True


def _again(count: int, text: str) -> str:
    return f"{text.partition(chr(10))[0]} … again ({count - 1:,} more)"


def plain_line(status: Snapshot) -> str:
    """A status as one line; what is not known is left out."""
    target = f" of {_count(status.target_steps)} ({_percent(status)})" if status.target_steps else ""
    parts = [
        f"{_count(status.env_steps)} steps{target}",
        _part("{} steps/s", status.steps_per_second, _rate),
        _part("{} updates/s", status.updates_per_second, _rate),
        _part("return {}", status.train_return, _number),
        _part("eval {}", status.eval_return, _number),
        _part("loss {}", status.loss, _number),
        _part("staleness {}", status.staleness, _number),
        f"replay {fill}" if (fill := _replay_fill(status)) else "",
        f"{status.restarts} restart{'s' if status.restarts > 1 else ''}" if status.restarts else "",
        f"bottleneck: {status.bottleneck}" if status.bottleneck else "",
        f"ETA {_clock(seconds)}" if (seconds := eta(status)) is not None else f"{_clock(status.elapsed)} elapsed",
        status.note,
    ]
    return " | ".join(part for part in parts if part)


def eta(status: Snapshot) -> float | None:
    """Seconds until `target_steps` at the present speed; None when either is unknown."""
    if not status.target_steps or not _known(status.steps_per_second) or not status.steps_per_second:
        return None
    return max(0.0, status.target_steps - status.env_steps) / status.steps_per_second


def _view(title: str, status: Snapshot) -> Group:
    steps = Text(_count(status.env_steps))
    if status.target_steps:
        filled = round(_BAR_CELLS * min(1.0, status.env_steps / status.target_steps))
        steps.append(f" / {_count(status.target_steps)}  ")
        steps.append("━" * filled, style="green").append("━" * (_BAR_CELLS - filled), style="bright_black")
        steps.append(f" {_percent(status)}")
    steps.append(f"   {_rate(status.steps_per_second)}/s   {_clock(status.elapsed)} elapsed")
    if (seconds := eta(status)) is not None:
        steps.append(f"   ETA {_clock(seconds)}")
    returns = Text(f"train {_number(status.train_return)}   eval ")
    returns.append(_number(status.eval_return), style="bold").append(_goal(status))
    learning = f"loss {_number(status.loss)}   staleness {_number(status.staleness)}"
    rows = {
        "steps": steps,
        "updates": Text(f"{_count(status.updates)}   {_rate(status.updates_per_second)}/s   {learning}"),
        "return": returns,
        "replay": Text(f"{_replay_fill(status) or _UNKNOWN}   restarts {status.restarts}"),
        "bottleneck": Text(status.bottleneck or _UNKNOWN),
    }
    lines = [Text(title, style="bold")] if title else []
    lines += [Text(f"  {name:<11}", style="cyan").append_text(row) for name, row in rows.items()]
    if status.note:
        lines.append(Text(f"  {status.note}", style="yellow"))
    for line in lines:  # one row each: a narrow terminal cuts, it does not wrap and jump
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _evaluated(previous: Snapshot | None, status: Snapshot) -> bool:
    if not _known(status.eval_return):
        return False
    before = (0, None) if previous is None else (previous.evaluations, previous.eval_return)
    return before != (status.evaluations, status.eval_return)


def _goal(status: Snapshot) -> str:
    return f" (goal {_number(status.stop_return)})" if _known(status.stop_return) else ""


def _replay_fill(status: Snapshot) -> str:
    if status.replay_rows is None:
        return ""
    if not status.replay_capacity:
        return f"{_count(status.replay_rows)} rows"
    share = 100 * status.replay_rows / status.replay_capacity
    return f"{_count(status.replay_rows)} / {_count(status.replay_capacity)} rows ({share:.0f} %)"


def _percent(status: Snapshot) -> str:
    # Rounded down: 100 % is for those who arrived.
    return f"{100 * status.env_steps // (status.target_steps or 1)} %"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _part(form: str, value: float | None, show: Callable[[float | None], str]) -> str:
    return form.format(show(value)) if _known(value) else ""


def _number(value: float | None) -> str:
    """Four significant digits, or a dash."""
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    return f"{value:,.1f}" if 100 <= abs(value) < 1e7 else f"{value:.4g}"


def _rate(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _count(value: int) -> str:
    return f"{value:,}"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
