"""Checkpoints: one safetensors file each, written whole or not at all, and never unpickled.

A file holds every tensor of a learner (weights, target weights, optimizer state) and, in its header, one JSON text with
everything else, under a SHA-256 over both. It is written under a temporary name, synced and renamed, so a kill at any
moment leaves the old files and perhaps one complete new one.

    tensors, scalars = flatten_optimizer(optimizer, prefix="optimizer.")
    tensors |= module_tensors(network, prefix="policy.")
    save_checkpoint(folder, CheckpointState(updates=1000, tensors=tensors, info={"optimizer": scalars}))

    state = load_checkpoint(folder)
    load_module(network, state.tensors, prefix="policy.")
    restore_optimizer(optimizer, state.tensors, state.info["optimizer"], prefix="optimizer.")
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from shoal.errors import CheckpointError, UnsafePath
from shoal.files import atomic_write, open_file

FORMAT = 1
BEST = "best.safetensors"
_STEP_NAME = re.compile(r"step_\d{9,}\.safetensors")
_LIST_ATTEMPTS = 3


@dataclass(frozen=True)
class CheckpointState:
    """All that is needed to continue training.

    Attributes:
        updates: learner updates so far; names the file.
        tensors: every tensor by a flat name, on any device; loaded ones are on the CPU.
        info: everything else, JSON-able with string keys (env_steps, weights_version, rng, optimizer scalars, ...).
            Tuples come back as lists; integers of any size, NaN and infinities survive.
        path: the file it was loaded from.
        skipped: one line for each newer checkpoint that could not be used; show them to the user.
    """

    updates: int
    tensors: Mapping[str, Tensor]
    info: Mapping[str, Any]
    path: Path | None = None
    skipped: tuple[str, ...] = ()


def save_checkpoint(folder: Path, state: CheckpointState, *, keep: int = 3) -> Path:
    """Writes `step_<updates>.safetensors` and removes all but the last `keep` up to it; the best one stays."""
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    path = folder / f"step_{state.updates:09d}.safetensors"
    _write(path, state)
    # A file of a higher number is one that loading skipped: training will reach and replace or prune it.
    done = [old for old in list_checkpoints(folder) if _number(old) <= state.updates]
    for old in done[:-keep]:
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".step_*.tmp"):
        leftover.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path) -> CheckpointState:
    """Loads the newest valid checkpoint; `skipped` of the result names the newer ones that were not.

    Raises:
        CheckpointError: none is valid; the message gives the reason for each.
    """
    for _ in range(_LIST_ATTEMPTS):
        skipped: list[str] = []
        vanished = False
        for path in reversed(list_checkpoints(folder)):
            try:
                return replace(_read(path), skipped=tuple(skipped))
            except FileNotFoundError:
                vanished = True
            except CheckpointError as error:
                skipped.append(str(error))
        if not vanished:  # else a live run pruned what was about to be read: list again
            break
    reasons = "; ".join(skipped) or ("it holds no checkpoint" if folder.is_dir() else "there is no such folder")
    raise CheckpointError(f"No usable checkpoint in {folder}: {reasons}.")


def save_best(folder: Path, state: CheckpointState) -> Path:
    """Replaces the best checkpoint, which is never pruned."""
    _write(folder / BEST, state)
    return folder / BEST


def load_best(folder: Path) -> CheckpointState:
    """Loads the best checkpoint; CheckpointError when there is none or it is corrupt."""
    try:
        return _read(folder / BEST)
    except FileNotFoundError:
        raise CheckpointError(
            f"No best checkpoint in {folder}: it is written after the first evaluation. Use the newest one instead."
        ) from None


def list_checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints, oldest first, valid or not."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _STEP_NAME.fullmatch(path.name)), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(value: object) -> object:
    """Makes numpy's scalars Python's, for json."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r} is neither a number, text, list nor dict")


def _write(path: Path, state: CheckpointState) -> None:
    try:
        text = json.dumps({"format": FORMAT, "updates": state.updates, "info": state.info}, default=_plain)
    except TypeError as error:
        raise CheckpointError(f"Cannot save {path}: {error}.") from error
    # A copy of each, because safetensors refuses tensors that share memory (tied weights) or are not contiguous.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in state.tensors.items()
    }
    data = safetensors.torch.save(tensors, metadata={"shoal": text, "sha256": _digest(text, tensors)})
    try:
        path.parent.mkdir(exist_ok=True)  # not its parents: a run folder that was deleted is not made again
        atomic_write(path, data)
    except OSError as error:
        raise CheckpointError(
            f"Cannot write {path} ({len(data) / 2**20:.1f} MiB): {error.strerror}. Earlier checkpoints are intact."
        ) from error


def _read(path: Path) -> CheckpointState:
    try:
        with open_file(path, "rb") as file:
            data: bytes = file.read()
        tensors = safetensors.torch.load(data)  # also checks the header, the offsets and the length
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header["__metadata__"]
        text, wanted = metadata["shoal"], metadata["sha256"]
        if _digest(text, tensors) != wanted:
            raise CheckpointError(f"{path.name} is corrupt (its content does not match its checksum)")
        content = json.loads(text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror})") from error
    except UnsafePath as error:
        raise CheckpointError(f"{path.name} is a link or not an ordinary file") from error
    except KeyError as error:
        raise CheckpointError(f"{path.name} is no Shoal checkpoint (it has no {error} in its header)") from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path.name} is corrupt ({error})") from error
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path.name} has format {content['format']}, this Shoal reads {FORMAT}")
    return CheckpointState(updates=content["updates"], tensors=tensors, info=content["info"], path=path)
