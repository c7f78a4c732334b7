"""Episodes of a plain loop, read back as transitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.errors import ReplayError
from shoal.replay import Column, NStepView, Replay, ShardInfo, ShardReader, Stream, Uniform, create_shard, step_schema
from shoal.types import EnvSpec

SCHEMA = step_schema(EnvSpec("Fake-v0", (1,), "float32", 1, 2, ()), (Column("log_prob", "float32"),))


def test_both_kinds_of_ends(tmp_path: Path) -> None:
    """Two episodes of three steps: 0 1 2 (3 terminated), 10 11 12 (13 truncated)."""
    create_shard(tmp_path / "a", ShardInfo(SCHEMA, rows=64, lanes=1))
    stream = Stream(tmp_path / "a")
    for first, terminated in ((0, True), (10, False)):
        for step in range(3):
            over = step == 2
            obs, after = [first + step], [first + step + 1]
            stream.append(obs, 1, 1.0, after, over and terminated, over and not terminated, log_prob=-0.5)
    stream.append([20], 0, 1.0, [21], False, False, log_prob=-0.5)
    reader = ShardReader(tmp_path / "a")
    assert reader.steps == 7 and reader.head == 9
    replay = Replay([reader], Uniform(), NStepView(SCHEMA, n=2, gamma=0.5), batch_size=64)
    sample = replay.sample()
    assert sample is not None
    found = {
        int(obs[0]): (reward, discount, int(after[0]) if discount else None)
        for obs, _, reward, discount, after in zip(*sample.data, strict=True)
    }
    assert found[0] == (1.5, 0.25, 2) and found[1] == (1.5, 0.0, None) and found[2] == (1.0, 0.0, None)
    assert found[10] == (1.5, 0.25, 12) and found[11] == (1.5, 0.25, 13) and found[12] == (1.0, 0.5, 13)
    assert not {3, 13} & set(found)  # nothing was done there


def test_wrong_columns_and_lanes_are_refused(tmp_path: Path) -> None:
    create_shard(tmp_path / "a", ShardInfo(SCHEMA, rows=64, lanes=1))
    create_shard(tmp_path / "b", ShardInfo(SCHEMA, rows=64, lanes=2))
    with pytest.raises(ReplayError, match=r"own columns are \['log_prob'\]; append was given \[\]"):
        Stream(tmp_path / "a").append(np.zeros(1), 0, 0.0, np.zeros(1), False, False)
    with pytest.raises(ReplayError, match="2 lanes"):
        Stream(tmp_path / "b")
