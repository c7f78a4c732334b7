"""Copying rows: any dtype, any threads, nothing but what was asked for."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from shoal.replay import gather
from shoal.replay.gather import Copier, as_rows


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("uint8", (3,)), ("uint8", (4, 4)), ("float32", ()), ("float32", (2,)), ("bool", ()), ("int64", (2, 3))],
)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_copied_whatever_their_dtype(
    dtype: str, shape: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "PARALLEL_BYTES", 1)
    rng = np.random.default_rng(0)
    source = rng.integers(0, 2 if dtype == "bool" else 100, (7, 2, *shape)).astype(dtype)
    origins = rng.integers(-1, 14, 50)
    targets = rng.permutation(60)[:50]
    out = np.ones((60, *shape), dtype)
    before = out.copy()
    Copier(threads).rows(as_rows(source, 2), origins, targets, as_rows(out, 1))
    flat = source.reshape(14, *shape)
    for origin, target in zip(origins, targets, strict=True):
        before[target] = flat[origin] if origin >= 0 else 0
    assert np.array_equal(out, before)


def test_an_unaligned_batch_is_filled_all_the_same() -> None:
    source = np.arange(40, dtype=np.uint8).reshape(5, 1, 8)
    backing = np.zeros(5 * 8 + 1, np.uint8)
    out = backing[1:].reshape(5, 8)
    order = np.array([4, 3, 2, 1, 0])
    Copier().rows(as_rows(source, 2), order, np.arange(5), as_rows(out, 1))
    assert np.array_equal(out, source[order, 0])


def test_a_failure_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("in a thread")
        time.sleep(0.05)  # leaves the other thread a piece of the work

    monkeypatch.setattr(gather, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(gather, "_copy_rows", fail)
    words, numbers = np.zeros((4, 1), np.uint64), np.arange(4)
    with pytest.raises(RuntimeError, match="in a thread"):
        Copier(2).rows(words, numbers, numbers, words.copy())
