"""Updates as CUDA graphs: what is captured, and when. These need a GPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from shoal.algorithms.capture import WARM_UP, Captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Inputs(NamedTuple):
    x: Tensor
    weights: Tensor | None = None


class Adder:
    """An update that adds its inputs to a total, and notes the sizes it was run with: a replay notes nothing."""

    def __init__(self) -> None:
        self.total, self.sizes = torch.zeros((), device="cuda"), list[int]()
        self.captured = Captured[Inputs, Tensor](self.update, torch.device("cuda"))

    def update(self, inputs: Inputs) -> Tensor:
        self.sizes.append(len(inputs.x))
        return self.total.add_(inputs.x.sum())


def of(size: int, value: float = 0.5) -> Inputs:
    return Inputs(torch.full((size,), value, device="cuda"))


def test_from_the_fourth_call_on_it_is_replayed() -> None:
    adder = Adder()
    found = [float(adder.captured(of(4, value))) for value in range(8)]
    assert found == [4.0 * value * (value + 1) / 2 for value in range(8)]
    assert adder.sizes == [4] * (WARM_UP + 1)


def test_the_largest_batches_are_captured() -> None:
    """The first one may be small (`learner.batch.min`): the graph is not stuck with its size."""
    adder = Adder()
    sizes = [4] * 6 + [2] + [8] * 6 + [4] + [8] * 2
    fitting = [captured for size in sizes if (captured := _called(adder, size))]
    assert fitting == [4] * 6 + [8] * 8
    assert adder.sizes == [4] * (WARM_UP + 1) + [8] * (WARM_UP + 1)
    assert float(adder.total) == sum(fitting) / 2


def _called(adder: Adder, size: int) -> int:
    if not adder.captured.fits(of(size)):
        return 0
    adder.captured(of(size))
    return size
