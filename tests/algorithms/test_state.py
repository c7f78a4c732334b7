"""A learner's state comes back exactly: resuming equals never having stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.algorithms.state import flatten_optimizer, load_module, module_tensors, restore_optimizer
from shoal.errors import CheckpointError
from shoal.loops.checkpoint import CheckpointState, load_checkpoint, save_checkpoint

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def network(outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def test_a_module_that_does_not_fit_is_explained() -> None:
    tensors = module_tensors(network(2), prefix="policy.")
    with pytest.raises(CheckpointError, match=r"policy\.2\.weight has shape \[2, 4\], this network's has \[5, 4\]"):
        load_module(network(5), tensors, prefix="policy.")
    with pytest.raises(CheckpointError, match=r"target\.0\.weight is missing"):
        load_module(network(2), tensors, prefix="target.")
    with pytest.raises(CheckpointError, match=r"policy\.9\.bias is not in this network"):
        load_module(network(2), {**tensors, "policy.9.bias": torch.zeros(1)}, prefix="policy.")
    copy = network(2)
    load_module(copy, tensors, prefix="policy.")
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
    tensors, scalars = flatten_optimizer(straight_optimizer, prefix="optimizer.")
    tensors |= module_tensors(straight, prefix="policy.")
    save_checkpoint(tmp_path, CheckpointState(before, tensors, {"optimizer": scalars}))
    train(straight, straight_optimizer, range(before, before + 5))

    loaded = load_checkpoint(tmp_path)
    resumed = network()
    optimizer = make(list(resumed.parameters()))
    load_module(resumed, loaded.tensors, prefix="policy.")
    restore_optimizer(optimizer, loaded.tensors, loaded.info["optimizer"], prefix="optimizer.")
    kept = {key: tensor.clone() for key, tensor in loaded.tensors.items()}
    train(resumed, optimizer, range(before, before + 5))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(kept[key], tensor) for key, tensor in loaded.tensors.items())  # training wrote elsewhere


def test_an_optimizer_that_does_not_fit_is_explained() -> None:
    model = network(2)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    tensors, scalars = flatten_optimizer(optimizer)
    scalars = json.loads(json.dumps(scalars))
    with pytest.raises(CheckpointError, match=r"2\.exp_avg has shape \[2, 4\], its parameter here has \[5, 4\]"):
        restore_optimizer(torch.optim.Adam(network(5).parameters()), tensors, scalars)
    with pytest.raises(CheckpointError, match="does not fit this optimiser"):
        restore_optimizer(torch.optim.Adam(list(model.parameters())[:1]), tensors, scalars)
    with pytest.raises(CheckpointError, match=r"policy\.w in the checkpoint belongs to no parameter"):
        restore_optimizer(optimizer, {**tensors, "policy.w": torch.zeros(1)}, scalars)
