"""Stream: the episodes of one environment in a shard, written by a plain loop.

    stream = Stream(path)
    obs, _ = env.reset()
    ...
    after, reward, terminated, truncated, _ = env.step(action)
    stream.append(obs, action, reward, after, terminated, truncated)

A shard's rows are a stream: the next observation is the next row's, and the row after an episode's end holds its final
observation and no step. Whoever steps several environments at once writes such rows with `ShardWriter`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import ReplayError
from shoal.replay.shard import ShardWriter
from shoal.types import FINAL, STEP


class Stream:
    """The one writer of a shard with one lane."""

    def __init__(self, path: Path) -> None:
        """Opens a shard that `create_shard` made; a stream that was written before is continued."""
        self.writer = ShardWriter(path)
        """What it writes with; `BackPressure` and vector loops need it."""
        if self.writer.info.lanes != 1:
            raise ReplayError(f"{path} has {self.writer.info.lanes} lanes; a Stream writes one. Use ShardWriter.")
        schema = self.writer.info.schema
        self._nothing: dict[str, Any] = {column.name: np.zeros(column.shape, column.dtype) for column in schema.columns}
        self._recorded = set(schema.extras)

    def append(
        self,
        obs: Any,
        action: Any,
        reward: float,
        after: Any,
        terminated: bool,
        truncated: bool,
        *,
        version: int = 0,
        **recorded: Any,
    ) -> None:
        """Writes one step, and the final observation if the episode ended with it.

        Args:
            obs: what the policy saw.
            action: what it did.
            reward: what came of it.
            after: the next observation.
            terminated: whether the task is over: nothing is to be expected after it.
            truncated: whether the episode was only cut off.
            version: of the weights that acted.
            recorded: the schema's other columns, all of them.
        """
        if recorded.keys() != self._recorded:
            wanted, given = sorted(self._recorded), sorted(recorded)
            raise ReplayError(f"The shard's own columns are {wanted}; append was given {given}.")
        over = bool(terminated or truncated)
        row: dict[str, Any] = {"obs": obs, "action": action, "reward": reward, "boundary": STEP, **recorded}
        row |= {"terminated": terminated, "truncated": truncated, "weights_version": version}
        self.writer.append(row, episodes=over)
        if over:
            final: dict[str, Any] = {**self._nothing, "obs": after, "boundary": FINAL}
            self.writer.append(final, steps=0)

    def close(self) -> None:
        """Marks that nothing more is written until the shard is opened again."""
        self.writer.close()
