"""Compression of rows on their way to another node: the one door to two optional packages."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.errors import ConfigError

Bytes = npt.NDArray[np.uint8]
Codec = Literal["none", "lz4", "zstd"]
_PACKAGES = {"lz4": ("lz4.block", "lz4"), "zstd": ("zstandard", "zstandard")}
_ZSTD_LEVEL = 1


def require_codec(codec: Codec) -> None:
    """Refuses a codec whose package is missing on this node."""
    if codec != "none":
        _load(codec)


def compress(data: Bytes, codec: Codec) -> Bytes:
    """The compressed data; with `none` the data itself."""
    if codec == "none":
        return data
    package = _load(codec)
    if codec == "lz4":
        made = package.compress(data, store_size=False)
    else:
        made = package.ZstdCompressor(_ZSTD_LEVEL).compress(data)
    return np.frombuffer(made, np.uint8)


def decompress(data: Bytes, codec: Codec, nbytes: int) -> Bytes:
    """The inverse of `compress`, for data that had so many bytes."""
    if codec == "none" or not nbytes:
        return data[:nbytes]
    package = _load(codec)
    if codec == "lz4":
        made = package.decompress(data, uncompressed_size=nbytes)
    else:
        made = package.ZstdDecompressor().decompress(data, max_output_size=nbytes)
    return np.frombuffer(made, np.uint8)


def _load(codec: Codec) -> Any:
    module, package = _PACKAGES[codec]
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"replay.compress = {codec!r} needs the package {package} on every node, and it is missing here: "
            f"`pip install {package}` or `pip install 'shoal[compress]'`, or set replay.compress = 'none'."
        ) from error
