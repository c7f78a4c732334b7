"""Sampling ahead of training, in a thread.

The thread owns the source: batches come out through a bounded queue, priorities go in through another and are applied
before the next draw. No lock is held while rows are copied, and numba releases the GIL, so the learner computes
meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import threading

import numpy as np
import numpy.typing as npt

from shoal.errors import ReplayError
from shoal.replay.source import PacedReplay
from shoal.types import Keys, Sample

WAIT_SECONDS = 0.05
"""A learner that got no batch for so long checks whether its run was stopped."""
POLL_SECONDS = 0.002
FIRST_POLL_SECONDS = 0.05
"""Before the first batch there are thousands of steps to wait for, and the actors can use the core."""


class Prefetcher:
    """A source that keeps up to `depth` batches ready. The replay's ring must hold `depth + 2` batches: those waiting,
    one in use, one being filled.
    """

    draws_ahead = True

    def __init__(self, source: PacedReplay, depth: int) -> None:
        """Args:
        source: what to draw from; from now on only this object uses it.
        depth: batches to keep ready.
        """
        if (ring := source.replay.ring) < depth + 2:
            raise ReplayError(f"The replay's ring holds {ring} batches; {depth} ahead need {depth + 2}.")
        self._source = source
        self._ready: queue.Queue[Sample | None] = queue.Queue(maxsize=depth)
        self._priorities: queue.SimpleQueue[tuple[Keys, npt.NDArray[np.float32]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-prefetch", daemon=True)
        self._thread.start()

    def sample(self, timeout: float = WAIT_SECONDS) -> Sample | None:
        """The next batch, or None when none came in time."""
        sample = None
        if self._failure is None:
            with contextlib.suppress(queue.Empty):
                sample = self._ready.get(timeout=timeout)
        if sample is None and self._failure is not None:  # perhaps while this call waited
            raise self._failure
        return sample

    def update_priorities(self, keys: Keys, priorities: npt.NDArray[np.float32]) -> None:
        self._priorities.put((keys, priorities))

    def metrics(self) -> dict[str, float]:
        return self._source.metrics()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = FIRST_POLL_SECONDS
        try:
            while not self._stop.is_set():
                while not self._priorities.empty():
                    self._source.update_priorities(*self._priorities.get())
                sample = self._source.sample()
                if sample is None:
                    self._stop.wait(pause)
                else:
                    pause = POLL_SECONDS
                    self._offer(sample)
        except BaseException as failure:  # handed to the learner's thread, which raises it
            self._failure = failure
            with contextlib.suppress(queue.Full):
                self._ready.put_nowait(None)  # wakes a learner that waits

    def _offer(self, sample: Sample) -> None:
        while not self._stop.is_set():
            try:
                return self._ready.put(sample, timeout=0.1)
            except queue.Full:
                continue
