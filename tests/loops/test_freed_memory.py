"""Freed memory is used again, without page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from shoal.loops.freed_memory import keep_freed_memory

def update():  # what an image network's update does: several large blocks, freed at its end
    return sum(block[0] for block in [b"1" * (size << 20) for size in (4, 40, 8, 1, 16)])

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):
    update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    update()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_no_page_faults_once_it_has_grown() -> None:
    faults = {}
    for name in ("given back", "kept"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, check=True)
        faults[name] = int(done.stdout)
    assert faults["kept"] < 50 < 5_000 < faults["given back"], faults
