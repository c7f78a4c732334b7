"""One of two learners that share a GPU and use NCCL all the same: `python -m tests.loops.gpu_member FOLDER RANK`.

NCCL refuses two members on one GPU, unless they say that they are on different hosts (NCCL_HOSTID). Prints a line of
JSON for each thing that it has done. The second time it is started it only comes back and adds once more.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from shoal.loops import team as module
from shoal.loops.gpu_exchange import GpuExchange
from shoal.loops.team import Learners, MemberLost


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def joined(member: Learners) -> None:
    while not member.join():
        time.sleep(0.01)


def die(*_: object) -> None:
    os.kill(os.getpid(), 9)


def main(folder: Path, rank: int, mode: str) -> None:
    os.environ["NCCL_HOSTID"] = f"host {rank}"
    module.gpu_number = lambda device: rank + 1
    if mode == "dies connecting":
        GpuExchange.__init__ = die  # type: ignore[method-assign, assignment]
    device = torch.device("cuda")
    member = Learners(folder / "learners.bin", rank, 2, device=device)
    began = time.monotonic()
    joined(member)
    say(connected=time.monotonic() - began, direct=member._gpus is not None)
    if member.all_new and mode != "only connects":
        ones = torch.full((1000,), float(rank + 1), device=device)
        say(direct=member._gpus is not None, sum=member.total(ones).tolist()[::500])
        say(wide=member.total(torch.tensor([1e-12], dtype=torch.float64, device=device)).item())
        member.holds(3)
        if mode == "dies":
            die()
        began = time.monotonic()
        try:
            member.total(torch.ones(5, device=device))
        except MemberLost:
            say(lost=time.monotonic() - began)
        joined(member)
    say(again=member.total(torch.full((3,), 2.0, device=device)).tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), " ".join(sys.argv[3:]))
