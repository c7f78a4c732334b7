"""Compression of rows on their way to another node: the one door to two optional packages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
Codec = Literal["none", "lz4", "zstd"]
Compress = Literal["auto", "none", "lz4", "zstd"]
_PACKAGES = {"lz4": ("lz4.block", "lz4"), "zstd": ("zstandard", "zstandard")}
_BEST_FIRST: tuple[Codec, ...] = ("zstd", "lz4", "none")
_ZSTD_LEVEL = 1
WORTH = 0.75
"""The most that may be left of frames that are worth their compression. Noisy frames keep 96 % or more."""
PAUSE = 100
"""So many parcels are sent as they are after one that was not worth it."""


def readable(setting: Compress) -> tuple[Codec, ...]:
    """The codecs that are allowed and that this node can read, best first.

    Raises:
        ConfigError: the one that is asked for is missing.
    """
    if setting != "auto":
        _load(setting)
        return (setting,)
    found = []
    for codec in _BEST_FIRST:
        with suppress(ConfigError):
            _load(codec)
            found.append(codec)
    return tuple(found)


class Packer:
    """Compresses parcels with the best codec that both ends have. Where there is a choice, frames that hardly shrink
    are sent as they are for a while: the time of both ends is lost with them.
    """

    def __init__(self, readable_there: Sequence[Codec]) -> None:
        """Args:
        readable_there: by the other end, best first. See `readable`.

        Raises:
            ConfigError: there is only one, and it is missing here.
        """
        if len(readable_there) == 1:
            _load(readable_there[0])
        self.codec = next(one for one in readable_there if one in readable("auto"))
        self._has_choice, self._pause = "none" in readable_there, 0

    def pack(self, data: Bytes) -> tuple[Bytes, Codec]:
        """The compressed data, or the data itself, and which it is."""
        if not len(data) or self._pause:
            self._pause = max(0, self._pause - bool(len(data)))
            return data, "none"
        made = compress(data, self.codec)
        if self._has_choice and self.codec != "none" and len(made) > WORTH * len(data):
            self._pause = PAUSE
            return data, "none"
        return made, self.codec


def compress(data: Bytes, codec: Codec) -> Bytes:
    """The compressed data; with `none` the data itself."""
    package = _load(codec)
    if package is None:
        return data
    if codec == "lz4":
        made = package.compress(data, store_size=False)
    else:
        made = package.ZstdCompressor(_ZSTD_LEVEL).compress(data)
    return np.frombuffer(made, np.uint8)


def decompress(data: Bytes, codec: Codec, nbytes: int) -> Bytes:
    """The inverse of `compress`, for data that had so many bytes."""
    package = _load(codec)
    if package is None or not nbytes:
        return data[:nbytes]
    if codec == "lz4":
        made = package.decompress(data, uncompressed_size=nbytes)
    else:
        made = package.ZstdDecompressor().decompress(data, max_output_size=nbytes)
    return np.frombuffer(made, np.uint8)


def _load(codec: Codec) -> Any:
    """The codec's module; for `none` None."""
    if codec == "none":
        return None
    module, package = _PACKAGES[codec]
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"replay.compress = {codec!r} needs the package {package} on every node, and it is missing here: "
            f"`pip install {package}` or `pip install 'shoal[compress]'`, or leave it at 'auto'."
        ) from error
