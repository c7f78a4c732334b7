"""Checkpoints survive bit rot and full disks, and resuming equals never having stopped."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from shoal.errors import CheckpointError
from shoal.loops import checkpoint as ck

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def state(updates: int = 7, value: float = 1.0) -> ck.CheckpointState:
    return ck.CheckpointState(updates, {"policy.w": torch.full((2, 3), value)}, {"env_steps": updates * 10})


def network(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def flip_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_everything_comes_back(tmp_path: Path) -> None:
    tensors = {
        "f32": torch.randn(3, 4).t(),  # not contiguous
        "bf16": torch.randn(5).bfloat16(),
        "rng": torch.get_rng_state(),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
    }
    tensors["tied"] = tensors["f32"]
    rng = np.random.default_rng(3)
    info = {
        "rng": rng.bit_generator.state,
        "count": np.int64(5),
        "best": float("-inf"),
        "nested": {"a": [1, None, "ü"], "b": True},
    }
    path = ck.save_checkpoint(tmp_path, ck.CheckpointState(12, tensors, info))
    loaded = ck.load_checkpoint(tmp_path)
    assert path.name == "step_000000012.safetensors"
    assert loaded.path == path and loaded.updates == 12 and loaded.skipped == ()
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor), name
    assert loaded.info == {**info, "count": 5}
    other = np.random.default_rng(0)
    other.bit_generator.state = loaded.info["rng"]
    assert other.random() == rng.random()
    loaded.tensors["f32"].add_(1)  # writable, and apart from its twin
    assert torch.equal(loaded.tensors["tied"], tensors["tied"])


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    ck.save_best(tmp_path, state(1, 9.0))
    (tmp_path / ".step_000000000.safetensors.tmp").write_bytes(b"left by a kill")
    for updates in (1, 2, 10, 100):
        ck.save_checkpoint(tmp_path, state(updates), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.safetensors",
        "step_000000010.safetensors",
        "step_000000100.safetensors",
    ]
    assert ck.load_best(tmp_path).tensors["policy.w"][0, 0] == 9.0
    ck.save_best(tmp_path, state(100, 10.0))
    assert ck.load_best(tmp_path).updates == 100
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        ck.save_checkpoint(tmp_path, state(), keep=0)


def test_more_than_nine_digits_still_sort_by_number(tmp_path: Path) -> None:
    ck.save_checkpoint(tmp_path, state(999_999_999))
    ck.save_checkpoint(tmp_path, state(1_000_000_000))
    assert ck.load_checkpoint(tmp_path).updates == 1_000_000_000


@pytest.mark.parametrize("damage", ["tensor", "json", "header", "truncated", "empty", "foreign", "directory"])
def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path: Path, damage: str) -> None:
    ck.save_checkpoint(tmp_path, state(1))
    newest = ck.save_checkpoint(tmp_path, state(2))
    data = newest.read_bytes()
    if damage == "tensor":
        flip_byte(newest, len(data) - 1)
    elif damage == "json":
        flip_byte(newest, data.index(b"env_steps"))
    elif damage == "header":
        flip_byte(newest, 8)
    elif damage == "truncated":
        newest.write_bytes(data[:-5])
    elif damage == "empty":
        newest.write_bytes(b"")
    elif damage == "foreign":
        safetensors.torch.save_file({"w": torch.zeros(1)}, newest)
    else:
        newest.unlink()
        newest.mkdir()
    loaded = ck.load_checkpoint(tmp_path)
    assert loaded.updates == 1
    assert len(loaded.skipped) == 1 and newest.name in loaded.skipped[0]


def test_every_single_byte_is_guarded(tmp_path: Path) -> None:
    """Any one-bit change is either detected or changes nothing that is read (the header's padding, a JSON space)."""
    path = ck.save_checkpoint(tmp_path, state(2))
    data = path.read_bytes()
    original = ck.load_checkpoint(tmp_path)
    for offset in range(len(data)):
        flip_byte(path, offset)
        try:
            loaded = ck.load_checkpoint(tmp_path)
            assert loaded.info == original.info and loaded.updates == original.updates
            assert torch.equal(loaded.tensors["policy.w"], original.tensors["policy.w"])
        except CheckpointError:
            pass
        path.write_bytes(data)


def test_nothing_valid_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: there is no such folder"):
        ck.load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="it holds no checkpoint"):
        ck.load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="No best checkpoint"):
        ck.load_best(tmp_path)
    for updates in (1, 2):
        path = ck.save_checkpoint(tmp_path, state(updates))
        flip_byte(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"step_000000002.*checksum.*step_000000001.*checksum") as caught:
        ck.load_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)
    flip_byte(ck.save_best(tmp_path, state()), -1)
    with pytest.raises(CheckpointError, match=r"best\.safetensors is corrupt"):
        ck.load_best(tmp_path)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ck, "FORMAT", 2)
    ck.save_checkpoint(tmp_path, state())
    monkeypatch.setattr(ck, "FORMAT", 1)
    with pytest.raises(CheckpointError, match="has format 2, this Shoal reads 1"):
        ck.load_checkpoint(tmp_path)


def test_training_on_from_the_fallback_never_prunes_what_it_just_wrote(tmp_path: Path) -> None:
    for updates in (100, 200, 300):
        ck.save_checkpoint(tmp_path, state(updates), keep=2)
    flip_byte(tmp_path / "step_000000300.safetensors", -1)
    assert ck.load_checkpoint(tmp_path).updates == 200
    for updates in (210, 220):
        ck.save_checkpoint(tmp_path, state(updates), keep=2)
        assert ck.load_checkpoint(tmp_path).updates == updates
    ck.save_checkpoint(tmp_path, state(310), keep=1)
    assert [path.name for path in ck.list_checkpoints(tmp_path)] == ["step_000000310.safetensors"]


def test_a_full_disk_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ck.save_checkpoint(tmp_path, state(1))

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CheckpointError, match=r"No space left on device.*intact"):
        ck.save_checkpoint(tmp_path, state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001.safetensors"]


def test_a_value_json_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"PosixPath.*neither a number"):
        ck.save_checkpoint(tmp_path, ck.CheckpointState(1, {}, {"where": Path("/x")}))
    assert not list(tmp_path.iterdir())


def test_a_module_that_does_not_fit_is_explained() -> None:
    tensors = ck.module_tensors(network(2), prefix="policy.")
    with pytest.raises(CheckpointError, match=r"policy\.2\.weight has shape \[2, 4\], this network's has \[5, 4\]"):
        ck.load_module(network(5), tensors, prefix="policy.")
    with pytest.raises(CheckpointError, match=r"target\.0\.weight is missing"):
        ck.load_module(network(2), tensors, prefix="target.")
    with pytest.raises(CheckpointError, match=r"policy\.9\.bias is not in this network"):
        ck.load_module(network(2), {**tensors, "policy.9.bias": torch.zeros(1)}, prefix="policy.")
    copy = network(2)
    ck.load_module(copy, tensors, prefix="policy.")
    assert all(torch.equal(value, tensors[f"policy.{name}"]) for name, value in copy.state_dict().items())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        batch = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def two_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:]}]


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1.5e-4),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw-groups": lambda p: torch.optim.AdamW(two_groups(p), lr=0.01),
    "tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain-sgd": lambda p: torch.optim.SGD(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 5])
def test_resuming_equals_never_having_stopped(tmp_path: Path, name: str, before: int) -> None:
    make = OPTIMIZERS[name]
    torch.manual_seed(0)
    straight = network()
    straight_optimizer = make(list(straight.parameters()))
    train(straight, straight_optimizer, range(before))
    tensors, scalars = ck.flatten_optimizer(straight_optimizer, prefix="optimizer.")
    tensors |= ck.module_tensors(straight, prefix="policy.")
    ck.save_checkpoint(tmp_path, ck.CheckpointState(before, tensors, {"optimizer": scalars}))
    train(straight, straight_optimizer, range(before, before + 5))

    loaded = ck.load_checkpoint(tmp_path)
    resumed = network()
    optimizer = make(list(resumed.parameters()))
    ck.load_module(resumed, loaded.tensors, prefix="policy.")
    ck.restore_optimizer(optimizer, loaded.tensors, loaded.info["optimizer"], prefix="optimizer.")
    kept = {key: tensor.clone() for key, tensor in loaded.tensors.items()}
    train(resumed, optimizer, range(before, before + 5))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(kept[key], tensor) for key, tensor in loaded.tensors.items())  # training wrote elsewhere


def test_an_optimizer_that_does_not_fit_is_explained() -> None:
    model = network(2)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    tensors, scalars = ck.flatten_optimizer(optimizer)
    scalars = json.loads(json.dumps(scalars))
    with pytest.raises(CheckpointError, match=r"2\.exp_avg has shape \[2, 4\], its parameter here has \[5, 4\]"):
        ck.restore_optimizer(torch.optim.Adam(network(5).parameters()), tensors, scalars)
    with pytest.raises(CheckpointError, match="does not fit this optimiser"):
        ck.restore_optimizer(torch.optim.Adam(list(model.parameters())[:1]), tensors, scalars)
    with pytest.raises(CheckpointError, match=r"policy\.w in the checkpoint belongs to no parameter"):
        ck.restore_optimizer(optimizer, {**tensors, "policy.w": torch.zeros(1)}, scalars)


def test_reading_while_a_live_run_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shoal eval` on a running run: the file listed may be gone when it is opened."""
    ck.save_checkpoint(tmp_path, state(5))
    real, stale = ck.list_checkpoints, [[tmp_path / "step_000000001.safetensors"]]
    monkeypatch.setattr(ck, "list_checkpoints", lambda folder: stale.pop() if stale else real(folder))
    assert ck.load_checkpoint(tmp_path).updates == 5
