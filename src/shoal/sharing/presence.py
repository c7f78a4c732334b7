"""Presence: a process's heartbeat in a registry, for one buffer that it writes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path


class Presence:
    """Touches the file `alive` in a thread. If it is gone, others took this process for dead: the buffer comes back."""

    def __init__(self, alive: Path, seconds: float, come_back: Callable[[], bool]) -> None:
        """Args:
        alive: the file to touch.
        seconds: time between two touches.
        come_back: announces the buffer again; False when there is nothing to come back to.
        """
        self._alive, self._seconds, self._come_back = alive, seconds, come_back
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.returns = 0
        """How often the entry was gone and was written again."""
        self.rows_lost = False
        """Whether the rows are gone too: they must be written to a new shard."""
        threading.Thread(target=self._run, name="shoal-alive", daemon=True).start()

    def end(self) -> None:
        """Stops; waits for a touch that is under way."""
        with self._lock:
            self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            with self._lock, contextlib.suppress(OSError):  # a full disk: the next touch may succeed
                if self._over.is_set():
                    return
                try:
                    os.utime(self._alive)
                except FileNotFoundError:
                    if not self._come_back():
                        return
                    self.returns += 1
