"""Ctrl-C and SIGTERM: the first one ends a run in order, the second without waiting for anything."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Remembers signals and tells who listens at the first one. Use it as a context.

    A second signal raises KeyboardInterrupt while there is nobody to listen, that is before the run has begun; later it
    sets `hurry`, and further ones change nothing: an exception in the middle of cleaning up would leave processes.
    `install` may be called again: Ray puts handlers of its own in place when it starts.
    """

    def __init__(self) -> None:
        self._asked = False
        self.hurry = False
        """Whether the user will not wait any longer."""
        self._on_stop: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Takes the signals. Outside the main thread it cannot, and whoever runs us there handles them."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            earlier = signal.signal(number, self._handle)
            self._before.setdefault(number, earlier)

    def listen(self, on_stop: Callable[[], None]) -> None:
        """Calls `on_stop` at the first signal; at once if it has come already."""
        self._on_stop = on_stop
        if self._asked:
            on_stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked and self._on_stop is None:
            raise KeyboardInterrupt
        self.hurry, self._asked = self._asked, True
        if self._on_stop is not None:
            self._on_stop()

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
