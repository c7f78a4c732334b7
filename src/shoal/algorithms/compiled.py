"""One update as compiled code, on a CPU.

Beside its matrix products an update of small networks is two hundred operations on small tensors, and each finds the
processor's cache full of the products' operands. torch.compile makes one C++ function of all of them: what is done to
an element is done in one pass, and no Python runs in between. Algorithms are written as before; where the way of
writing matters (`EnsembleMLP`, `Descent`, `Follower`), they ask `torch.compiler.is_compiling()`.

It takes a C++ compiler, and some 10 seconds for each kind of update.
"""

from __future__ import annotations

import functools
import os
import tempfile
import types
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from shoal.algorithms.capture import WARM_UP, size_of
from shoal.errors import ConfigError

Inputs = TypeVar("Inputs", bound=NamedTuple)
Output = TypeVar("Output")

OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,  # kernels are called from C++
    "fallback_random": True,  # torch's own random numbers: faster, and the same as without compiling
    "fx_graph_cache": False,  # another process could not use it: see `_private_folder`
    "compile_threads": 1,  # in this process: no others that could be left behind
}


class Compiled(Generic[Inputs, Output]):
    """Calls an update as torch.compile makes it, for one size of inputs, the largest."""

    def __init__(self, update: Callable[..., Output], before: Callable[[], None]) -> None:
        """Args:
        update: `update(inputs, *flags)`: inputs are a NamedTuple of tensors (or None).
        before: called before each update, and not compiled.
        """
        # A switch of torch's that is off while it is new: torch.autograd.grad within what is compiled.
        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            raise ConfigError(f"learner.compile on a CPU needs a newer torch than {torch.__version__}; leave it off.")
        torch._dynamo.config.trace_autograd_ops = True
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", _private_folder().name)
        self._update = torch.compile(_alone(update), fullgraph=True, dynamic=False, options=OPTIONS)
        self._before, self._size, self._seen = before, 0, 0
        self._known: set[tuple[int, tuple[bool, ...]]] = set()

    def fits(self, inputs: Inputs) -> bool:
        """Whether to call this for these inputs, asked once for each: for the largest, when they came often enough to
        be worth a compilation.
        """
        size = size_of(inputs)
        if size > self._size:
            self._size, self._seen = size, 0
        self._seen += size == self._size
        return size == self._size and self._seen > WARM_UP

    def __call__(self, inputs: Inputs, *flags: bool) -> Output:
        """The update of these inputs."""
        self._before()
        kind = (self._size, flags)
        if kind in self._known:
            return self._update(inputs, *flags)
        try:
            output = self._update(inputs, *flags)
        except RuntimeError as error:  # all that torch.compile raises is one
            reason = " ".join(str(error).split("\n")[:2])
            raise ConfigError(
                f"learner.compile=true: torch.compile cannot make this update ({reason}). It needs a C++ compiler, "
                "g++ or clang++; or set learner.compile=false."
            ) from error
        self._known.add(kind)
        return output


@functools.cache
def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Where torch.compile keeps its code, until this process ends. By default that is a folder of a known name beside
    other people's, and what lies there is run.
    """
    return tempfile.TemporaryDirectory(prefix="shoal-compiled-")


def _alone(update: Callable[..., Output]) -> Callable[..., Output]:
    """The same as a function of its own: torch.compile counts versions by their code, and those of other learners in
    this process would count, too.
    """

    def call(inputs: Any, *flags: bool) -> Output:
        return update(inputs, *flags)

    return types.FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
