"""Images on their way between two nodes: exact, compressed where that is worth it, whatever the stream does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.loops.test_courier_calls import ACTORS, make_folders

from shoal.replay import ShardReader, ShardWriter
from shoal.replay.compression import PAUSE, Compress

STREAM = "clean noisy clean"
PARCELS = PAUSE + 5
"""Of each part of the stream."""


@pytest.mark.parametrize("compress", ["auto", "zstd", "lz4", "none"])
def test_a_stream_that_becomes_noisy_and_clean_again(compress: Compress, tmp_path: Path) -> None:
    pytest.importorskip("zstandard"), pytest.importorskip("lz4")
    extra = ("replay.capacity=1024", "env.lanes=1", "replay.min_size=256", f"replay.compress={compress}")
    there, home, node = make_folders("pong_apex_dqn", tmp_path, *extra)
    writers = [ShardWriter(there.paths.shard(actor)) for actor in ACTORS]
    rng, blank = (
        np.random.default_rng(0),
        {name: np.zeros_like(column[:1]) for name, column in writers[0].columns.items()},
    )
    codecs: dict[str, list[str]] = {}
    for part, kind in enumerate(STREAM.split()):
        for _ in range(PARCELS):
            for writer in writers:
                frame = rng.integers(0, 256 if kind == "noisy" else 2, blank["obs"].shape, np.uint8)
                writer.append_chunk(blank | {"obs": frame})
            parcel = node.fetch(0.0)
            home.take(parcel)
            codecs.setdefault(f"{part} {kind}", []).append(parcel.codec)
        for actor in ACTORS:
            own, mirror = ShardReader(there.paths.shard(actor)), ShardReader(home._plan.shards[actor])
            assert own.head == mirror.head == (part + 1) * PARCELS
            for name, column in own.columns.items():
                assert np.array_equal(column[: own.head], mirror.columns[name][: own.head]), name
    if compress != "auto":
        assert {one for each in codecs.values() for one in each} == {compress}
    else:
        assert set(codecs["0 clean"]) == {"zstd"} == set(codecs["2 clean"][PAUSE:])
        assert set(codecs["1 noisy"]) == {"none"}


def test_vectors_are_never_compressed(tmp_path: Path) -> None:
    assert make_folders("cartpole_ppo", tmp_path)[1].codecs == ("none",)
