"""Rows come out as they went in, and a missing package is named."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from shoal.errors import ConfigError
from shoal.replay.compression import Codec, compress, decompress, require_codec

PACKAGES: dict[Codec, str] = {"lz4": "lz4.block", "zstd": "zstandard"}


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_rows_come_out_as_they_went_in(codec: Codec, size: int) -> None:
    if codec in PACKAGES:
        pytest.importorskip(PACKAGES[codec])
    buffer = np.repeat(np.random.default_rng(0).integers(0, 256, 1000, np.uint8), 101)
    packed = compress(buffer[:size], codec)
    assert np.array_equal(decompress(packed, codec, size), buffer[:size])
    assert codec == "none" or size < 100 or len(packed) < size / 5


@pytest.mark.parametrize("codec", PACKAGES)
def test_a_missing_package_is_named_with_the_remedy(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[codec], None)
    with pytest.raises(ConfigError, match=rf"replay.compress = '{codec}' needs .*pip install 'shoal\[compress\]'"):
        require_codec(codec)
    require_codec("none")
