"""RunPaths: where the parts of a run meet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """The files of a run that more than one of its roles uses."""

    replay: Path
    """Shards, ledger and weight board."""
    checkpoints: Path

    @property
    def ledger(self) -> Path:
        """The run's counts."""
        return self.replay / "ledger.bin"

    @property
    def board(self) -> Path:
        """The newest weights."""
        return self.replay / "weights.bin"

    @property
    def processes(self) -> Path:
        """A word for each role: the process it has, once it is built."""
        return self.replay / "processes.bin"

    def shard(self, index: int) -> Path:
        """The shard of one actor."""
        return self.replay / f"shard_{index:03d}"

    def mailbox(self, index: int) -> Path:
        """Where one actor and the inference server meet."""
        return self.replay / f"mailbox_{index:03d}.bin"
