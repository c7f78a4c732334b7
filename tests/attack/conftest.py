"""What attacks share: a real run, started as a user starts it."""

from __future__ import annotations

from tests.faults.conftest import train

__all__ = ["train"]
