"""RunPaths: the files that several roles of a run use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.files import Inside


@dataclass(frozen=True)
class RunPaths:
    """Two folders, and the names of the files in them."""

    replay: Path
    """Shards, ledger and weight board."""
    checkpoints: Path

    ledger = Inside("ledger.bin", of="replay")
    """The run's counts."""
    board = Inside("weights.bin", of="replay")
    """The newest weights."""
    processes = Inside("processes.bin", of="replay")
    """A 64-bit word for each role: its process id, once the role is built."""
    learners = Inside("learners.bin", of="replay")
    """Where several learners of the run meet."""

    def shard(self, index: int) -> Path:
        """The shard of one actor."""
        return self.replay / f"shard_{index:03d}"

    def gradients(self, index: int) -> Path:
        """The gradients of one actor, for the learner."""
        return self.replay / f"gradients_{index:03d}.bin"

    def mailbox(self, index: int) -> Path:
        """What one actor and the inference server exchange."""
        return self.replay / f"mailbox_{index:03d}.bin"
