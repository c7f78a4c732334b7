"""One update as one CUDA graph.

An update of small networks is a hundred kernels of a few microseconds, each launched from Python for more than it takes
to run. Captured once, all of them are launched by one call. What a captured update may not do: wait for the device
(`.item()`), allocate outside the graph, or choose by a number it computed; what it chooses by is passed as `flags`, and
every combination of them is a graph of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch

Inputs = TypeVar("Inputs", bound=NamedTuple)
Output = TypeVar("Output")

WARM_UP = 3
"""Updates run as usual before one is captured: libraries choose their kernels, the optimizer makes its state."""


class Captured(Generic[Inputs, Output]):
    """Calls an update; from the fourth call of a kind on, replays it."""

    def __init__(self, update: Callable[..., Output], device: torch.device) -> None:
        """`update(inputs, *flags)`: inputs are a NamedTuple of tensors (or None), its outputs are overwritten by the
        next call with the same flags. A graph has one size: larger inputs than before are captured again.
        """
        self._update, self._device = update, device
        self._inputs: Any = None
        self._calls: Counter[tuple[bool, ...]] = Counter()
        self._graphs: dict[tuple[bool, ...], tuple[Any, Output]] = {}
        self._stream = torch.cuda.Stream(device)

    def fits(self, inputs: Inputs) -> bool:
        """Whether these are captured: smaller ones than the largest are too rare for a graph of their own."""
        return self._same_shapes(inputs) or self._inputs is None or size_of(inputs) > size_of(self._inputs)

    def forget(self) -> None:
        """Discards all graphs: tensors that the update works on were replaced."""
        self._calls.clear()
        self._graphs.clear()

    def __call__(self, inputs: Inputs, *flags: bool) -> Output:
        """The update of these inputs."""
        if not self.fits(inputs):
            return self._update(inputs, *flags)
        with torch.cuda.device(self._device):
            return self._call(inputs, flags)

    def _call(self, inputs: Inputs, flags: tuple[bool, ...]) -> Output:
        self._take(inputs)
        if flags not in self._graphs:
            self._calls[flags] += 1
            if self._calls[flags] <= WARM_UP:
                return self._warm_up(flags)
            graph = torch.cuda.CUDAGraph()
            # Not "global": the thread that draws batches may use the device meanwhile, to score candidates.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = self._update(self._inputs, *flags)
            self._graphs[flags] = (graph, output)
        graph, output = self._graphs[flags]
        graph.replay()
        return output

    def _take(self, inputs: Any) -> None:
        """Into the tensors that the graphs read."""
        if not self._same_shapes(inputs):
            self.forget()
            self._inputs = type(inputs)(*(None if one is None else torch.empty_like(one) for one in inputs))
        for mine, given in zip(self._inputs, inputs, strict=True):
            if mine is not None:
                mine.copy_(given, non_blocking=True)

    def _same_shapes(self, inputs: Any) -> bool:
        return self._inputs is not None and all(
            mine is None or mine.shape == given.shape for mine, given in zip(self._inputs, inputs, strict=True)
        )

    def _warm_up(self, flags: tuple[bool, ...]) -> Output:
        """An update as usual, on a stream of its own, as capturing wants it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            output = self._update(self._inputs, *flags)
        torch.cuda.current_stream().wait_stream(self._stream)
        return output


def size_of(inputs: Any) -> int:
    """Numbers in them, all together."""
    return sum(one.numel() for one in inputs if one is not None)
