"""The metrics of a running run: `metrics.jsonl`, and copies for TensorBoard and Weights & Biases.

with MetricsLog(folder.path) as log:
    log.write(12_000, {"rollout/ep_rew_mean": 87.5, "time/fps": 4100.0}, wall=3.2)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from shoal.metrics_file import METRICS_FILE, MetricsFile
from shoal.runtime.sinks import TensorBoard, Wandb, WandbSettings


class Sink(Protocol):
    """A place that metrics are copied to. What `write` raises stops this sink, not the run."""

    name: str

    def write(self, step: int, values: Mapping[str, float], wall: float) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Writes `<folder>/metrics.jsonl`, which a run needs, and a list of sinks, which it can do without."""

    def __init__(self, folder: Path, tensorboard: bool = True, wandb: WandbSettings | None = None) -> None:
        self._notes: list[str] = []
        self._sinks: list[Sink] = []
        self._file = MetricsFile(folder / METRICS_FILE, self._notes.append)
        try:
            if tensorboard:
                self._sinks.append(TensorBoard(folder / "tensorboard"))
            if wandb is not None:
                self._sinks.append(Wandb(folder, wandb, self._notes.append))
        except BaseException:
            self.close()
            raise

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
        """Sentences for the user, such as why W&B is offline; each once."""
        notes = self._notes.copy()
        self._notes.clear()
        return notes

    def close(self) -> None:
        """May be called twice."""
        self._file.close()
        while self._sinks:
            self._sinks.pop(0).close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
