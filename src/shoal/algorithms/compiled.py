"""A gradient as compiled code, on a CPU.

Besides its matrix products a gradient of small networks is a hundred operations on small tensors. torch.compile makes
one C++ function of them: what is done to an element is done in one pass, and no Python runs in between.

It takes a C++ compiler, and 10 to 40 seconds for each objective.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from shoal.algorithms.capture import size_of
from shoal.errors import ConfigError
from shoal.files import make_private

Inputs = TypeVar("Inputs", bound=NamedTuple)
Output = TypeVar("Output")

WORTH_IT = 3
"""Calls of one size before the next is compiled: batches may still be growing."""
FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that says where torch.compile keeps its code."""
BACKEND: dict[str, Any] = {
    "options": {
        "cpp_wrapper": True,  # kernels are called from C++
        "fallback_random": True,  # torch's own random numbers: faster, and the same as without compiling
        "compile_threads": 1,  # in this process: no others that could be left behind
        "fx_graph_cache": False,  # it is unpickled
        "cpp_cache_precompile_headers": False,  # they are kept elsewhere than in `FOLDER`
    }
}
"""What torch.compile makes of a traced function."""


class Compiled(Generic[Inputs, Output]):
    """Calls a function: compiled for the largest inputs, as it is for smaller ones."""

    def __init__(self, function: Callable[[Inputs], Output]) -> None:
        """`function` takes a NamedTuple of tensors (or None)."""
        require_compiler()
        self._function = function
        self._size, self._seen = 0, 0
        self._made: Callable[[Inputs], Output] | None = None

    def __call__(self, inputs: Inputs) -> Output:
        size = size_of(inputs)
        if size > self._size:
            self._size, self._seen = size, 0
            self._made = None
        self._seen += size == self._size
        if size < self._size or self._seen <= WORTH_IT:
            return self._function(inputs)
        return self._made(inputs) if self._made else self._make(inputs)

    def _make(self, inputs: Inputs) -> Output:
        """Compiles and runs it."""
        made = torch.compile(_alone(self._function), fullgraph=True, dynamic=False, **BACKEND)
        try:
            with _compiling():
                output = made(inputs)
        except Exception as error:  # torch.compile has no class for what it raises
            said = [line for line in str(error).splitlines() if line.strip()]
            raise ConfigError(
                f"learner.compile=true, but torch.compile cannot compile this update: {' '.join(said[:6])[:1000]} "
                "Set learner.compile=false to train without it."
            ) from error
        self._made = made
        return output


def require_compiler() -> None:
    """Refuses a machine where nothing can be compiled."""
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(shlex.split(wanted)[0]) is None:
        raise ConfigError(
            f"learner.compile=true needs a C++ compiler on a CPU, and there is no {wanted}. Install it, name another "
            "in the environment variable CXX, or set learner.compile=false."
        )
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise ConfigError(
            f"learner.compile=true needs a newer torch than {torch.__version__} on a CPU; set learner.compile=false."
        )


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """What torch.compile is to know while it works."""
    from torch._functorch import config as caches
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch's own default is a folder of a known name beside other people's, and what lies there would be run.
    if os.environ.get(FOLDER, default_cache_dir()) == default_cache_dir():
        os.environ[FOLDER] = str(_own_folder())
    dynamo: dict[str, Any] = {"trace_autograd_ops": True, "automatic_dynamic_local_pgo": False}
    # Ctrl-C is for this process, which stops cleanly; it would reach and kill the C++ compiler, too.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        # Besides the switch for gradients, what would be unpickled is off.
        with torch._dynamo.config.patch(dynamo), caches.patch(enable_autograd_cache=False):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _own_folder() -> Path:
    """The user's cache, so that the next run need not compile the same; or one for this process, where there is none
    that is the user's alone.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / f"torch-{torch.__version__}"
    with contextlib.suppress(OSError):
        if make_private(folder):
            return folder
    own = Path(tempfile.mkdtemp(prefix="shoal-compiled-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _alone(function: Callable[[Inputs], Output]) -> Callable[[Inputs], Output]:
    """The same as a function of its own: torch.compile counts versions by their code, and those of other learners in
    this process would count, too.
    """

    def call(inputs: Inputs) -> Output:
        return function(inputs)

    return types.FunctionType(call.__code__.replace(), call.__globals__, call.__name__, None, call.__closure__)
