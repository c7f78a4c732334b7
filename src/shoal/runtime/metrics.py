"""The metrics of a running run: `metrics.jsonl`, and copies for TensorBoard and Weights & Biases.

with MetricsLog(folder.path, make_sinks(folder.path, None, print)) as log:
    log.write(12_000, {"rollout/ep_rew_mean": 87.5, "time/fps": 4100.0}, wall=3.2)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.errors import on_failure
from shoal.metrics_file import METRICS_FILE, MetricsFile
from shoal.runtime.sinks import Sink


class MetricsLog:
    """Writes `<folder>/metrics.jsonl`, which a run needs, and to sinks, which it can do without.

    Args:
        folder: the run's folder.
        sinks: where else the metrics go. The log closes them.
    """

    def __init__(self, folder: Path, sinks: Iterable[Sink] = ()) -> None:
        self._notes: list[str] = []
        self._sinks = list(sinks)
        with on_failure(self._close_sinks):
            self._file = MetricsFile(folder / METRICS_FILE, self._notes.append)

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None:
        """Records values at one moment.

        Args:
            step: environment steps so far.
            values: numbers by name (`rollout/ep_rew_mean`, `train/loss`, ...).
            wall: seconds the run has been training, over all its resumptions.
        """
        numbers = {name: float(value) for name, value in values.items()}
        self._file.write(int(step), numbers, wall)
        for sink in tuple(self._sinks):
            try:
                sink.write(int(step), numbers, wall)
            except Exception as error:
                why = (error.strerror if isinstance(error, OSError) else None) or repr(error)
                self._notes.append(f"{sink.name} stopped at step {step} ({why}); training goes on.")
                self._sinks.remove(sink)
                sink.close()

    def take_notes(self) -> list[str]:
        """Sentences for the user, such as why a sink stopped; each once."""
        notes = self._notes.copy()
        self._notes.clear()
        return notes

    def close(self) -> None:
        """May be called twice."""
        self._file.close()
        self._close_sinks()

    def _close_sinks(self) -> None:
        while self._sinks:
            self._sinks.pop(0).close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
