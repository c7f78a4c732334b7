"""Sampling ahead of training, in a thread.

The thread owns the replay: batches come out through a bounded queue, priorities go in through another and are applied
before the next draw. No lock is held while rows are copied, and numba releases the GIL, so the learner computes
meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay.replay import Replay
from shoal.types import Keys, Sample

POLL_SECONDS = 0.002
FIRST_POLL_SECONDS = 0.05
"""Before the first batch there are thousands of steps to wait for, and the actors can use the core."""


class Prefetcher:
    """Keeps up to `depth` batches ready. The replay's ring must hold `depth + 2` batches: those waiting, one in use,
    one being filled.
    """

    def __init__(self, replay: Replay, depth: int, may_sample: Callable[[], bool]) -> None:
        """Args:
        replay: what to draw from; from now on only this object uses it.
        depth: batches to keep ready.
        may_sample: the rate limiter's word, asked once before every draw: a batch that it allows counts as drawn.
        """
        if replay.ring < depth + 2:
            raise ReplayError(f"The replay's ring holds {replay.ring} batches; {depth} ahead need {depth + 2}.")
        self._replay, self._may_sample = replay, may_sample
        self._ready: queue.Queue[Sample | None] = queue.Queue(maxsize=depth)
        self._priorities: queue.SimpleQueue[tuple[Keys, npt.NDArray[np.float32]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="shoal-prefetch", daemon=True)
        self._thread.start()

    def get(self, timeout: float) -> Sample | None:
        """The next batch, or None when none came in time."""
        if self._failure is not None:
            raise self._failure
        try:
            sample = self._ready.get(timeout=timeout)
        except queue.Empty:
            sample = None
        if sample is None and self._failure is not None:  # while this call waited
            raise self._failure
        return sample

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> None:
        """Hands priorities over; they are applied before the next draw."""
        self._priorities.put((keys, priorities))

    def close(self) -> None:
        """Stops the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        allowed, pause = False, FIRST_POLL_SECONDS
        try:
            while not self._stop.is_set():
                self._apply_priorities()
                allowed = allowed or self._may_sample()
                sample = self._replay.sample() if allowed else None
                if sample is None:
                    self._stop.wait(pause)
                else:
                    allowed, pause = False, POLL_SECONDS
                    self._offer(sample)
        except BaseException as failure:  # handed to the learner's thread, which raises it
            self._failure = failure
            with contextlib.suppress(queue.Full):
                self._ready.put_nowait(None)  # wakes a learner that waits

    def _apply_priorities(self) -> None:
        while not self._priorities.empty():
            self.dropped += self._replay.update_priorities(*self._priorities.get())

    def _offer(self, sample: Sample) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put(sample, timeout=0.1)
            except queue.Full:
                continue
