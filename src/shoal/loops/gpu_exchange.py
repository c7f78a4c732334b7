"""GpuExchange: sums over learners that have a GPU each, from GPU to GPU, by NCCL.

NCCL does not always notice that a member has died: the others' GPUs then wait for it for ever. So a member that waits
here looks after its group, and gives up when another one has died and was started again. While NCCL connects, it cannot
look: it gives up after CONNECT_SECONDS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

CONNECT_SECONDS = 30
"""NCCL needs a second or two. A member that died meanwhile holds the others up for so long."""


class GpuExchange:
    """One member's connection to the others, for as long as all of them live."""

    def __init__(
        self, store: Any, rank: int, ranks: int, device: torch.device, lost: Callable[[], bool], seconds: float
    ) -> None:
        """Connects; all members must come at the same time.

        Args:
            store: of torch.distributed, where they meet.
            rank: which of them this is.
            ranks: how many there are.
            device: this member's GPU, which no other member has.
            lost: whether another member has died.
            seconds: a member that is silent for so long has hung.

        Raises:
            RuntimeError: somebody did not come.
        """
        from torch.distributed import PrefixStore, ProcessGroupNCCL  # type: ignore[attr-defined]

        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # where members meet: nobody else must reach it
        if device.index is not None:  # `cuda` without a number is the present one
            torch.cuda.set_device(device)
        options = ProcessGroupNCCL.Options()
        options.config.blocking = 0  # otherwise NCCL waits for ever for those who do not come
        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(CONNECT_SECONDS))
        options._timeout = timedelta(seconds=2 * seconds)  # NCCL would end the process; here it becomes an error first
        self._group: Any = ProcessGroupNCCL(PrefixStore("gpus", store), rank, ranks, options)
        self._lost, self._seconds = lost, seconds
        self.total(torch.zeros(1, device=device))

    def total(self, vector: Tensor) -> Tensor:
        """Replaces a tensor on this member's GPU by its sum over all members, and returns it.

        Raises:
            RuntimeError: another member has died or hung.
        """
        try:
            work, deadline = self._group.allreduce([vector]), time.monotonic() + self._seconds
            while not work.is_completed():
                if self._lost() or time.monotonic() > deadline:
                    raise RuntimeError("another learner has died or hung")
                time.sleep(0)  # others of this process's threads prepare batches
            work.wait()
        except RuntimeError:
            self._group.abort()  # NCCL's own watchdog would end the process
            raise
        return vector


def gpu_number(device: torch.device | None) -> int:
    """Tells the GPUs of a machine apart, whatever their numbers are in this process; 0: it is none that NCCL knows."""
    if device is None or device.type != "cuda" or not torch.distributed.is_nccl_available():
        return 0
    # 62 bits of it: they travel as a signed number, and must not be 0.
    return int(str(torch.cuda.get_device_properties(device).uuid).replace("-", ""), 16) % 2**62 or 1
