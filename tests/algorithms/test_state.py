"""Networks as named tensors, and back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.algorithms.state import load_module, module_tensors
from shoal.errors import CheckpointError


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
