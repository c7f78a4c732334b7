"""Checkpoints survive bit rot and full disks, and resuming equals never having stopped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from shoal.errors import CheckpointError
from shoal.loops import checkpoint as ck


def state(updates: int = 7, value: float = 1.0) -> ck.CheckpointState:
    return ck.CheckpointState(updates, {"policy.w": torch.full((2, 3), value)}, {"env_steps": updates * 10})


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


def test_reading_while_a_live_run_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`shoal eval` on a running run: the file listed may be gone when it is opened."""
    ck.save_checkpoint(tmp_path, state(5))
    real, stale = ck.list_checkpoints, [[tmp_path / "step_000000001.safetensors"]]
    monkeypatch.setattr(ck, "list_checkpoints", lambda folder: stale.pop() if stale else real(folder))
    assert ck.load_checkpoint(tmp_path).updates == 5
