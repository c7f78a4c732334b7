"""Ctrl-C and SIGTERM: the first one stops a run cleanly, the second without waiting for anything."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handles signals inside a `with`, and calls the listener at the first one.

    A second signal raises KeyboardInterrupt if there is no listener yet, that is before the run has started. Later it
    sets `hurry`, and further ones change nothing: an exception during cleaning up would leave processes behind. Call
    `install` again after starting Ray, which installs its own handlers.
    """

    def __init__(self) -> None:
        self.asked = False
        """Whether a signal has arrived."""
        self.last: int | None = None
        """The newest signal."""
        self.hurry = False
        """Whether the user asked twice."""
        self._on_stop: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Handles the signals from now on; outside the main thread it cannot, and leaves them to the caller."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            earlier = signal.signal(number, self._handle)
            self._before.setdefault(number, earlier)

    def listen(self, on_stop: Callable[[], None]) -> None:
        """Calls `on_stop` at the first signal; now if it has arrived already."""
        self._on_stop = on_stop
        if self.asked:
            on_stop()

    def ask(self) -> None:
        """As a signal does, for one that arrived in another process."""
        self.hurry, self.asked = self.asked, True
        if self._on_stop is not None:
            self._on_stop()

    def forget(self) -> None:
        """The signals so far were answered."""
        self.asked = self.hurry = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and self._on_stop is None:
            raise KeyboardInterrupt
        self.last = number
        self.ask()

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
