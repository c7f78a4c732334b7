"""Shoal: distributed reinforcement learning on shared memory.

    import shoal

    run = shoal.train("CartPole-v1", actors=2, stop_return=475)
    action, state = shoal.load("runs/latest").predict(obs)

Names are looked up when first used, so that `import shoal` and the command line's help load neither torch nor Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.api import Evaluation, Run, load, resume, train

    __version__: str

__all__ = ["Evaluation", "Run", "__version__", "load", "resume", "train"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("shoal-rl")
        except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
            return "0+checkout"
    if name in __all__:
        from shoal import api

        return getattr(api, name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
