"""Tests whether this processor can compute in bfloat16.

Some virtual machines advertise matrix instructions (AMX) that they do not have, and the first bfloat16 product kills
the process with an illegal instruction. So a separate process tries it before a run relies on it.
"""

from __future__ import annotations

import subprocess
import sys

from shoal.errors import ConfigError

_TRIAL = """
import torch
torch.set_num_threads(1)
network = torch.nn.Sequential(torch.nn.Conv2d(4, 32, 8, 4), torch.nn.Flatten(), torch.nn.Linear(12800, 64)).bfloat16()
assert torch.isfinite(network(torch.ones(16, 4, 84, 84, dtype=torch.bfloat16)).float()).all()
"""


def require_bfloat16(setting: str, instead: str) -> None:
    """Refuses a setting where computing in bfloat16 would kill the process; `instead` is the value to use."""
    trial = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, text=True, check=False)
    if trial.returncode:
        how = f"signal {-trial.returncode}" if trial.returncode < 0 else trial.stderr.strip().splitlines()[-1]
        raise ConfigError(
            f"{setting} does not work on this machine (a trial ended with {how}). Use {instead}; or, if its "
            "processor only lacks AMX, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment and try again."
        )
