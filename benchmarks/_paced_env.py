"""A wrapper that slows an environment down until it gets a signal: see `_cluster_learning`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium

SECONDS = 0.01


class Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every step takes at least `SECONDS` until a file exists."""

    def __init__(self, env: gymnasium.Env[Any, Any], until: str) -> None:
        super().__init__(env)
        self._until: Path | None = Path(until)

    def step(self, action: Any) -> Any:
        if self._until is not None:
            if self._until.exists():
                self._until = None
            else:
                time.sleep(SECONDS)
        return self.env.step(action)
