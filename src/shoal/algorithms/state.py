"""Networks as named tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from shoal.errors import CheckpointError


def module_tensors(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Parameters and buffers of a module under `prefix` + their names. No copy: save before the next update."""
    return {prefix + name: tensor.detach() for name, tensor in module.state_dict().items()}


def load_module(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
    """Copies the tensors under `prefix` into a module; CheckpointError names each parameter that does not fit."""
    own = module.state_dict()
    given = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    problems = [f"{prefix}{name} is missing" for name in own if name not in given]
    problems += [f"{prefix}{name} is not in this network" for name in given if name not in own]
    problems += [
        f"{prefix}{name} has shape {list(given[name].shape)}, this network's has {list(own[name].shape)}"
        for name in own
        if name in given and given[name].shape != own[name].shape
    ]
    if problems:
        raise CheckpointError(
            f"The checkpoint does not fit this network: {_few(problems)}. "
            "Was it made with another environment, algorithm or network setting, or by another version of Shoal?"
        )
    module.load_state_dict(given)


def _few(problems: list[str], limit: int = 4) -> str:
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more
