"""Rows come out as they went in, with the best codec of both ends; a missing package is named."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.replay.compression import PAUSE, Codec, Compress, Packer, compress, decompress, readable

PACKAGES: dict[Codec, str] = {"lz4": "lz4.block", "zstd": "zstandard"}


@pytest.fixture(autouse=True)
def both_are_here() -> None:
    for package in PACKAGES.values():
        pytest.importorskip(package)


@given(pieces=st.lists(st.tuples(st.binary(max_size=2000), st.integers(1, 20))), codec=st.sampled_from(["lz4", "zstd"]))
def test_any_parcels_come_out_as_they_went_in(pieces: list[tuple[bytes, int]], codec: Codec) -> None:
    """Also at the end of a larger buffer, also those that grow, also after and during a pause."""
    choice, firm = Packer((codec, "none")), Packer((codec,))
    for piece, times in pieces:
        data = np.frombuffer(b"before" + piece * times, np.uint8)[6:]
        for packer in (choice, firm):
            packed, said = packer.pack(data)
            assert np.array_equal(decompress(packed, said, len(data)), data)
            assert said == codec or not len(data) or packer is choice
        assert np.array_equal(decompress(compress(data, codec), codec, len(data)), data)


def test_noise_is_sent_as_it_is_and_tried_again_after_a_while() -> None:
    clean, empty = np.zeros(50_000, np.uint8), np.empty(0, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)
    packer = Packer(("zstd", "none"))
    assert packer.pack(noise)[1] == "none" and packer.pack(empty)[1] == "none"
    said = [packer.pack(clean)[1] for _ in range(PAUSE + 2)]
    assert said == ["none"] * PAUSE + ["zstd"] * 2
    assert Packer(("zstd",)).pack(noise)[1] == "zstd"  # who asks for it by name gets it


@pytest.mark.parametrize("missing, best", [((), "zstd"), (("zstd",), "lz4"), (("zstd", "lz4"), "none")])
def test_the_best_codec_that_both_ends_have(
    missing: tuple[Codec, ...], best: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = readable("auto")
    assert everything == ("zstd", "lz4", "none")
    for codec in missing:
        monkeypatch.setitem(sys.modules, PACKAGES[codec], None)
    assert Packer(everything).codec == best  # missing on the node
    here = readable("auto")
    monkeypatch.undo()
    assert Packer(here).codec == best  # missing at home


@pytest.mark.parametrize("codec", PACKAGES)
def test_a_missing_package_is_named_with_the_remedy(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[codec], None)
    words = rf"replay.compress = '{codec}' needs .*pip install 'shoal\[compress\]'"
    with pytest.raises(ConfigError, match=words):
        readable(codec)
    with pytest.raises(ConfigError, match=words):
        Packer((codec,))
    settings: list[Compress] = ["none", "auto"]
    assert all("none" in readable(setting) for setting in settings)
